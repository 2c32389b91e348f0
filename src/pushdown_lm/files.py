"""Files that are written whole or not at all, and files that are appended to."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from pushdown_lm.errors import PushdownError


@contextmanager
def atomic_write(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file beside ``path`` that takes its name once all is written.

    An error inside the block, a full disk included, leaves what was at ``path`` untouched.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    encoding = None if "b" in mode else "utf-8"
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, mode, encoding=encoding) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def write_json(path: str | Path, value: Any) -> None:
    """Write ``value`` as indented JSON, atomically."""
    with atomic_write(path) as file:
        json.dump(value, file, indent=2, ensure_ascii=False, sort_keys=False)
        file.write("\n")


def read_appended(path: Path, what: str, fields: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    """These fields of each record of a JSON Lines file that is appended to.

    A last line that a crash cut short is removed from the file; any other bad line is an error,
    which says that ``what`` was expected.
    """
    text = path.read_bytes()
    complete = text[: text.rfind(b"\n") + 1]
    if len(complete) < len(text):
        with path.open("r+b") as file:
            file.truncate(len(complete))
    for number, line in enumerate(complete.splitlines(), start=1):
        try:
            record = json.loads(line)
            values = tuple(record[field] for field in fields)
        except (ValueError, KeyError, TypeError) as error:
            raise PushdownError(
                f"{path}:{number}: expected {what} ({', '.join(fields)}), got {line[:60]!r}"
            ) from error
        yield values


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
