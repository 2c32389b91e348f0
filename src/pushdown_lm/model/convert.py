"""Pushdown Layers put into a pretrained language model (section 4.3), as a folder on disk.

    convert("gpt2-medium", "models/gpt2-medium", layers="last:12")

The folder holds the weights, the tokenizer, and in its configuration the tokens that begin and end
a sentence. They are settled here, once, for training, search and evaluation alike:

- EOS ends every sentence: the one that is asked for, or the tokenizer's. Without one there is no
  conversion, since every sentence must end.
- BOS is the ROOT of every sentence: the one that is asked for, or the tokenizer's. Where there is
  none, EOS is both, as in GPT-2.
- A token that marks the turns of a chat (``<|im_start|>``) is a poor ROOT: in training it never
  came before plain text. Where the vocabulary has a token that separates documents, such as
  ``<|endoftext|>``, that one begins and ends sentences instead, unless another is asked for.
- Padding, never seen by the model, is the tokenizer's, or else EOS.

The depth embeddings start at zero, so the new model computes what the old one did, whatever the
parse. That is checked on a batch of random tokens before anything is written.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)
from transformers.utils import quantization_config

from pushdown_lm.data.text import TextRule
from pushdown_lm.data.tokenization import (
    BPE_FILES,
    TokenizationError,
    complete_special_tokens,
    load_tokenizer,
    model_tokenizer,
    split_marks,
)
from pushdown_lm.errors import PushdownError, first_line
from pushdown_lm.files import whole_folder, write_json
from pushdown_lm.model.forbidden import special_ids
from pushdown_lm.model.hub import check_source
from pushdown_lm.model.layers import parse_layers
from pushdown_lm.model.modeling import PushdownForCausalLM

CONVERSION = "conversion.json"
"""What a converted model was made from."""
PROBE_LENGTH = 48
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-9}
"""Largest difference of logits that rounding explains, as a share of the largest logit."""
COARSE_TOLERANCE = 3e-2
CHAT_MARKERS = frozenset(
    [
        *("<|im_start|>", "<|im_end|>", "<|im_sep|>"),
        *("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>", "<|eom_id|>"),
        *("<start_of_turn>", "<end_of_turn>", "<|turn>", "<turn|>"),
        *("<|user|>", "<|assistant|>", "<|system|>", "<|end|>", "<|eot|>", "[INST]", "[/INST]"),
    ]
)
"""Tokens that open or close the turns of a conversation."""
DOCUMENT_BOUNDARIES = ("<|endoftext|>", "<|end_of_text|>", "<|begin_of_text|>", "</s>", "<eos>")
"""Tokens that stand between documents in pretraining, the first that a vocabulary has."""

Loaded = TypeVar("Loaded")


class ConversionError(PushdownError):
    """A model that cannot be converted: the message says which and why."""


@dataclass(frozen=True, slots=True)
class Conversion:
    """What was converted, and how closely the new model agrees with the old."""

    source: str
    gguf_file: str | None
    decoder: str
    """The class of the language model."""
    num_layers: int
    pushdown_layers: list[int]
    parameters: int
    added_parameters: int
    """Depth embeddings and attachment head."""
    bos_token: str
    eos_token: str
    pad_token: str
    reasons: dict[str, str]
    """Why these tokens begin and end sentences, by ``bos`` and ``eos``."""
    splits_marks: bool
    """Whether no token holds two different punctuation marks."""
    largest_difference: float
    """Between the logits of the two models on the probe batch."""
    largest_logit: float


def convert(
    source: str | Path,
    out: str | Path,
    *,
    layers: str = "all",
    gguf_file: str | None = None,
    bos: str | None = None,
    eos: str | None = None,
    splits_marks: bool = False,
    **options: Any,
) -> Conversion:
    """Convert a pretrained language model and write it, with its tokenizer, to a new folder.

    Args:
        source: a name of the Hub, a folder, or a GGUF file.
        layers: the pushdown layers, as :func:`~pushdown_lm.model.layers.parse_layers` reads them.
        gguf_file: a GGUF file of that folder or name.
        bos, eos: the tokens that begin and end sentences, if not the tokenizer's own.
        splits_marks: let no token hold two different punctuation marks.
        options: further fields of :class:`~pushdown_lm.model.configuration.PushdownConfig`.
    """
    folder = Path(out)
    check_source(str(source))
    check_new_folder(folder)
    loaded = open_pretrained(
        source, gguf_file=gguf_file, bos=bos, eos=eos, splits_marks=splits_marks
    )
    decoder, tokenizer = loaded.decoder, loaded.tokenizer
    indices = parse_layers(layers, decoder.config.num_hidden_layers)
    positions = getattr(decoder.config, "max_position_embeddings", None) or PROBE_LENGTH
    reserved = {tokenizer.bos_token_id, tokenizer.eos_token_id}
    probe = probe_batch(len(tokenizer), reserved, min(PROBE_LENGTH, positions))
    before = _logits(decoder, probe)
    model = PushdownForCausalLM.from_lm(
        decoder,
        pushdown_layers=indices,
        **special_ids(tokenizer),
        **options,
    )
    difference = _check_same(model, probe, before, str(source))
    original = sum(
        parameter.numel()
        for key, parameter in decoder.named_parameters()
        if "tape_embedding" not in key
    )
    total = sum(parameter.numel() for parameter in model.parameters())
    conversion = Conversion(
        source=str(source),
        gguf_file=loaded.gguf_file,
        decoder=type(decoder).__name__,
        num_layers=decoder.config.num_hidden_layers,
        pushdown_layers=list(model.config.pushdown_layers or []),
        parameters=total,
        added_parameters=total - original,
        bos_token=str(tokenizer.bos_token),
        eos_token=str(tokenizer.eos_token),
        pad_token=str(tokenizer.pad_token),
        reasons=loaded.reasons,
        splits_marks=splits_marks,
        largest_difference=difference,
        largest_logit=float(before.abs().max()),
    )
    TextRule("detokenized", "sentence").save_in(tokenizer)
    with whole_folder(folder) as staging:
        model.save_pretrained(staging)
        model_tokenizer(tokenizer).save_pretrained(staging)
        write_json(staging / CONVERSION, asdict(conversion))
    return conversion


def check_new_folder(folder: Path) -> None:
    """Refuse to write a model where there is something already."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ConversionError(f"{folder}: expected a new or empty folder")


