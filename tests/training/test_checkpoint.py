"""Checkpoints: manifests, whole folders, training state without pickles."""

from __future__ import annotations

import errno
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import get_cosine_schedule_with_warmup

from pushdown_lm.files import (
    FolderError,
    remove_unfinished,
    verify_manifest,
    whole_folder,
    write_manifest,
)
from pushdown_lm.training.checkpoint import (
    CheckpointError,
    checkpoints,
    last_checkpoint,
    load_state,
    random_state,
    save_state,
    set_random_state,
)


def make_folder(folder: Path) -> Path:
    (folder / "inner").mkdir(parents=True)
    (folder / "weights.bin").write_bytes(bytes(range(256)) * 3)
    (folder / "inner" / "state.json").write_text("{}")
    write_manifest(folder)
    return folder


def test_manifest_holds_for_what_was_written(tmp_path: Path) -> None:
    verify_manifest(make_folder(tmp_path / "a"))


@given(position=st.integers(0, 767), bit=st.integers(0, 7))
def test_any_flipped_bit_is_found(tmp_path: Path, position: int, bit: int) -> None:
    folder = tmp_path / "a"
    if not folder.exists():
        make_folder(folder)
    path = folder / "weights.bin"
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[position] ^= 1 << bit
    path.write_bytes(damaged)
    with pytest.raises(FolderError, match=r"weights\.bin: its SHA-256"):
        verify_manifest(folder)
    path.write_bytes(whole)
    verify_manifest(folder)


def test_truncated_and_missing_files_are_named(tmp_path: Path) -> None:
    folder = make_folder(tmp_path / "a")
    (folder / "weights.bin").write_bytes(b"\0" * 100)
    with pytest.raises(FolderError, match=r"weights\.bin: expected 768 bytes, found 100"):
        verify_manifest(folder)
    (folder / "weights.bin").unlink()
    with pytest.raises(FolderError, match=r"weights\.bin: missing"):
        verify_manifest(folder)
    (folder / "manifest.json").write_text("[")
    with pytest.raises(FolderError, match=r"manifest\.json: not a manifest"):
        verify_manifest(folder)
    (folder / "manifest.json").unlink()
    with pytest.raises(FolderError, match=r"manifest\.json: missing"):
        verify_manifest(folder)


def test_folder_appears_whole_with_its_manifest(tmp_path: Path) -> None:
    with whole_folder(tmp_path / "model") as staging:
        (staging / "a").write_text("new")
        assert not (tmp_path / "model").exists()
    verify_manifest(tmp_path / "model")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_failed_folder_leaves_the_earlier_one(tmp_path: Path) -> None:
    def fill_the_disk(text: str) -> None:
        with whole_folder(tmp_path / "model") as staging:
            (staging / "a").write_text(text)
            if text == "new":
                raise OSError(errno.ENOSPC, "No space left on device")

    fill_the_disk("old")
    with pytest.raises(FolderError, match=r"model: could not be written .*No space left"):
        fill_the_disk("new")
    verify_manifest(tmp_path / "model")
    assert (tmp_path / "model" / "a").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_checkpoints_are_ordered_by_step(tmp_path: Path) -> None:
    for name in ("checkpoint-10", "checkpoint-9", "checkpoint-x", ".unfinished-checkpoint-11"):
        (tmp_path / name).mkdir()
    assert [path.name for path in checkpoints(tmp_path)] == ["checkpoint-9", "checkpoint-10"]
    remove_unfinished(tmp_path)
    assert not (tmp_path / ".unfinished-checkpoint-11").exists()


def test_damaged_last_checkpoint_is_an_error_that_names_the_intact_one(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="found none"):
        last_checkpoint(tmp_path)
    for step in (1, 2, 3):
        make_folder(tmp_path / f"checkpoint-{step}")
    assert last_checkpoint(tmp_path).name == "checkpoint-3"
    for step, older in ((3, "checkpoint-2 is intact"), (2, "checkpoint-1 is intact")):
        (tmp_path / f"checkpoint-{step}" / "weights.bin").write_bytes(b"short")
        with pytest.raises(CheckpointError, match=rf"checkpoint-3.weights\.bin.*{older}"):
            last_checkpoint(tmp_path)
    (tmp_path / "checkpoint-1" / "weights.bin").write_bytes(b"short")
    with pytest.raises(CheckpointError, match="no older checkpoint is intact"):
        last_checkpoint(tmp_path)


SCALARS = (
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5)
)
STATES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.text(max_size=5) | st.integers(), inner, max_size=3)
    ),
)


@given(state=STATES)
def test_state_comes_back_as_it_was(tmp_path: Path, state: Any) -> None:
    save_state(tmp_path / "state.safetensors", state)
    assert load_state(tmp_path / "state.safetensors") == state


def test_optimizer_and_schedule_go_on_from_their_state(tmp_path: Path) -> None:
    def start() -> tuple[torch.nn.Module, torch.optim.Optimizer, Any]:
        torch.manual_seed(0)
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, fused=True)
        return model, optimizer, get_cosine_schedule_with_warmup(optimizer, 2, 9)

    def go_on(model: torch.nn.Module, optimizer: torch.optim.Optimizer, schedule: Any) -> None:
        for _ in range(3):
            model(torch.ones(3)).square().sum().backward()
            optimizer.step()
            schedule.step()
            optimizer.zero_grad()

    model, optimizer, schedule = start()
    go_on(model, optimizer, schedule)
    state = {"optimizer": optimizer.state_dict(), "schedule": schedule.state_dict()}
    save_state(tmp_path / "state.safetensors", state)
    other_model, other_optimizer, other_schedule = start()
    other_model.load_state_dict(model.state_dict())
    loaded = load_state(tmp_path / "state.safetensors")
    other_optimizer.load_state_dict(loaded["optimizer"])
    other_schedule.load_state_dict(loaded["schedule"])
    go_on(model, optimizer, schedule)
    go_on(other_model, other_optimizer, other_schedule)
    for ours, theirs in zip(model.parameters(), other_model.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_random_state_comes_back(tmp_path: Path) -> None:
    device = torch.device("cpu")
    torch.rand(3)
    save_state(tmp_path / "random.safetensors", random_state(device))
    expected = torch.rand(5)
    set_random_state(load_state(tmp_path / "random.safetensors"), device)
    assert torch.equal(torch.rand(5), expected)


def test_state_that_is_none(tmp_path: Path) -> None:
    path = tmp_path / "state.safetensors"
    path.write_bytes(b"not safetensors")
    with pytest.raises(CheckpointError, match=r"state\.safetensors: not a training state"):
        load_state(path)
