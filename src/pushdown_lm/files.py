"""Files and folders that are written whole or not at all, and files that are appended to.

A folder is written under a temporary name, listed in ``manifest.json`` with the SHA-256 of every
file, and then renamed; it is checked against that list before anything in it is used.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from safetensors import SafetensorError

from pushdown_lm.errors import PushdownError

MANIFEST = "manifest.json"
STAGING_PREFIX = ".unfinished-"
LOCK = ".lock"
"""Names the process that writes into a folder."""


class FolderError(PushdownError):
    """A folder that cannot be written, or is not what was written, with the file's name."""


@contextmanager
def atomic_write(path: str | Path, mode: str = "w") -> Iterator[IO[Any]]:
    """Open a temporary file beside ``path`` that takes its name once all is written.

    An error inside the block, a full disk included, leaves what was at ``path`` untouched. Links
    are followed, and what is no regular file (a device, a pipe) is written to as it is.
    """
    path = Path(os.path.realpath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    encoding = None if "b" in mode else "utf-8"
    if path.exists() and not path.is_file():
        with path.open(mode, encoding=encoding) as file:
            yield file
        return
    handle, name = tempfile.mkstemp(prefix=f".{path.name}.", dir=path.parent)
    try:
        with os.fdopen(handle, f"{mode}+", encoding=encoding) as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.chmod(name, 0o666 & ~_umask())
        os.replace(name, path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def check_writable(path: str | Path) -> None:
    """Raise :class:`FolderError` if :func:`atomic_write` could not write there; make its folder.

    For commands to call before work that would be lost otherwise.
    """
    path = Path(os.path.realpath(path))
    if path.is_dir():
        raise FolderError(f"{path}: expected a file to write, found a folder")
    if path.exists() and not path.is_file():
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
    except OSError as error:
        raise FolderError(f"{path}: cannot be written ({error.strerror})") from None


def check_folder_writable(folder: str | Path) -> None:
    """Raise :class:`FolderError` if files could not be written into ``folder``; make it."""
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder}: expected a folder to write to, found a file")
    check_writable(folder / "probe")


@contextmanager
def locked(folder: str | Path, what: str) -> Iterator[None]:
    """Keep other processes from using ``folder`` as ``what`` at the same time.

    The lock goes with the process, however it ends; the file names the process for messages.
    """
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / LOCK
    with path.open("a+", encoding="utf-8") as file:
        try:
            lock_file(file)
        except OSError:
            file.seek(0)
            owner = file.read(80).strip() or "another process"
            raise FolderError(f"{folder}: {owner} is writing this {what}") from None
        file.truncate(0)
        file.write(f"process {os.getpid()} on {platform.node()}\n")
        file.flush()
        try:
            yield
        finally:
            path.unlink(missing_ok=True)


def lock_file(file: IO[str]) -> None:
    """Lock a file for this process, or raise OSError; systems without such locks go without."""
    try:
        import fcntl
    except ImportError:
        return
    fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)


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


# ------------------------------------------------------------------ folders


def write_manifest(folder: str | Path) -> None:
    """List all files of a folder with their sizes and SHA-256 in ``manifest.json``."""
    folder = Path(folder)
    files = {
        path.relative_to(folder).as_posix(): {"bytes": path.stat().st_size, "sha256": _sha256(path)}
        for path in sorted(folder.rglob("*"))
        if path.is_file() and path.name != MANIFEST
    }
    write_json(folder / MANIFEST, {"files": files})


def verify_manifest(folder: str | Path) -> None:
    """Raise :class:`FolderError` unless every listed file is there, bit for bit."""
    folder = Path(folder)
    for name, (size, digest) in _read_manifest(folder).items():
        path = folder / name
        if not path.is_file():
            raise FolderError(f"{path}: missing, though {MANIFEST} lists it")
        if path.stat().st_size != size:
            raise FolderError(
                f"{path}: expected {size:,} bytes, found {path.stat().st_size:,}: "
                "the file is damaged"
            )
        if _sha256(path) != digest:
            raise FolderError(f"{path}: its SHA-256 is not that of {MANIFEST}: it is damaged")


def verify_if_listed(folder: str | Path) -> None:
    """:func:`verify_manifest` of a folder that has a manifest; others are taken as they are."""
    if Path(folder, MANIFEST).is_file():
        verify_manifest(folder)


def _read_manifest(folder: Path) -> dict[str, tuple[int, str]]:
    """Sizes and SHA-256 of the files that a manifest lists, all of them inside the folder."""
    manifest = folder / MANIFEST
    try:
        listed = json.loads(manifest.read_text(encoding="utf-8"))["files"]
        files = {
            str(name): (int(expected["bytes"]), str(expected["sha256"]))
            for name, expected in listed.items()
        }
    except FileNotFoundError:
        raise FolderError(f"{manifest}: missing, so the folder is not whole") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError):
        raise FolderError(f"{manifest}: not a manifest, so it is damaged") from None
    for name in files:
        if not is_inside(name):
            raise FolderError(f"{manifest}: expected files of this folder, found {name!r}")
    return files


def unlisted_files(folder: str | Path) -> list[Path]:
    """The files of a folder that its manifest does not list."""
    folder = Path(folder)
    listed = {folder / name for name in (*_read_manifest(folder), MANIFEST)}
    return sorted(path for path in folder.rglob("*") if path.is_file() and path not in listed)


def is_inside(name: str) -> bool:
    """Whether a relative path stays in the folder that it is relative to."""
    parts = Path(name).parts
    return bool(parts) and not Path(name).is_absolute() and ".." not in parts and "\0" not in name


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def whole_folder(
    folder: str | Path, *, is_main: bool = True, barrier: Callable[[], None] = lambda: None
) -> Iterator[Path]:
    """A temporary folder that takes the name ``folder``, with its manifest, once all is written.

    An error inside the block, a full disk included, leaves what was at ``folder`` untouched.

    Args:
        folder: the name in the end.
        is_main: of several processes that write into the folder, the one that renames it.
        barrier: waits for all of them.
    """
    folder = Path(folder)
    staging = folder.with_name(f"{STAGING_PREFIX}{folder.name}")
    try:
        if is_main:
            shutil.rmtree(staging, ignore_errors=True)
            staging.mkdir(parents=True)
        barrier()
        yield staging
        barrier()
        if is_main:
            finish_folder(staging, folder)
        barrier()
    except (OSError, SafetensorError) as error:
        raise FolderError(f"{folder}: could not be written ({error})") from error
    finally:
        if is_main:
            shutil.rmtree(staging, ignore_errors=True)


def finish_folder(staging: Path, folder: Path) -> None:
    """Seal a folder with its manifest, bring it to the disk, and give it its name."""
    write_manifest(staging)
    for path in [*staging.rglob("*"), staging]:
        _flush(path)
    if folder.exists():
        shutil.rmtree(folder)
    os.replace(staging, folder)
    _flush(folder.parent)


def _flush(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def remove_unfinished(run: str | Path) -> None:
    """Delete what killed processes left half-written in a run folder."""
    for path in Path(run).glob(f"{STAGING_PREFIX}*"):
        shutil.rmtree(path, ignore_errors=True)
