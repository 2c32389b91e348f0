"""The authors' released model as a Pushdown model of this library.

    import_published("model.pt", "vocab.pkl", "models/published")
    import_published("smurty/pushdown-bllip", None, "models/published")

The checkpoint is a transformer with relative positions (:mod:`pushdown_lm.model.relative_decoder`)
and an attachment head of the variant ``published``; sizes are read off its weights. Nothing in the
two files is executed: weights are loaded with ``weights_only``, the vocabulary by
:mod:`pushdown_lm.data.pickled_vocabulary`.

Its sentences are ``<s> words <eos>``, followed by a mark ``</s>`` that only ever comes after
``<eos>``. Here ``<s>`` is ROOT and ``<eos>`` is EOS, and ``</s>`` is forbidden. The ids of ``</s>``
and ``<s>`` come after those of the vocabulary.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from pushdown_lm.data.pickled_vocabulary import END_WORD, PADDING, read_vocabulary
from pushdown_lm.data.text import TextRule
from pushdown_lm.data.tokenization import load_tokenizer, model_tokenizer, renumber_bpe
from pushdown_lm.errors import PushdownError, first_line
from pushdown_lm.files import whole_folder, write_json
from pushdown_lm.model.configuration import AttachmentProbabilities, PushdownConfig
from pushdown_lm.model.hub import check_source
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.model.relative_configuration import RelativeConfig

HUB_NAME = "smurty/pushdown-bllip"
WEIGHTS, VOCABULARY = "model.pt", "vocab.pkl"
IMPORT = "import.json"
"""What an imported model was made from."""
END_MARK, START = "</s>", "<s>"
UNKNOWN_TOKENS = ("<UNK>", "<unk>")
NUM_HEADS = 8
"""Of the attention, whatever the checkpoint's settings say: those set the feed-forward width."""

_LAYER = "trafo.encoder.layers"
_ATTENTION = {
    "data_to_q.weight": "q_proj.weight",
    "pos_to_pq.weight": "r_proj.weight",
    "multi_head_merge.weight": "o_proj.weight",
    "depth_embed.weight": "tape_embedding.weight",
}
_BLOCK = {
    "linear1": "fc_in",
    "linear2": "fc_out",
    "norm1": "attention_norm",
    "norm2": "output_norm",
}
_HEAD = {
    "data_to_q_prime.weight": "query_projection.weight",
    "data_to_k_prime.weight": "key.weight",
    "pos_to_pq_stack.weight": "position.weight",
    "depth_embed.weight": "tape_embedding",
}
_HEAD_MLPS = {
    "q_next_word_mlp": "query",
    "k_next_word_mlp": "shift_key",
    "key_and_stack_info_composer": "compose",
}
_UNUSED = re.compile(
    r"attachment_head\.(data_to_q\.weight|multi_head_merge\.weight|global_\w+_bias)"
    r"|(.*\.)?(pos_encoding|int_seq)|output_map\.(weight|emb\w*)"
)
"""Weights that the authors' code never uses, constants, and a second name of the embeddings."""


class PublishedModelError(PushdownError):
    """A checkpoint or vocabulary that is not of the published form; the message says why."""


@dataclass(frozen=True, slots=True)
class Import:
    """What was imported."""

    weights: str
    vocabulary: str
    tokenizer: str
    num_layers: int
    hidden_size: int
    parameters: int
    vocab_size: int
    outside_pieces: int
    """Pieces of GPT-2 that the vocabulary lacks."""
    unknown_token: str | None
    """What such pieces become; None where they are an error."""
    escaped: str
    attachment_probabilities: str


def import_published(
    source: str | Path,
    vocabulary: str | Path | None,
    out: str | Path,
    *,
    tokenizer: str | Path = "gpt2",
    probabilities: AttachmentProbabilities = "normalized",
) -> Import:
    """Write the model of a checkpoint, with its tokenizer, to a new folder.

    Args:
        source: the weights (``model.pt``, or the same as safetensors), or without a vocabulary a
            folder or a name of the Hub that has both files.
        vocabulary: ``vocab.pkl``.
        tokenizer: GPT-2's BPE, a folder or a name of the Hub. It cuts words into the pieces that
            the vocabulary numbers.
        probabilities: ``normalized`` or ``as_published`` (:class:`PushdownConfig`).
    """
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise PublishedModelError(f"{folder}: expected a new or empty folder")
    weights_path, vocabulary_path = _find_files(str(source), vocabulary)
    words = read_vocabulary(vocabulary_path)
    own = _model_tokenizer(words, str(tokenizer), vocabulary_path)
    weights = read_weights(weights_path)
    model = build_model(weights, words, weights_path, probabilities)
    rule = TextRule.of(own, is_word_level=False)
    done = Import(
        weights=str(weights_path),
        vocabulary=str(vocabulary_path),
        tokenizer=str(tokenizer),
        num_layers=model.config.decoder.num_hidden_layers,
        hidden_size=model.config.decoder.hidden_size,
        parameters=sum(parameter.numel() for parameter in model.parameters()),
        vocab_size=len(words) + 2,
        outside_pieces=len(own) - len(words) - 2,
        unknown_token=own.unk_token,
        escaped=rule.escaped,
        attachment_probabilities=probabilities,
    )
    with whole_folder(folder) as staging:
        model.save_pretrained(staging)
        model_tokenizer(own).save_pretrained(staging)
        write_json(staging / IMPORT, asdict(done))
    return done


