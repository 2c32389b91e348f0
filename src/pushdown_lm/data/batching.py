"""Batches of examples: padding, and the samplers that draw them.

Shapes: B examples, T positions. The stack tape and the legal attachments are built by the model,
on its device, from the attachments.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor
from torch.utils.data import Sampler

from pushdown_lm.data.encoding import DataError

IGNORED = -100
"""The label of a token that is not scored."""


class Collator:
    """Pads examples on the right; padding attaches to itself and is not scored.

    >>> Collator(9)([{"input_ids": [1, 2], "attachments": [0, 0]}])["labels"].tolist()
    [[1, 2]]
    """

    def __init__(self, pad_id: int) -> None:
        self.pad_id = pad_id

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        lengths = np.array([len(example["input_ids"]) for example in examples])
        shape = len(examples), int(lengths.max())
        input_ids = np.full(shape, self.pad_id, dtype=np.int64)  # (B, T)
        attachments = np.tile(np.arange(shape[1]), (shape[0], 1))  # (B, T)
        for row, (example, length) in enumerate(zip(examples, lengths, strict=True)):
            input_ids[row, :length] = example["input_ids"]
            attachments[row, :length] = example["attachments"]
        is_token = np.arange(shape[1]) < lengths[:, None]
        return {
            "input_ids": torch.from_numpy(input_ids),
            "attachments": torch.from_numpy(attachments),
            "attention_mask": torch.from_numpy(is_token.astype(np.int64)),
            "labels": torch.from_numpy(np.where(is_token, input_ids, IGNORED)),
        }


class TokenBudgetBatches(Sampler[list[int]]):
    """Batches of examples of similar length whose padded size stays within a budget.

    Examples are sorted by length, longest first, and cut greedily, so the longest example of a
    batch is its first: `len(batch) * longest <= tokens_per_batch`. With `shuffle`, examples of
    equal length are in a new order every epoch, and so are the batches; the lengths at the cuts
    are not, so every epoch has the same number of batches. The order follows from (seed, epoch).
    Without `shuffle` every epoch goes from the longest examples to the shortest.

    Args:
        lengths: tokens of each example.
        tokens_per_batch: largest `examples x longest example` of a batch, padding included.
        max_sentences: largest number of examples of a batch.
        widths: what is padded, where that is not the tokens; examples of equal length are sorted by
            it, too.
    """

    def __init__(
        self,
        lengths: ArrayLike,
        tokens_per_batch: int,
        *,
        seed: int,
        shuffle: bool = True,
        max_sentences: int | None = None,
        widths: ArrayLike | None = None,
    ) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.widths = self.lengths if widths is None else np.asarray(widths, dtype=np.int64)
        self.tokens_per_batch = tokens_per_batch
        self.seed, self.shuffle, self.epoch = seed, shuffle, 0
        if max_sentences is not None and max_sentences < 1:
            raise DataError(f"max_sentences: expected at least 1, got {max_sentences}")
        longest = int(self.lengths.max(initial=0))
        if longest > tokens_per_batch:
            raise DataError(
                f"tokens_per_batch: expected at least {longest}, the length of the longest "
                f"example (number {int(self.lengths.argmax())}), got {tokens_per_batch}"
            )
        self._bounds = self._cut(max_sentences or len(self.lengths))

    def _cut(self, max_sentences: int) -> list[tuple[int, int]]:
        descending = -np.sort(-self.lengths)
        bounds, start = [], 0
        while start < len(descending):
            size = min(self.tokens_per_batch // max(1, int(descending[start])), max_sentences)
            bounds.append((start, min(start + size, len(descending))))
            start += size
        return bounds

    def set_epoch(self, epoch: int) -> None:
        """Choose the order of the next iteration."""
        self.epoch = epoch

    def __len__(self) -> int:
        return len(self._bounds)

    def __iter__(self) -> Iterator[list[int]]:
        if self.shuffle:
            generator = np.random.default_rng([self.seed, self.epoch])
            examples = generator.permutation(len(self.lengths))
            batches = generator.permutation(len(self._bounds))
        else:
            examples, batches = np.arange(len(self.lengths)), np.arange(len(self._bounds))
        order = np.lexsort((-self.widths[examples], -self.lengths[examples]))  # a stable sort
        examples = examples[order]
        for batch in batches:
            start, end = self._bounds[batch]
            yield examples[start:end].tolist()


class RandomBatches(Sampler[list[int]]):
    """All examples in an order that follows from the seed and the epoch, in batches of one size.

    The batches that one optimizer step reads share out its examples by length, the shortest to the
    first, so that there is less to pad.

    Args:
        lengths: tokens of each example.
        per_step: how many batches a step reads.
    """

    def __init__(
        self, lengths: ArrayLike, batch_size: int, *, seed: int, per_step: int = 1
    ) -> None:
        self.lengths = np.asarray(lengths, dtype=np.int64)
        self.batch_size, self.per_step = batch_size, per_step
        self.seed, self.epoch = seed, 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __len__(self) -> int:
        return math.ceil(len(self.lengths) / self.batch_size)

    def __iter__(self) -> Iterator[list[int]]:
        order = np.random.default_rng((self.seed, self.epoch)).permutation(len(self.lengths))
        whole_step = self.batch_size * self.per_step
        for first in range(0, len(order), whole_step):
            step = order[first : first + whole_step]
            if self.per_step > 1:
                step = step[np.argsort(self.lengths[step], kind="stable")]
            for start in range(0, len(step), self.batch_size):
                yield step[start : start + self.batch_size].tolist()


class Share(Sampler[list[int]]):
    """One process's share of the batches of an epoch: batches rank, rank + world, ...

    Every process gets the same number; the last round starts again from the first batches if
    there are too few. With two processes and the batches a, b, c:

    >>> batches = ["a", "b", "c"]
    >>> list(Share(batches, 0, 2)), list(Share(batches, 1, 2))
    (['a', 'c'], ['b', 'a'])
    """

    def __init__(self, batches: Any, rank: int, world: int) -> None:
        self.batches, self.rank, self.world = batches, rank, world

    def set_epoch(self, epoch: int) -> None:
        self.batches.set_epoch(epoch)

    def __len__(self) -> int:
        return math.ceil(len(self.batches) / self.world)

    def __iter__(self) -> Iterator[list[int]]:
        batches = list(self.batches)
        for index in range(self.rank, len(self) * self.world, self.world):
            yield batches[index % len(batches)]