def settle_boundaries(
    tokenizer: Any, source: str, *, bos: str | None = None, eos: str | None = None
) -> tuple[PreTrainedTokenizerFast, dict[str, str]]:
    """The tokenizer with BOS, EOS and padding, by the rules of this module, and the reasons."""
    if not tokenizer.is_fast:
        raise ConversionError(
            f"{source}: expected a fast tokenizer, found the slow {type(tokenizer).__name__}"
        )
    vocabulary = tokenizer.get_vocab()
    boundary = next((token for token in DOCUMENT_BOUNDARIES if token in vocabulary), None)
    reasons: dict[str, str] = {}
    for name, token in (("bos", bos), ("eos", eos)):
        own = getattr(tokenizer, f"{name}_token")
        if token is None and own in CHAT_MARKERS and boundary is not None:
            reasons[name] = f"separates documents, the tokenizer's {own} marks turns of a chat"
            setattr(tokenizer, f"{name}_token", boundary)
        elif token is None:
            reasons[name] = "the tokenizer's"
        elif token not in vocabulary:
            raise ConversionError(f"--{name}: {token!r} is not in the vocabulary of {source}")
        else:
            reasons[name] = "as asked for"
            setattr(tokenizer, f"{name}_token", token)
    if tokenizer.eos_token_id is None:
        raise ConversionError(
            f"{source}: expected a tokenizer with an EOS token, which ends every sentence, found "
            "none; --eos names one of its tokens"
        )
    if tokenizer.bos_token_id is None:
        reasons["bos"] = "the tokenizer has none, so EOS is both"
    complete_special_tokens(tokenizer)
    return tokenizer, reasons


# ------------------------------------------------------------------ reading the original


@dataclass(frozen=True)
class PretrainedLM:
    """A language model with plain weights, and its tokenizer with settled boundaries."""

    decoder: PreTrainedModel
    tokenizer: PreTrainedTokenizerFast
    gguf_file: str | None
    reasons: dict[str, str]
    """Why these tokens begin and end sentences, by ``bos`` and ``eos``."""


def open_pretrained(
    source: str | Path,
    *,
    gguf_file: str | None = None,
    bos: str | None = None,
    eos: str | None = None,
    splits_marks: bool = False,
) -> PretrainedLM:
    """Load a pretrained language model: a name of the Hub, a folder, or a GGUF file."""
    check_source(str(source))
    name, file = _split_gguf(str(source), gguf_file)
    loaded = _load_tokenizer(name, file, str(source))
    tokenizer, reasons = settle_boundaries(loaded, str(source), bos=bos, eos=eos)
    if splits_marks:
        try:
            split_marks(tokenizer)
        except TokenizationError as error:
            raise ConversionError(f"{source}: {error}") from None
    decoder = _load_decoder(name, file, str(source)).eval()
    embeddings: Any = decoder.get_input_embeddings()
    rows = embeddings.weight.shape[0]
    if len(tokenizer) > rows:
        raise ConversionError(
            f"{source}: the tokenizer has {len(tokenizer):,} entries, the model embeds {rows:,}"
        )
    return PretrainedLM(decoder, tokenizer, file, reasons)