# ------------------------------------------------------------------ files


def _find_files(source: str, vocabulary: str | Path | None) -> tuple[Path, Path]:
    """The two files, which a name of the Hub or a folder has under their published names."""
    if vocabulary is not None:
        return Path(source), Path(vocabulary)
    folder = Path(source)
    if folder.is_dir():
        return folder / WEIGHTS, folder / VOCABULARY
    if folder.exists():
        raise PublishedModelError(f"{source}: expected a vocabulary ({VOCABULARY}) beside it")
    check_source(source)
    from huggingface_hub import hf_hub_download

    try:
        return (
            Path(hf_hub_download(source, WEIGHTS)),
            Path(hf_hub_download(source, VOCABULARY)),
        )
    except Exception as error:  # of many kinds: offline, no such name, no such file
        raise PublishedModelError(f"{source}: cannot be fetched: {first_line(error)}") from error


def read_weights(path: str | Path) -> dict[str, Tensor]:
    """The tensors of a checkpoint by their names, alone or as its ``state_dict``; no code is run.

    Training checkpoints hold more, which is passed over.
    """
    path = Path(path)
    if not path.is_file():
        raise PublishedModelError(f"{path}: no such file")
    try:
        if path.suffix == ".safetensors":
            from safetensors.torch import load_file

            return load_file(path)
        loaded = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # of whatever kind a damaged or hostile file makes it
        detail = " ".join(str(error).split())[:300] or type(error).__name__
        raise PublishedModelError(f"{path}: not weights that can be read: {detail}") from error
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict) or not all(
        isinstance(name, str) and isinstance(tensor, Tensor) for name, tensor in loaded.items()
    ):
        raise PublishedModelError(f"{path}: expected tensors by their names")
    return dict(loaded)


# ------------------------------------------------------------------ weights


def build_model(
    weights: Mapping[str, Tensor],
    words: Mapping[str, int],
    path: str | Path,
    probabilities: AttachmentProbabilities = "normalized",
) -> PushdownForCausalLM:
    """The model of a checkpoint: sizes by its shapes, every weight in its place."""
    config = _configuration(weights, words, path, probabilities)
    renamed = _rename(weights, path)
    with torch.device("meta"):
        model = PushdownForCausalLM(config)
    expected = model.state_dict()
    for problem, names in (
        ("missing", expected.keys() - renamed.keys()),
        ("unexpected", renamed.keys() - expected.keys()),
    ):
        if names:
            raise PublishedModelError(f"{path}: the weights have {problem} {min(names)}")
    for name, tensor in renamed.items():
        if tensor.shape != expected[name].shape:
            raise PublishedModelError(
                f"{path}: {name}: expected the shape {tuple(expected[name].shape)}, found "
                f"{tuple(tensor.shape)}"
            )
        if not tensor.isfinite().all():
            raise PublishedModelError(f"{path}: {name}: expected finite weights")
    model.load_state_dict(renamed, assign=True)
    model.tie_weights()
    return model.eval()


def _configuration(
    weights: Mapping[str, Tensor],
    words: Mapping[str, int],
    path: str | Path,
    probabilities: AttachmentProbabilities,
) -> PushdownConfig:
    def shape(name: str) -> tuple[int, int]:
        tensor = weights.get(name)
        if tensor is None or tensor.ndim != 2:
            raise PublishedModelError(f"{path}: not of the published form: expected {name}")
        return tensor.shape[0], tensor.shape[1]

    rows, width = shape("input_embedding.weight")
    if rows != len(words) + 2:
        raise PublishedModelError(
            f"{path}: {rows:,} embeddings, but the vocabulary has {len(words):,} words, which "
            f"with {END_MARK} and {START} makes {len(words) + 2:,}"
        )
    layers = {
        int(found[1]) for found in map(re.compile(rf"{_LAYER}\.(\d+)\.").match, weights) if found
    }
    num_depths, tape_width = shape("attachment_head.depth_embed.weight")
    decoder = RelativeConfig(
        vocab_size=rows,
        hidden_size=width,
        intermediate_size=shape(f"{_LAYER}.0.linear1.weight")[0],
        num_hidden_layers=len(layers),
        num_attention_heads=NUM_HEADS,
        bos_token_id=len(words) + 1,
        eos_token_id=words[END_WORD],
        pad_token_id=words[PADDING],
    )
    return PushdownConfig(
        decoder_config=decoder,
        num_depths=num_depths,
        attachment_head="published",
        head_tape_width=tape_width,
        pad_token_id=words[PADDING],
        forbidden_tokens=[len(words)],
        attachment_probabilities=probabilities,
        dtype=torch.float32,
    )


