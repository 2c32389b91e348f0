"""A small random checkpoint in the form of the authors' released one."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from torch import Tensor

SENTENCES = [
    "The dog is happy .",
    "The old man saw a dog `` again '' -LRB- twice -RRB- .",
    "A happy dog saw the man that the cat likes .",
]
WIDTH, LAYERS, SETTING, DEPTHS = 16, 2, 4, 5
"""Hidden width, layers, the setting that is called heads, and rows of the depth embeddings."""


def pickled_vocabulary(words: dict[str, int], protocol: int = 4, /, **attributes: Any) -> bytes:
    """As the authors' class pickles itself."""
    module = ModuleType("vocabulary")
    kind: Any = type("WordVocabulary", (), {"__module__": "vocabulary"})
    module.WordVocabulary = kind  # type: ignore[attr-defined]
    vocabulary = kind()
    vocabulary.words = words
    vocabulary.inv_words = {number: word for word, number in words.items()}
    vocabulary.to_save = ["words", "inv_words", "_unk_index"]
    vocabulary._unk_index, vocabulary.split_punctuation = None, False
    vocabulary.__dict__.update(attributes)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "vocabulary", module)
        return pickle.dumps(vocabulary, protocol)


def write_bpe(folder: Path) -> Tokenizer:
    """A byte-level BPE in GPT-2's two files, trained on the sentences and more."""
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=["<|endoftext|>"],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator([*SENTENCES, "zebras and zebras zigzag ( here )"] * 3, trainer)
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.model.save(str(folder))
    return tokenizer


def vocabulary_of(tokenizer: Tokenizer, extra: Iterable[str] = ()) -> dict[str, int]:
    """The pieces of the sentences, leaf by leaf, sorted after `<pad>`, with `<eos>` among them."""
    pieces = {"<eos>", *extra}
    for sentence in SENTENCES:
        for number, word in enumerate(sentence.split()):
            pieces |= set(tokenizer.encode(word if number == 0 else f" {word}").tokens)
    return {piece: number for number, piece in enumerate(["<pad>", *sorted(pieces)])}


def random_weights(num_words: int, seed: int = 0) -> dict[str, Tensor]:
    """Weights under the authors' names."""
    d, head = WIDTH, WIDTH // SETTING
    composed = 2 * d + head
    shapes: dict[str, tuple[int, ...]] = {
        "input_embedding.weight": (num_words + 2, d),
        "output_map.bias": (num_words + 2,),
        "attachment_head.data_to_q.weight": (d, d),
        "attachment_head.multi_head_merge.weight": (d, d),
        "attachment_head.global_pos_bias": (SETTING, head),
        "attachment_head.data_to_q_prime.weight": (2 * d, d),
        "attachment_head.data_to_k_prime.weight": (2 * d, d),
        "attachment_head.pos_to_pq_stack.weight": (2 * d, d),
        "attachment_head.depth_embed.weight": (DEPTHS, head),
        "attachment_head.pos_encoding": (9, d),
    }
    for name, inner, inputs in (
        ("q_next_word_mlp", 2 * d, 3 * d),
        ("k_next_word_mlp", 2 * d, 3 * d),
        ("key_and_stack_info_composer", composed, composed),
    ):
        shapes |= _linear(f"attachment_head.{name}.0", inner, inputs)
        shapes |= _linear(f"attachment_head.{name}.3", 2 * d, inner)
    for layer in range(LAYERS):
        place = f"trafo.encoder.layers.{layer}"
        shapes |= _linear(f"{place}.linear1", SETTING * d, d)
        shapes |= _linear(f"{place}.linear2", d, SETTING * d)
        shapes |= {f"{place}.norm{n}.{part}": (d,) for n in (1, 2) for part in ("weight", "bias")}
        shapes |= {
            f"{place}.self_attn.data_to_q.weight": (d, d),
            f"{place}.self_attn.data_to_kv.weight": (2 * d, d),
            f"{place}.self_attn.pos_to_pq.weight": (d, d),
            f"{place}.self_attn.multi_head_merge.weight": (d, d),
            f"{place}.self_attn.depth_embed.weight": (DEPTHS, d // 8),
        }
    generator = torch.Generator().manual_seed(seed)
    return {name: torch.randn(*shape, generator=generator) * 0.4 for name, shape in shapes.items()}


def _linear(name: str, outputs: int, inputs: int) -> dict[str, tuple[int, ...]]:
    return {f"{name}.weight": (outputs, inputs), f"{name}.bias": (outputs,)}


def write_checkpoint(folder: Path, extra: Iterable[str] = ()) -> dict[str, int]:
    """`model.pt`, `vocab.pkl` and a BPE in `bpe`; the vocabulary."""
    words = vocabulary_of(write_bpe(folder / "bpe"), extra)
    (folder / "vocab.pkl").write_bytes(pickled_vocabulary(words))
    torch.save({"step": 7, "state_dict": random_weights(len(words))}, folder / "model.pt")
    return words