def _split_gguf(source: str, gguf_file: str | None) -> tuple[str, str | None]:
    """The folder or name, and the GGUF file in it, if that is what is to be converted."""
    path = Path(source)
    if gguf_file is None and path.suffix == ".gguf":
        source, gguf_file = str(path.parent), path.name
    if gguf_file is not None:
        if Path(source).is_dir() and not Path(source, gguf_file).is_file():
            raise ConversionError(f"{Path(source, gguf_file)}: no such file")
        if find_spec("gguf") is None:
            raise ConversionError(
                f"{gguf_file}: gguf is not installed: pip install 'pushdown-lm[gguf]'"
            )
    return source, gguf_file


def _load_tokenizer(name: str, gguf_file: str | None, source: str) -> Any:
    folder = Path(name)
    has_bpe_files = any(all((folder / part).is_file() for part in pair) for pair in BPE_FILES)
    if gguf_file is None and has_bpe_files and not (folder / "tokenizer.json").is_file():
        return load_tokenizer(folder)
    extra = {} if gguf_file is None else {"gguf_file": gguf_file}
    return _load(
        lambda: AutoTokenizer.from_pretrained(name, trust_remote_code=False, **extra), source
    )


def _load_decoder(name: str, gguf_file: str | None, source: str) -> PreTrainedModel:
    """The language model with plain weights: those of a GGUF file are unpacked."""
    extra: dict[str, Any] = {"trust_remote_code": False}
    if gguf_file is None:
        extra["use_safetensors"] = True
    if gguf_file is not None:
        extra["gguf_file"] = gguf_file
        if hasattr(quantization_config, "GgufConfig"):  # otherwise it unpacks them by itself
            extra["quantization_config"] = quantization_config.GgufConfig(dequantize=True)
    decoder: Any = _load(lambda: AutoModelForCausalLM.from_pretrained(name, **extra), source)
    packed = getattr(decoder.config, "quantization_config", None)
    if packed is not None and gguf_file is None:
        method = packed.get("quant_method") if isinstance(packed, dict) else packed.quant_method
        raise ConversionError(
            f"{source}: expected plain weights, or a GGUF file, found weights quantized with "
            f"{getattr(method, 'value', method)}"
        )
    if packed is not None:
        del decoder.config.quantization_config
    if getattr(decoder, "is_quantized", False):
        decoder.is_quantized, decoder.hf_quantizer = False, None
    return decoder


def _load(load: Callable[[], Loaded], source: str) -> Loaded:
    """What Transformers loads, or its complaint in one line."""
    try:
        return load()
    except PushdownError:
        raise
    except Exception as error:  # of whatever kind a damaged file makes it
        raise ConversionError(
            f"{source}: Transformers cannot load it: {first_line(error)}"
        ) from error


# ------------------------------------------------------------------ the same logits


def probe_batch(vocabulary: int, reserved: set[int], length: int = PROBE_LENGTH) -> Tensor:
    """Two rows of the same random tokens, without those that begin and end sentences."""
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(vocabulary, (4 * PROBE_LENGTH,), generator=generator).tolist()
    usable = [token for token in tokens if token not in reserved][:length]
    return torch.tensor([usable, usable])


@torch.inference_mode()
def _logits(model: PreTrainedModel, probe: Tensor, **options: Any) -> Tensor:
    logits: Tensor = model(input_ids=probe.to(model.device), use_cache=False, **options).logits
    return logits.double()


def _check_same(model: PushdownForCausalLM, probe: Tensor, before: Tensor, source: str) -> float:
    """The largest difference of logits under two parses: all shifts, and a left-branching tree."""
    position = torch.arange(probe.shape[1])
    attachments = torch.stack([position, (position - 1).clamp(min=0)])
    attachments[1, 1:2] = 1
    after = _logits(model, probe, attachments=attachments.to(model.device))
    follow = [token for token in range(after.shape[-1]) if token not in model.forbidden.ids]
    difference = float((after - before)[..., follow].abs().max())
    allowed = TOLERANCE.get(model.dtype, COARSE_TOLERANCE) * float(before.abs().max())
    if not difference <= allowed:
        raise ConversionError(
            f"{source}: the converted {type(model.decoder).__name__} should compute what the "
            f"original does, but its logits differ by up to {difference:.3g}"
        )
    return difference