def _rename(weights: Mapping[str, Tensor], path: str | Path) -> dict[str, Tensor]:
    """The weights under the names that they have here."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in weights.items():
        if _UNUSED.fullmatch(name):
            continue
        for own, part in _places(name, tensor, path).items():
            renamed[own] = part.to(torch.float32).contiguous()
    embedding = renamed.get("decoder.model.embed_tokens.weight")
    if embedding is not None:
        renamed["decoder.lm_head.weight"] = embedding
    return renamed


def _places(name: str, tensor: Tensor, path: str | Path) -> dict[str, Tensor]:
    """A tensor of the checkpoint by its name here; keys and values are two tensors here."""
    if name == "input_embedding.weight":
        return {"decoder.model.embed_tokens.weight": tensor}
    if name == "output_map.bias":
        return {"decoder.lm_head.bias": tensor}
    if match := re.fullmatch(rf"{_LAYER}\.(\d+)\.(self_attn\.)?(.+)", name):
        layer, attention, part = f"decoder.model.layers.{match[1]}", match[2], match[3]
        if attention and part in _ATTENTION:
            return {f"{layer}.self_attn.{_ATTENTION[part]}": tensor}
        if attention and part == "data_to_kv.weight":
            return _keys_and_values(f"{layer}.self_attn", tensor, path)
        module, _, kind = part.partition(".")
        if not attention and module in _BLOCK:
            return {f"{layer}.{_BLOCK[module]}.{kind}": tensor}
    if match := re.fullmatch(r"attachment_head\.(.+)", name):
        if match[1] in _HEAD:
            return {f"head.{_HEAD[match[1]]}": tensor}
        module, _, rest = match[1].partition(".")
        if module in _HEAD_MLPS:
            return {f"head.{_HEAD_MLPS[module]}.{rest}": tensor}
    raise PublishedModelError(f"{path}: not of the published form: unexpected {name}")


def _keys_and_values(attention: str, tensor: Tensor, path: str | Path) -> dict[str, Tensor]:
    """Head by head, first the key's numbers, then the value's."""
    width = tensor.shape[-1]
    if tensor.shape != (2 * width, width) or width % NUM_HEADS:
        raise PublishedModelError(
            f"{path}: data_to_kv: expected the shape {(2 * width, width)}, a multiple of "
            f"{NUM_HEADS} wide, found {tuple(tensor.shape)}"
        )
    key, value = tensor.view(NUM_HEADS, 2, width // NUM_HEADS, width).unbind(1)
    return {
        f"{attention}.k_proj.weight": key.flatten(0, 1),
        f"{attention}.v_proj.weight": value.flatten(0, 1),
    }


# ------------------------------------------------------------------ tokenizer


def _model_tokenizer(
    words: Mapping[str, int], tokenizer: str, path: Path
) -> PreTrainedTokenizerFast:
    """GPT-2's BPE with the ids of the vocabulary, for text that stays Penn-tokenized."""
    ids = dict(words)
    for token in (END_MARK, START):
        if token in ids:
            raise PublishedModelError(f"{path}: {token} is among the words")
        ids[token] = len(ids)
    unknown = next((token for token in UNKNOWN_TOKENS if token in words), None)
    own = renumber_bpe(
        _load_bpe(tokenizer),
        ids,
        bos_token=START,
        eos_token=END_WORD,
        pad_token=PADDING,
        **({} if unknown is None else {"unk_token": unknown}),
    )
    letters = set("".join(words))
    escaped = "".join(bracket for bracket in "()[]{}" if bracket not in letters)
    if "\\" in letters:
        escaped += "/*"
    TextRule("tokenized", "word", escaped=escaped, vocabulary=len(ids)).save_in(own)
    return own


def _load_bpe(name: str) -> PreTrainedTokenizerFast:
    if Path(name).is_dir():
        return load_tokenizer(name)
    try:
        loaded: Any = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except Exception as error:  # of many kinds: offline, no such name
        raise PublishedModelError(
            f"{name}: GPT-2's tokenizer cannot be loaded; --tokenizer names a folder that has it "
            f"({first_line(error)})"
        ) from error
    found: PreTrainedTokenizerFast = loaded
    return found
