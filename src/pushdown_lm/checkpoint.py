"""Folders of weights and training state that are whole or not there at all.

A checkpoint is written under a temporary name, listed in ``manifest.json`` with the SHA-256 of
every file, and then renamed. It is checked against that list before anything in it is used. The
state of the optimizer, the schedule and the random generators is kept as safetensors too, so that
nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from pushdown_lm.errors import PushdownError
from pushdown_lm.files import write_json

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from pushdown_lm.modeling import PushdownForCausalLM

MANIFEST = "manifest.json"
STAGING_PREFIX = ".unfinished-"


class CheckpointError(PushdownError):
    """A checkpoint that cannot be written, or is not what was written, with the file's name."""


# ------------------------------------------------------------------ manifest


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
    """Raise :class:`CheckpointError` unless every listed file is there, bit for bit."""
    folder = Path(folder)
    try:
        files = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))["files"]
    except FileNotFoundError:
        raise CheckpointError(f"{folder / MANIFEST}: missing, so the folder is not whole") from None
    except (ValueError, KeyError, TypeError):
        raise CheckpointError(f"{folder / MANIFEST}: not a manifest, so it is damaged") from None
    for name, expected in files.items():
        path = folder / name
        if not path.is_file():
            raise CheckpointError(f"{path}: missing, though {MANIFEST} lists it")
        if path.stat().st_size != expected["bytes"]:
            raise CheckpointError(
                f"{path}: expected {expected['bytes']:,} bytes, found {path.stat().st_size:,}: "
                "the file is damaged"
            )
        if _sha256(path) != expected["sha256"]:
            raise CheckpointError(f"{path}: its SHA-256 is not that of {MANIFEST}: it is damaged")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# ------------------------------------------------------------------ folders


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
            _finish(staging, folder)
        barrier()
    except (OSError, SafetensorError) as error:
        raise CheckpointError(f"{folder}: could not be written ({error})") from error
    finally:
        if is_main:
            shutil.rmtree(staging, ignore_errors=True)


def _finish(staging: Path, folder: Path) -> None:
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


def checkpoints(run: str | Path) -> list[Path]:
    """The checkpoints of a run folder, oldest first."""
    steps = {
        path: int(match[1])
        for path in Path(run).glob("checkpoint-*")
        if (match := re.fullmatch(r"checkpoint-(\d+)", path.name)) and path.is_dir()
    }
    return sorted(steps, key=steps.__getitem__)


def last_checkpoint(run: str | Path) -> Path:
    """The newest checkpoint of a run folder, verified.

    A damaged one is an error that names the newest intact one; nothing older is taken silently.
    """
    found = checkpoints(run)
    if not found:
        raise CheckpointError(f"{run}: expected a checkpoint to resume from, found none")
    try:
        verify_manifest(found[-1])
    except CheckpointError as error:
        raise CheckpointError(f"{error}; {_intact(found[:-1])}") from None
    return found[-1]


def _intact(candidates: list[Path]) -> str:
    for path in reversed(candidates):
        try:
            verify_manifest(path)
        except CheckpointError:
            continue
        return f"{path.name} is intact: to resume from it, delete what is newer"
    return "no older checkpoint is intact"


def load_model(
    folder: str | Path, **options: Any
) -> tuple[PushdownForCausalLM, PreTrainedTokenizerBase]:
    """The model and the tokenizer of a folder that training wrote, after verifying its files.

    Args:
        folder: ``model/`` of a run, or a checkpoint.
        options: as for ``PushdownForCausalLM.from_pretrained``.
    """
    from transformers import AutoTokenizer

    from pushdown_lm.modeling import PushdownForCausalLM

    verify_manifest(folder)
    model = PushdownForCausalLM.from_pretrained(folder, **options)
    return model, AutoTokenizer.from_pretrained(folder)


# ------------------------------------------------------------------ training state


def save_state(path: str | Path, state: Any) -> None:
    """Write nested dictionaries, lists, numbers, text and tensors as one safetensors file.

    The tensors are stored as such, and everything around them as JSON in the file's header. Tuples
    come back as lists.
    """
    tensors: dict[str, torch.Tensor] = {}
    structure = _take_tensors(state, tensors)
    save_file(tensors, path, metadata={"state": json.dumps(structure)})


def load_state(path: str | Path) -> Any:
    """What :func:`save_state` wrote."""
    try:
        with safe_open(path, framework="pt") as file:
            structure = json.loads(file.metadata()["state"])
            return _put_tensors(structure, {name: file.get_tensor(name) for name in file.keys()})  # noqa: SIM118
    except (SafetensorError, KeyError, TypeError, ValueError) as error:
        raise CheckpointError(f"{path}: not a training state ({error})") from error


def _take_tensors(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, torch.Tensor):
        name = str(len(tensors))
        tensors[name] = value.detach().cpu().contiguous().clone()
        return {"tensor": name}
    if isinstance(value, dict):
        pairs = [[key, _take_tensors(item, tensors)] for key, item in value.items()]
        return {"dict": pairs}
    if isinstance(value, list | tuple):
        return [_take_tensors(item, tensors) for item in value]
    return value


def _put_tensors(value: Any, tensors: dict[str, torch.Tensor]) -> Any:
    if isinstance(value, dict):
        if "tensor" in value:
            return tensors[value["tensor"]]
        return {key: _put_tensors(item, tensors) for key, item in value["dict"]}
    if isinstance(value, list):
        return [_put_tensors(item, tensors) for item in value]
    return value


# ------------------------------------------------------------------ random generators


def random_state(device: torch.device) -> dict[str, torch.Tensor]:
    """The state of torch's generators, the only ones that training draws from."""
    state = {"cpu": torch.get_rng_state()}
    if device.type != "cpu":
        state["device"] = torch.get_device_module(device.type).get_rng_state()
    return state


def set_random_state(state: Mapping[str, torch.Tensor], device: torch.device) -> None:
    """Go back to what :func:`random_state` returned."""
    torch.set_rng_state(state["cpu"])
    if "device" in state and device.type != "cpu":
        torch.get_device_module(device.type).set_rng_state(state["device"])
