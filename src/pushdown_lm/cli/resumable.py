"""Output files that an interrupted command continues.

Results go to `FILE.partial`, which takes the name `FILE` once they are complete. Beside it,
`FILE.partial.json` tells, after every chunk of the input, how much of the input is done and which
settings made it. The same command finds both and resumes there; other settings, or input that
differs in the part that is done, start from the beginning.
"""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from pushdown_lm.files import FolderError, atomic_write, lock_file, write_json


@dataclass
class Output:
    """Where results go, and how many items of the input have theirs there."""

    file: IO[str]
    done: int = 0
    failed: int = 0
    """Items among them that were left out."""

    def save(self, done: int, failed: int = 0) -> None:
        """All results of the first `done` items have been written."""
        self.done, self.failed = done, failed
        self.file.flush()


class _PartialFile(Output):
    def __init__(
        self, file: IO[str], state: Path, items: Sequence[bytes], settings: dict[str, Any]
    ) -> None:
        super().__init__(file)
        self.state, self.items = state, items
        self.settings = json.loads(json.dumps(settings))
        self._digest = hashlib.sha256()
        self._resume()

    def save(self, done: int, failed: int = 0) -> None:
        self._hash(self.done, done)
        super().save(done, failed)
        os.fsync(self.file.fileno())
        record = {
            "done": done,
            "failed": failed,
            "bytes": self._size(),
            "input": self._digest.hexdigest(),
            "settings": self.settings,
        }
        write_json(self.state, record)

    def _resume(self) -> None:
        """Take over what is known to be complete, and drop what follows it."""
        record = self._read_state()
        if record is not None:
            self._hash(0, record["done"])
            if record["input"] == self._digest.hexdigest():
                self.done, self.failed = record["done"], record["failed"]
                self.file.truncate(record["bytes"])
                return
        self._digest = hashlib.sha256()
        self.file.truncate(0)

    def _read_state(self) -> dict[str, Any] | None:
        """What is done already, if it was done with these settings."""
        try:
            record = json.loads(self.state.read_text(encoding="utf-8"))
            same = record["settings"] == self.settings
            whole = record["bytes"] <= self._size() and record["done"] <= len(self.items)
            known = {"failed", "input"} <= record.keys()
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None
        return record if same and whole and known else None

    def _hash(self, start: int, end: int) -> None:
        for item in self.items[start:end]:
            self._digest.update(item)
            self._digest.update(b"\n")

    def _size(self) -> int:
        return os.fstat(self.file.fileno()).st_size


@contextmanager
def resumable_output(
    path: Path | None, items: Sequence[bytes], settings: Callable[[], dict[str, Any]]
) -> Iterator[Output]:
    """The output of a command that handles items one after the other.

    Args:
        path: the file to write; None, a device or a pipe is written to without resuming.
        items: the input.
        settings: all else that decides the results; called only where it is needed.
    """
    if path is None:
        yield Output(sys.stdout)
        return
    path = Path(os.path.realpath(path))
    if path.exists() and not path.is_file():
        with atomic_write(path) as file:
            yield Output(file)
        return
    partial = path.with_name(f"{path.name}.partial")
    state = path.with_name(f"{path.name}.partial.json")
    with partial.open("a", encoding="utf-8") as file:
        try:
            lock_file(file)
        except OSError:
            raise FolderError(f"{path}: another process is writing it") from None
        output = _PartialFile(file, state, items, settings())
        if output.done:
            print(f"Resuming after {output.done} of {len(items)} in {partial}", file=sys.stderr)
        try:
            yield output
        except BaseException:
            if output.done:
                print(
                    f"pushdown: {output.done} of {len(items)} are in {partial}; the same command "
                    "resumes there",
                    file=sys.stderr,
                )
            else:
                partial.unlink()
            raise
        file.flush()
        os.fsync(file.fileno())
        os.replace(partial, path)
        state.unlink(missing_ok=True)
