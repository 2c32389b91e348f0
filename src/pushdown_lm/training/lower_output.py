"""Cheap adaptation: what frozen lower layers compute, once for every example, kept on disk.

Layers below the first pushdown layer do not depend on the parse. While they and the embeddings are
frozen, their output for a sentence or window is always the same, so it is computed once, and
training runs the upper layers only:

    DATA/lower/KEY/train.npy, valid.npy    float16, the rows of all examples in order: (tokens, d)
    DATA/lower/KEY/lower.json              what they were computed from

The key is made of the fingerprints of the data and of the frozen weights, so that models with equal
lower layers share the files, a Base-LM and a Pushdown-LM for one. A folder under its own name is
whole and is checked against its manifest; an interrupted computation resumes where it left off.

Differences from the full path: the rows are rounded to float16, and computed without dropout.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, cast

import numpy as np
import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.utils.data import Dataset

from pushdown_lm.console import progress
from pushdown_lm.data.batching import Collator, TokenBudgetBatches
from pushdown_lm.errors import PushdownError
from pushdown_lm.files import (
    STAGING_PREFIX,
    FolderError,
    finish_folder,
    locked,
    verify_manifest,
    write_json,
)
from pushdown_lm.model.layers import decoder_blocks, lower_output, replaced_layers
from pushdown_lm.model.modeling import PushdownForCausalLM

LOWER_OUTPUT = "lower_output"
"""The rows of an example, and of a batch."""
FOLDER, CARD = "lower", "lower.json"
TOKENS_PER_BATCH = 4096
TOKENS_PER_SAVE = 65_536
"""How much is computed again, at most, after an interruption."""
_UNRELATED = frozenset(
    [
        *("_name_or_path", "architectures", "dtype", "transformers_version", "use_cache"),
        *("bos_token_id", "eos_token_id", "pad_token_id", "num_hidden_layers"),
    ]
)
"""Fields of a decoder's configuration that its lower layers do not depend on."""


class LowerOutputError(PushdownError):
    """Lower layers whose output cannot be kept."""


# ------------------------------------------------------------------ in training


@dataclass(frozen=True)
class LowerOutput:
    """The kept output of the lowest layers for all splits of a dataset."""

    folder: Path
    layers: int

    def dataset(self, split: str, examples: Any) -> ExamplesWithOutput:
        """The examples of a split with their rows."""
        return ExamplesWithOutput(examples, self.folder / f"{split}.npy")

    @contextmanager
    def used(self, model: PushdownForCausalLM, batch: dict[str, Tensor]) -> Iterator[None]:
        """Run a model on a batch, whose rows are taken out, without its lowest layers."""
        rows = batch.pop(LOWER_OUTPUT)
        with replaced_layers(model.decoder, self.layers, lambda *_, **__: rows):
            yield


class ExamplesWithOutput(Dataset[dict[str, Any]]):
    """Examples of an Arrow dataset, each with its rows of a memory-mapped file."""

    def __init__(self, examples: Any, path: Path) -> None:
        self.examples, self.path = examples, path
        self.ends = np.cumsum(np.asarray(examples["length"][:], dtype=np.int64))
        self._rows: np.ndarray[Any, np.dtype[np.float16]] | None = None

    def __len__(self) -> int:
        return len(self.ends)

    def __getitem__(self, index: int | str) -> Any:
        """An example by its number, or a column of all examples by its name."""
        return self.examples[index] if isinstance(index, str) else self.__getitems__([index])[0]

    def __getitems__(self, indices: Sequence[int]) -> list[dict[str, Any]]:
        if self._rows is None:  # in the process that reads, which need not be the first
            self._rows = np.load(self.path, mmap_mode="r", allow_pickle=False)
        examples = self.examples.__getitems__(list(indices))
        return [
            {
                **example,
                LOWER_OUTPUT: self._rows[self.ends[index] - example["length"] :][
                    : example["length"]
                ],
            }
            for index, example in zip(indices, examples, strict=True)
        ]


class OutputCollator:
    """Pads examples as :class:`Collator` does, and their rows with zeros, in float32."""

    def __init__(self, collator: Collator) -> None:
        self.collator = collator

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        batch = self.collator(examples)
        width = examples[0][LOWER_OUTPUT].shape[1]
        rows = np.zeros((*batch["input_ids"].shape, width), dtype=np.float32)  # (B, T, d)
        for padded, example in zip(rows, examples, strict=True):
            padded[: len(example[LOWER_OUTPUT])] = example[LOWER_OUTPUT]
        return {**batch, LOWER_OUTPUT: torch.from_numpy(rows)}


# ------------------------------------------------------------------ what may be kept


def frozen_layers(model: PushdownForCausalLM) -> int:
    """How many of the lowest layers neither depend on the parse nor are trained."""
    blocks = decoder_blocks(model.decoder)
    if model.config.pushdown_layers:
        blocks = blocks[: model.config.num_lower_layers]
    trained = [any(weight.requires_grad for weight in block.parameters()) for block in blocks]
    count = [*trained, True].index(True)
    embeddings = model.get_input_embeddings()
    if not count or any(weight.requires_grad for weight in embeddings.parameters()):
        raise LowerOutputError(
            "cache_lower: expected frozen embeddings and frozen layers below the first pushdown "
            "layer; training.freeze=lower or lower:N freezes them"
        )
    return count


