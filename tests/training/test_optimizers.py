"""Muon beside AdamW: its steps, its parts, and training that resumes."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
import torch
from torch import nn

from pushdown_lm.data.dataset import Data
from pushdown_lm.training.checkpoint import load_state, save_state
from pushdown_lm.training.optimizers import Muon, muon_parameters, muon_with_adamw, orthogonalize
from pushdown_lm.training.run import run_recipe
from tests.models import pushdown_model
from tests.tiny_training import read_log, tiny_data, tiny_recipe


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return tiny_data(tmp_path_factory.mktemp("data") / "tiny")


@pytest.mark.parametrize("shape", [(8, 8), (5, 20), (20, 5)])
def test_singular_values_go_to_about_one(shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    values = torch.linalg.svdvals(orthogonalize(torch.randn(shape)))
    assert values.min() > 0.3
    assert values.max() < 1.3


def test_steps_are_those_of_torch_but_for_its_bfloat16() -> None:
    torch.manual_seed(0)
    weight = nn.Parameter(torch.randn(6, 10))
    twin = nn.Parameter(weight.detach().clone())
    ours = Muon([weight], lr=0.1, weight_decay=0.2)
    theirs = torch.optim.Muon(
        [twin], lr=0.1, weight_decay=0.2, momentum=0.95, adjust_lr_fn="match_rms_adamw"
    )
    for _ in range(4):
        weight.grad = torch.randn(6, 10)
        twin.grad = weight.grad.clone()
        ours.step()
        theirs.step()
    torch.testing.assert_close(weight, twin, atol=0.02, rtol=0.02)


def test_matrices_of_linear_maps_are_muon_s_and_nothing_else() -> None:
    for kind in ("gpt2", "llama"):
        model = pushdown_model(kind)
        chosen = muon_parameters(model)
        named = dict(model.named_parameters())
        assert chosen <= named.keys()
        assert all(named[name].ndim == 2 for name in chosen)
        assert {"head.key.weight", "head.query.0.weight"} <= chosen
        left = named.keys() - chosen
        assert any("tape_embedding" in name for name in left)
        assert model.get_output_embeddings().weight is not None
        assert not any("lm_head" in name or "wte" in name or "wpe" in name for name in chosen)


def test_state_survives_a_checkpoint(tmp_path: Path) -> None:
    model = pushdown_model().float()

    def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
        return muon_with_adamw(
            model, ["head.key.weight"], lr=0.1, weight_decay=0.1, betas=(0.9, 0.99), epsilon=1e-8
        )

    def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        torch.manual_seed(1)
        for parameter in model.parameters():
            parameter.grad = torch.randn_like(parameter)
        optimizer.step()

    optimizer = optimizer_of(model)
    step(model, optimizer)
    save_state(tmp_path / "state", optimizer.state_dict())
    twin = copy.deepcopy(model)
    resumed = optimizer_of(twin)
    resumed.load_state_dict(load_state(tmp_path / "state"))
    for group, other in zip(optimizer.param_groups, resumed.param_groups, strict=True):
        group["lr"] = other["lr"] = 0.05
    step(model, optimizer)
    step(twin, resumed)
    for ours, theirs in zip(model.parameters(), twin.parameters(), strict=True):
        assert torch.equal(ours, theirs)


def test_training_with_muon_and_a_late_decay(data: Data, tmp_path: Path) -> None:
    recipe = tiny_recipe(
        "training.optimizer=muon", "training.schedule=wsd", "training.decay_share=0.5", steps=8
    )
    run_recipe(recipe, data, tmp_path / "run")
    rates = [record["learning_rate"] for record in read_log(tmp_path / "run", "train")]
    assert rates[recipe.training.warmup_steps + 1] == recipe.training.lr
    assert rates[-1] < rates[-2] < rates[-3] < recipe.training.lr
