"""Examples to Arrow datasets on disk, with a SHA-256 of their content."""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain, islice
from pathlib import Path

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]

from pushdown_lm.console import Advance
from pushdown_lm.encoding import Sentence

EXAMPLES_PER_BATCH = 1000


class ExampleWriter:
    """Writes the examples of one split, a batch at a time.

    Columns: `input_ids` (int32 list), `attachments` (int16 list where positions fit, else int32)
    and `length` (int32). The digest does not depend on the types or the batches.
    """

    def __init__(self, folder: Path, split: str, *, longest: int) -> None:
        self.folder, self.split = folder, split
        self.num_examples = 0
        self.longest_example = 0
        self._schema = pa.schema(
            {
                "input_ids": pa.list_(pa.int32()),
                "attachments": pa.list_(pa.int16() if longest <= 1 << 15 else pa.int32()),
                "length": pa.int32(),
            }
        )
        self._digests = {name: hashlib.sha256() for name in self._schema.names}

    @property
    def digest(self) -> str:
        """SHA-256 of the split's name and of all columns, as 32-bit integers."""
        parts = [self.split, *[digest.hexdigest() for digest in self._digests.values()]]
        return hashlib.sha256(" ".join(parts).encode()).hexdigest()

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
        self._digests["length"].update(lengths.astype("<i4").tobytes())
        offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        columns = []
        for name in ("input_ids", "attachments"):
            values = np.array(list(chain(*(getattr(example, name) for example in batch))), "<i4")
            self._digests[name].update(values.tobytes())
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