def lower_fingerprint(model: PushdownForCausalLM, layers: int) -> str:
    """SHA-256 of the weights and the settings that the output of the lowest layers depends on."""
    decoder = model.decoder
    settings = {
        name: value
        for name, value in decoder.config.to_dict().items()
        if name not in _UNRELATED and "drop" not in name
    }
    digest = hashlib.sha256(json.dumps([layers, settings], sort_keys=True, default=str).encode())
    kept: list[nn.Module] = [
        *(module for module in decoder.modules() if isinstance(module, nn.Embedding)),
        *decoder_blocks(decoder)[:layers],
    ]
    for number, module in enumerate(kept):
        for name, weight in module.state_dict().items():
            digest.update(f"{number} {name} {tuple(weight.shape)} {weight.dtype}".encode())
            digest.update(weight.detach().cpu().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


# ------------------------------------------------------------------ computing it


class Examples(Protocol):
    """A dataset, or whatever else has examples with ``input_ids`` and their ``length``."""

    @property
    def folder(self) -> Path: ...
    @property
    def fingerprint(self) -> str: ...
    @property
    def splits(self) -> Mapping[str, Any]: ...


def keep_lower_output(model: PushdownForCausalLM, data: Examples, *, bf16: bool) -> LowerOutput:
    """The output of the frozen layers of a model on all examples: opened, or else computed.

    Args:
        bf16: whether it is computed in bfloat16, as the training that uses it will be.
    """
    layers = frozen_layers(model)
    card = {
        "data": data.fingerprint,
        "model": lower_fingerprint(model, layers),
        "layers": layers,
        "precision": "bf16" if bf16 else "float32",
    }
    key = hashlib.sha256(json.dumps(card).encode()).hexdigest()[:16]
    folder = data.folder / FOLDER / key
    with PartialState().main_process_first():
        if not folder.is_dir():
            with locked(folder.parent, "output of lower layers"):
                _compute(model, data, layers, folder, card)
        verify_manifest(folder)
    return LowerOutput(folder, layers)


def _compute(
    model: PushdownForCausalLM, data: Examples, layers: int, folder: Path, card: Mapping[str, Any]
) -> None:
    """Fill a folder under a temporary name, or go on filling it, and give it its name."""
    staging = folder.with_name(f"{STAGING_PREFIX}{folder.name}")
    autocast: AbstractContextManager[Any] = nullcontext()
    model = model.to(PartialState().device)
    if card["precision"] == "bf16":
        autocast = torch.autocast(model.device.type, torch.bfloat16)
    was_training = model.training
    model.eval()
    try:
        staging.mkdir(parents=True, exist_ok=True)
        with torch.inference_mode(), autocast:
            for split, examples in data.splits.items():
                if split != "test":
                    _compute_split(model, layers, examples, staging / f"{split}.npy")
        for state in staging.glob("*.json"):
            state.unlink()
        write_json(staging / CARD, card)
        finish_folder(staging, folder)
    except OSError as error:
        shutil.rmtree(staging, ignore_errors=True)
        raise FolderError(f"{folder}: could not be written ({error})") from error
    finally:
        model.train(was_training)


def _compute_split(model: PushdownForCausalLM, layers: int, examples: Any, path: Path) -> None:
    """Write the rows of all examples, batch by batch, noting how far it has come."""
    lengths = np.asarray(examples["length"][:], dtype=np.int64)
    ends, width = np.cumsum(lengths), model.config.decoder.hidden_size
    state, done = path.with_suffix(".json"), 0
    if state.is_file():
        done = int(json.loads(state.read_text(encoding="utf-8")))
        rows = np.load(path, mmap_mode="r+", allow_pickle=False)
    else:
        rows = _new_file(path, (int(lengths.sum()), width))
    budget = max(TOKENS_PER_BATCH, int(lengths.max()))
    batches = list(TokenBudgetBatches(lengths, budget, seed=0, shuffle=False))
    collate = Collator(model.config.pad_id)
    unsaved = 0
    with progress(f"Lower layers, {path.stem}", int(lengths.sum()), "tokens") as advance:
        for number, batch in enumerate(batches):
            tokens = int(lengths[batch].sum())
            if number >= done:
                ids = collate(examples.__getitems__(batch))["input_ids"].to(model.device)
                output = lower_output(model.decoder, layers, input_ids=ids, use_cache=False)
                for index, found in zip(batch, _as_float16(output), strict=True):
                    rows[ends[index] - lengths[index] : ends[index]] = found[: lengths[index]]
                unsaved += tokens
                if unsaved >= TOKENS_PER_SAVE or number == len(batches) - 1:
                    cast(np.memmap[Any, Any], rows).flush()
                    write_json(state, number + 1)
                    unsaved = 0
            advance(tokens)


def _new_file(path: Path, shape: tuple[int, int]) -> np.ndarray[Any, np.dtype[np.float16]]:
    """A memory-mapped file with its room on the disk: a full disk is an error here, not later."""
    rows: Any = np.lib.format.open_memmap(path, mode="w+", dtype=np.float16, shape=shape)
    if hasattr(os, "posix_fallocate"):
        with path.open("r+b") as file:
            os.posix_fallocate(file.fileno(), 0, path.stat().st_size)
    return cast(np.ndarray[Any, np.dtype[np.float16]], rows)


def _as_float16(output: Tensor) -> np.ndarray[Any, np.dtype[np.float16]]:
    largest = torch.finfo(torch.float16).max
    if not bool((output.abs() <= largest).all()):
        raise LowerOutputError(
            f"cache_lower: the lower layers' output has values beyond {largest:,.0f}, the largest "
            "of float16; train without cache_lower"
        )
    return output.to(torch.float16).cpu().numpy()
