"""Models that read brackets through the same trainer, recipes and run folders."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

import pytest
import torch

from pushdown_lm.data.dataset import Data
from pushdown_lm.data.encoding import DataError
from pushdown_lm.data.tokenization import load_tokenizer
from pushdown_lm.model.bracket_modeling import BracketForCausalLM
from pushdown_lm.training.recipe import Recipe, RecipeError
from pushdown_lm.training.run import run_recipe
from tests.command_line import run_pushdown
from tests.tiny_training import read_log, tiny_data, tiny_recipe

LLAMA = "model.decoder={type: llama, intermediate_size: 32, num_key_value_heads: 2}"


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return tiny_data(tmp_path_factory.mktemp("data"), labels=True)


def bracket_recipe(kind: str, *overrides: str) -> Recipe:
    return tiny_recipe(f"model.kind={kind}", LLAMA, *overrides)


@pytest.mark.parametrize("kind", ["plm", "plm-mask", "tg"])
def test_training_learns_and_the_model_loads(kind: str, data: Data, tmp_path: Path) -> None:
    run_recipe(bracket_recipe(kind, "training.steps=30", "training.lr=1e-2"), data, tmp_path)
    losses = [record["lm_loss"] for record in read_log(tmp_path, "train")]
    assert losses[-1] < losses[0] - 1
    model = BracketForCausalLM.from_pretrained(tmp_path / "model")
    assert model.config.labels == data.labels
    assert model.config.kind == kind
    assert len(load_tokenizer(tmp_path / "model")) == model.config.nonterminals.end


def test_evaluation_is_the_model_s_own(data: Data, tmp_path: Path) -> None:
    metrics = run_recipe(bracket_recipe("tg", "training.eval_every=3"), data, tmp_path)
    model = BracketForCausalLM.from_pretrained(tmp_path / "model").eval()
    total = count = 0.0
    assert data.valid is not None
    for example in data.valid:
        ids = model.config.nonterminals.linearize(example["input_ids"], example["actions"])
        batch = torch.tensor([ids])
        with torch.no_grad():
            total += model(batch, labels=batch, num_items_in_batch=1).loss.item()
        count += model.count_targets(batch, batch)[0].item()
    assert metrics["loss"] == metrics["lm_loss"] == pytest.approx(total / count, rel=1e-5)
    assert metrics["perplexity"] == pytest.approx(math.exp(total / count), rel=1e-5)
    assert "attachment_loss" not in metrics


def test_resumed_run_ends_alike(data: Data, tmp_path: Path) -> None:
    recipe = bracket_recipe("plm-mask", "training.save_every=3", "training.dropout=0.1")
    run_recipe(recipe, data, tmp_path / "whole")
    shutil.copytree(tmp_path / "whole", tmp_path / "resumed")
    for name in ("model", "checkpoint-6"):
        shutil.rmtree(tmp_path / "resumed" / name)
    (tmp_path / "resumed" / "metrics.json").unlink()
    run_recipe(recipe, data, tmp_path / "resumed", resume=True)
    assert read_log(tmp_path / "whole") == read_log(tmp_path / "resumed")
    whole, resumed = (
        BracketForCausalLM.from_pretrained(tmp_path / run / "model").state_dict()
        for run in ("whole", "resumed")
    )
    assert all(torch.equal(whole[name], resumed[name]) for name in whole)


def test_what_cannot_be_trained(data: Data, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match=r"model.kind: tg needs a decoder with rotary positions"):
        run_recipe(tiny_recipe("model.kind=tg"), data, tmp_path / "gpt2")
    short = "model.decoder.max_position_embeddings=20"
    with pytest.raises(RecipeError, match=r"the longest example has \d+ tokens, the decoder takes"):
        run_recipe(bracket_recipe("plm", short), data, tmp_path / "short")
    with pytest.raises(DataError, match="build the dataset with --labels"):
        run_recipe(bracket_recipe("plm"), tiny_data(tmp_path / "plain"), tmp_path / "unlabeled")
    done = run_pushdown(
        "train", "plm", "--data", data.folder, "--out", tmp_path / "x", "--set", "model.kind=rnng"
    )
    assert done.exit_code == 2
    assert "model.kind: expected 'pushdown', 'plm', 'plm-mask' or 'tg', got 'rnng'" in done.error
