"""Checkpoints: weights and training state in folders that are whole or not there at all.

The state of the optimizer, the schedule and the random generators is kept as safetensors, like the
weights, so that nothing is ever unpickled.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file

from pushdown_lm.files import FolderError, unlisted_files, verify_manifest

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from pushdown_lm.model.modeling import PushdownForCausalLM


class CheckpointError(FolderError):
    """A checkpoint that cannot be used, with the file's name."""


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
        if strays := unlisted_files(found[-1]):
            raise FolderError(f"{strays[0]}: a file that the checkpoint was not saved with")
    except FolderError as error:
        raise CheckpointError(f"{error}; {_intact(found[:-1])}") from None
    return found[-1]


def _intact(candidates: list[Path]) -> str:
    for path in reversed(candidates):
        try:
            verify_manifest(path)
        except FolderError:
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

    from pushdown_lm.model.loading import load_weights
    from pushdown_lm.model.modeling import PushdownForCausalLM

    model = load_weights(PushdownForCausalLM, folder, **options)
    return model, AutoTokenizer.from_pretrained(folder, trust_remote_code=False)


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
