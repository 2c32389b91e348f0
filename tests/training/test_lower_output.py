"""The kept output of frozen lower layers: the same losses and gradients as by the full path."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pushdown_lm.data.batching import Collator
from pushdown_lm.data.dataset import Data
from pushdown_lm.files import FolderError
from pushdown_lm.model.layers import lower_output as run_lower_layers
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.training import lower_output
from pushdown_lm.training.freezing import FreezingError
from pushdown_lm.training.lora import choose_trainable
from pushdown_lm.training.lower_output import (
    ExamplesWithOutput,
    LowerOutputError,
    OutputCollator,
    frozen_layers,
    keep_lower_output,
)
from pushdown_lm.training.recipe import LoraSection, Recipe, RecipeError
from pushdown_lm.training.run import run_recipe
from tests.models import decoder_config, pushdown_model
from tests.tiny_training import read_log, tiny_data, tiny_recipe

UPPER = ("model.pushdown_layers=last:1", "model.head_input=lower_layers", "training.dropout=0.0")
BASE = (
    "model.pushdown_layers=none",
    "model.attachment_head=null",
    "training.dropout=0.0",
)


def recipe(*overrides: str, cached: bool = True, steps: int = 4) -> Recipe:
    caching = f"training.cache_lower={str(cached).lower()}"
    return tiny_recipe("training.freeze=lower:1", caching, *overrides, steps=steps)


@pytest.fixture
def data(tmp_path: Path) -> Data:
    return tiny_data(tmp_path / "data")


def kept(data: Data) -> list[Path]:
    """The whole folders of kept output."""
    return sorted(path for path in (data.folder / "lower").iterdir() if path.name[0] != ".")


# ------------------------------------------------------------------ equality


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen3"])
@pytest.mark.parametrize("with_lora", [False, True])
def test_losses_and_gradients_are_those_of_the_full_path(
    kind: str, with_lora: bool, data: Data, tmp_path: Path
) -> None:
    vocabulary = len(data.tokenizer)
    model = pushdown_model(
        kind,
        vocabulary=vocabulary,
        pushdown_layers=[2],
        head_input="lower_layers",
        bos_token_id=data.tokenizer.bos_token_id,
        eos_token_id=data.tokenizer.eos_token_id,
    ).float()
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(0.5)  # far from saturation, where rounding would count for more
    lora = LoraSection(rank=2) if with_lora else None
    choose_trainable(model, "lower", lora)
    found = keep_lower_output(model, data, bf16=False)
    assert found.layers == 2
    examples = found.dataset("train", data.train)
    batch = OutputCollator(Collator(2))([examples[5], examples[0], examples[9]])
    exact = run_lower_layers(model.decoder, 2, input_ids=batch["input_ids"], use_cache=False)
    padding = batch["attention_mask"] == 0
    exact = exact.detach().masked_fill(padding[..., None], 0.0)
    torch.testing.assert_close(batch["lower_output"], exact.half().float(), rtol=0, atol=0)

    plain = {name: value for name, value in batch.items() if name != "lower_output"}
    whole = loss_and_gradients(model, plain)
    with found.used(model, {**plain, "lower_output": exact}):
        unrounded = loss_and_gradients(model, plain)
    with found.used(model, batch):
        rounded = loss_and_gradients(model, batch)
    assert whole.keys() == unrounded.keys() == rounded.keys()
    assert any("tape_embedding" in name for name in whole)
    assert with_lora == any("lora" in name for name in whole)
    for name, value in whole.items():
        torch.testing.assert_close(unrounded[name], value, rtol=1e-4, atol=1e-6, msg=name)
        difference = (rounded[name] - value).abs().max()
        assert difference <= 2e-2 * value.abs().max() + 1e-6, name
    assert not torch.equal(rounded["loss"], whole["loss"])  # rounding is all that differs


def loss_and_gradients(
    model: PushdownForCausalLM, batch: dict[str, torch.Tensor]
) -> dict[str, torch.Tensor]:
    model.zero_grad()
    outputs = model(**batch)
    outputs.loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return {"loss": outputs.loss.detach(), **gradients}


@pytest.mark.parametrize("kind", [UPPER, BASE])
def test_training_goes_as_by_the_full_path(
    kind: tuple[str, ...], data: Data, tmp_path: Path
) -> None:
    for name, cached in (("full", False), ("cached", True)):
        run_recipe(recipe(*kind, "training.eval_every=2", cached=cached), data, tmp_path / name)
    full, cached_log = read_log(tmp_path / "full"), read_log(tmp_path / "cached")
    assert len(full) == len(cached_log) == 4 + 2
    for one, other in zip(full, cached_log, strict=True):
        assert one.keys() == other.keys()
        for name, value in one.items():
            assert other[name] == (value if name == "kind" else pytest.approx(value, rel=2e-3))


def test_windows_and_bf16(tmp_path: Path) -> None:
    data = tiny_data(tmp_path / "data", window=64)
    bf16 = recipe(*UPPER, "training.precision=bf16", "training.batch_size=4", steps=2)
    metrics = run_recipe(bf16, data, tmp_path / "run")
    assert math.isfinite(metrics["loss"])
    run_recipe(recipe(*UPPER, "training.batch_size=4", steps=2), data, tmp_path / "float32")
    assert len(kept(data)) == 2  # each precision has its own


# ------------------------------------------------------------------ on disk


def test_models_with_equal_lower_layers_share_it(data: Data, tmp_path: Path) -> None:
    run_recipe(recipe(*UPPER), data, tmp_path / "pushdown")
    (folder,) = kept(data)
    times = {path: path.stat().st_mtime_ns for path in folder.iterdir()}
    assert {path.name for path in times} == {
        "train.npy",
        "valid.npy",
        "lower.json",
        "manifest.json",
    }
    total = sum(data.train["length"][:])
    assert np.load(folder / "train.npy", mmap_mode="r").shape == (total, 16)
    run_recipe(recipe(*BASE), data, tmp_path / "base")
    assert kept(data) == [folder]
    assert {path: path.stat().st_mtime_ns for path in folder.iterdir()} == times
    run_recipe(recipe(*UPPER, "training.seed=1"), data, tmp_path / "other")  # other weights
    assert len(kept(data)) == 2


def test_interrupted_computation_resumes(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lower_output, "TOKENS_PER_BATCH", 128)
    monkeypatch.setattr(lower_output, "TOKENS_PER_SAVE", 256)
    calls = 0

    def count_and_stop(*args: Any, **kwargs: Any) -> torch.Tensor:
        nonlocal calls
        calls += 1
        if calls == 9:
            raise KeyboardInterrupt
        return run_lower_layers(*args, **kwargs)

    monkeypatch.setattr(lower_output, "lower_output", count_and_stop)
    model = frozen_model(data)
    whole = tiny_data(tmp_path / "twin")
    with pytest.raises(KeyboardInterrupt):
        keep_lower_output(model, data, bf16=False)
    assert not kept(data)
    first, calls = calls, 100
    resumed = keep_lower_output(model, data, bf16=False)
    calls_of_rest, calls = calls - 100, 100
    twin = keep_lower_output(model, whole, bf16=False)
    calls_of_all = calls - 100
    assert calls_of_all - first < calls_of_rest < calls_of_all
    for name in ("train.npy", "valid.npy", "lower.json"):
        assert (resumed.folder / name).read_bytes() == (twin.folder / name).read_bytes()
    assert not list(resumed.folder.parent.glob(".unfinished*"))


def test_damaged_file_is_an_error(data: Data, tmp_path: Path) -> None:
    folder = keep_lower_output(frozen_model(data), data, bf16=False).folder
    with (folder / "train.npy").open("r+b") as file:
        file.seek(1000)
        file.write(b"\x01\x02")
    with pytest.raises(FolderError, match=r"train\.npy: its SHA-256"):
        run_recipe(recipe(*UPPER), data, tmp_path / "run")


def test_readers_of_other_processes_open_the_file_themselves(data: Data) -> None:
    found = keep_lower_output(frozen_model(data), data, bf16=False)
    examples: ExamplesWithOutput = found.dataset("valid", data.valid)
    assert examples[3]["lower_output"].shape == (data.valid[3]["length"], 16)  # type: ignore[index]
    assert examples["length"][:] == data.valid["length"][:]  # type: ignore[index]


# ------------------------------------------------------------------ what is refused


def frozen_model(data: Data) -> PushdownForCausalLM:
    chosen = recipe(*UPPER)
    torch.manual_seed(0)
    model = chosen.build_model(data.tokenizer)
    choose_trainable(model, "lower:1")
    return model


def test_values_beyond_float16(data: Data) -> None:
    model = frozen_model(data)
    with torch.no_grad():
        model.get_input_embeddings().weight.mul_(1e8)
    with pytest.raises(LowerOutputError, match="beyond 65,504"):
        keep_lower_output(model, data, bf16=False)
    assert not kept(data)


def test_what_is_trained_is_not_kept() -> None:
    model = pushdown_model(pushdown_layers=[1])
    with pytest.raises(LowerOutputError, match="expected frozen embeddings and frozen layers"):
        frozen_layers(model)
    choose_trainable(model, "lower:2")
    assert frozen_layers(model) == 1  # the second reads the parse
    model = pushdown_model(pushdown_layers=[])
    choose_trainable(model, "lower:2")
    assert frozen_layers(model) == 2


def test_recipes_that_cannot_keep_it() -> None:
    with pytest.raises(
        RecipeError, match=r"cache_lower: expected freeze lower or lower:N, got none"
    ):
        tiny_recipe("training.cache_lower=true")
    with pytest.raises(RecipeError, match=r"cache_lower, compile: .* choose one"):
        recipe("training.compile=true")


# ------------------------------------------------------------------ adapters above frozen layers


def test_adapters_above_frozen_layers_only() -> None:
    model = pushdown_model("llama", pushdown_layers=[2])
    choose_trainable(model, "lower", LoraSection(rank=2, targets=["q_proj", "up_proj"]))
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    assert {name for name in trained if "lora" in name} == {
        f"decoder.model.layers.2.{part}.lora_{side}.lora.weight"
        for part in ("self_attn.q_proj", "mlp.up_proj")
        for side in "AB"
    }
    assert all("lora" in name or "tape" in name or name.startswith("head") for name in trained)
    assert frozen_layers(model) == decoder_config("llama").num_hidden_layers - 1
    with pytest.raises(FreezingError, match="lower:9 of a decoder with 3 layers"):
        choose_trainable(pushdown_model(), "lower:9", LoraSection())
