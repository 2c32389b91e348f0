"""Examples to Arrow datasets on disk, and the SHA-256 of their content."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]
from numpy.typing import NDArray

from pushdown_lm.console import Advance
from pushdown_lm.data.encoding import Sentence

if TYPE_CHECKING:
    from datasets import Dataset

EXAMPLES_PER_BATCH = 1000


class ContentDigest:
    """SHA-256 of the columns of a split, as 32-bit integers, however they are cut into batches."""

    def __init__(self, split: str, *, has_actions: bool = False) -> None:
        self.split = split
        self.lists = ["input_ids", "attachments", *["actions"] * has_actions]
        self._digests = {name: hashlib.sha256() for name in (*self.lists, "length")}

    @classmethod
    def of(cls, split: str, dataset: Dataset) -> ContentDigest:
        """The digest of a dataset on disk."""
        digest = cls(split, has_actions="actions" in dataset.column_names)
        for table in dataset.with_format("arrow").iter(EXAMPLES_PER_BATCH):
            for name in digest.lists:
                digest.update(name, table[name].combine_chunks().flatten().to_numpy())
            digest.update("length", table["length"].to_numpy())
        return digest

    def update(self, column: str, values: NDArray[np.integer]) -> None:
        self._digests[column].update(values.astype("<i4").tobytes())

    def hexdigest(self) -> str:
        parts = [self.split, *[digest.hexdigest() for digest in self._digests.values()]]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()


class ExampleWriter:
    """Writes the examples of one split, a batch at a time.

    Columns: `input_ids` (int32 list), `attachments` (int16 list where positions fit, else int32),
    `actions` (int16 list) where labels are kept, and `length` (int32).
    """

    def __init__(
        self, folder: Path, split: str, *, longest: int, has_actions: bool = False
    ) -> None:
        self.folder, self.split = folder, split
        self.num_examples = 0
        self.longest_example = 0
        self._schema = pa.schema(
            {
                "input_ids": pa.list_(pa.int32()),
                "attachments": pa.list_(pa.int16() if longest <= 1 << 15 else pa.int32()),
                **({"actions": pa.list_(pa.int16())} if has_actions else {}),
                "length": pa.int32(),
            }
        )
        self.digest = ContentDigest(split, has_actions=has_actions)

    def write(self, examples: Iterable[Sentence], advance: Advance) -> None:
        from datasets import Dataset

        stream = self.folder / f"{self.split}.arrow"
        examples = iter(examples)
        with pa.OSFile(str(stream), "wb") as file, pa.ipc.new_stream(file, self._schema) as writer:
            while batch := list(islice(examples, EXAMPLES_PER_BATCH)):
                writer.write_batch(self._record_batch(batch))
                advance(len(batch))
        target = self.folder / self.split
        shutil.rmtree(target, ignore_errors=True)
        with _no_progress_bars():
            Dataset.from_file(str(stream)).save_to_disk(str(target))
        stream.unlink()

    def _record_batch(self, batch: list[Sentence]) -> pa.RecordBatch:
        lengths = np.array([len(example.input_ids) for example in batch], dtype=np.int32)
        self.num_examples += len(batch)
        self.longest_example = max(self.longest_example, int(lengths.max()))
        self.digest.update("length", lengths)
        columns = []
        for name in self.digest.lists:
            lists = [getattr(example, name) for example in batch]
            offsets = np.cumsum([0, *map(len, lists)], dtype=np.int32)
            values = np.array(list(chain.from_iterable(lists)), dtype=np.int32)
            self.digest.update(name, values)
            element = self._schema.field(name).type.value_type
            columns.append(
                pa.ListArray.from_arrays(pa.array(offsets), pa.array(values).cast(element))
            )
        return pa.RecordBatch.from_arrays([*columns, pa.array(lengths)], schema=self._schema)


@contextmanager
def _no_progress_bars() -> Iterator[None]:
    """Keep `datasets` from drawing a bar of its own."""
    import datasets

    were_disabled = datasets.utils.are_progress_bars_disabled()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        if not were_disabled:
            datasets.enable_progress_bars()
