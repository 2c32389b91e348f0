"""The Dyck experiment from strings to table, on tiny models."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pushdown_lm.cli.app import main
from pushdown_lm.corpora.dyck import Dyck, bracket_tokenizer
from pushdown_lm.experiments.dyck import (
    ABLATIONS,
    ROWS,
    VARIANTS,
    DyckOptions,
    ReproductionError,
    choose_models,
    choose_rows,
    reproduce_dyck,
)
from pushdown_lm.experiments.dyck_report import curve, markdown, paper_table
from pushdown_lm.training.recipe import load_recipe

TINY = (
    "model.decoder.num_hidden_layers=2",
    "model.decoder.hidden_size=16",
    "model.decoder.intermediate_size=16",
    "model.decoder.num_attention_heads=2",
    "training.steps=2",
    "training.tokens_per_batch=600",
    "training.eval_every=null",
)
OPTIONS = DyckOptions(
    strings=60, held_out=10, rows=("nesting-15-50",), items=3, beam=2, overrides=TINY
)


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the results of two models, and their runs."""
    folder = tmp_path_factory.mktemp("dyck")
    reproduce_dyck(folder / "out", folder / "runs", ["base", "open"], [0], OPTIONS, "pushdown x")
    return folder


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "out" / "results.json").read_text())


def test_results(finished: Path) -> None:
    found = results(finished)
    assert list(found["models"]) == ["base", "open"]
    assert found["rows"] == {"nesting-15-50": "nesting 15-50"}
    assert found["commands"] == ["pushdown x"]
    assert found["versions"]["torch"] == torch.__version__
    for model in ("base", "open"):
        row = found["seeds"]["0"][model]["rows"]["nesting-15-50"]
        assert row["items"] == len(row["answers"]) == len(row["difficulty"].split()) == 3
        assert row["correct"] == row["answers"].count("1")
        training = found["seeds"]["0"][model]["training"]
        assert (training["steps"], training["tokens"]) == (2, 1200)
    assert (finished / "out" / "accuracy.png").read_bytes().startswith(b"\x89PNG")


def test_what_is_finished_is_not_done_again(
    finished: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise AssertionError("trained or tested again")

    before = results(finished)
    with monkeypatch.context() as patch:
        patch.setattr("pushdown_lm.training.run.run_recipe", fail)
        patch.setattr("pushdown_lm.evals.dyck.evaluate_dyck", fail)
        reproduce_dyck(finished / "out", finished / "runs", ["base", "open"], [0], OPTIONS)
    assert results(finished)["seeds"] == before["seeds"]


def test_models_whose_runs_are_elsewhere_stay(finished: Path, tmp_path: Path) -> None:
    shutil.copytree(finished / "out", tmp_path / "out")
    shutil.copytree(finished / "runs" / "seed0" / "base", tmp_path / "runs" / "seed0" / "base")
    found = reproduce_dyck(tmp_path / "out", tmp_path / "runs", ["base"], [0], OPTIONS)
    assert found["seeds"] == results(finished)["seeds"]
    assert list(found["models"]) == ["base", "open"]
    fewer = replace(OPTIONS, items=2)
    found = reproduce_dyck(tmp_path / "out", tmp_path / "runs", ["base"], [0], fewer)
    assert list(found["models"]) == ["base"]


def test_other_training_is_an_error(finished: Path) -> None:
    longer = DyckOptions(**{**vars(OPTIONS), "overrides": (*TINY, "training.steps=3")})
    with pytest.raises(ReproductionError, match="base: was trained with other settings"):
        reproduce_dyck(finished / "out", finished / "runs", ["base"], [0], longer)


def test_an_unfinished_run_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, finished: Path
) -> None:
    from pushdown_lm.training.trainer import PushdownTrainer

    class Killed(Exception):
        pass

    def kill(self: Any) -> Path:
        raise Killed

    with monkeypatch.context() as patch:
        patch.setattr(PushdownTrainer, "save_final", kill)
        with pytest.raises(Killed):
            reproduce_dyck(tmp_path / "out", tmp_path / "runs", ["base"], [0], OPTIONS)
    reproduce_dyck(tmp_path / "out", tmp_path / "runs", ["base"], [0], OPTIONS)
    row, same = (
        results(folder)["seeds"]["0"]["base"]["rows"]["nesting-15-50"]
        for folder in (tmp_path, finished)
    )
    assert {**row, "seconds": 0} == {**same, "seconds": 0}


def test_report(finished: Path) -> None:
    page = (finished / "out" / "table.md").read_text()
    assert page == markdown(results(finished))
    header = "| accuracy, % | Base-LM (paper) | Base-LM (here) | Pushdown-LM, open distance |"
    assert header in page
    row = next(line for line in page.splitlines() if line.startswith("| nesting 15-50 | 40.6 |"))
    right = results(finished)["seeds"]["0"]["base"]["rows"]["nesting-15-50"]["correct"]
    assert row.split(" | ")[2].startswith(f"{100 * right / 3:.1f} [")
    assert "| own parse, % | nesting 15-50 |" in page
    assert "    pushdown x" in page


def test_ablations_stand_apart_from_the_paper_s_table(finished: Path) -> None:
    found = results(finished)
    found["models"]["open"]["is_ablation"] = True
    assert "open tokens" not in paper_table(found)
    assert "| Pushdown-LM, open distance |" in markdown(found)


def test_curve_bins_the_prefixes_of_all_rows_and_seeds() -> None:
    def seed(answers: str) -> dict[str, Any]:
        row = {"difficulty": "15 19 20", "answers": answers}
        return {"base": {"rows": {"nesting-15-50": row, "distance-50": row}}}

    found = {
        "rows": {"nesting-15-50": "", "distance-50": ""},
        "seeds": {"0": seed("101"), "1": seed("110")},
    }
    assert curve(found, "base", "nesting") == [(17, 3, 4), (22, 1, 2)]


@pytest.mark.parametrize("name", VARIANTS)
def test_variants_differ_in_what_they_say(name: str) -> None:
    variant = VARIANTS[name]
    model = load_recipe(variant.recipe, variant.overrides).build_model(bracket_tokenizer(Dyck()))
    config = model.config
    assert config.decoder.num_hidden_layers == 6
    assert bool(config.pushdown_layers) == ("base" not in name)
    assert name.startswith(("open", "distance")) == (config.num_distances > 0)
    assert (config.legality == Dyck.legality) == (name != "constituents")
    assert (config.num_depths > 2) == name.startswith(("depth", "open-depth"))
    assert config.head_sees_tape == ("base" not in name)
    assert name.startswith("open") == (config.distance_counts == "open_tokens")
    assert ("alone" in name) == (config.num_depths == 0)
    if name == "published":
        assert config.max_positions is None  # sinusoids have no end
        return
    of_the_paper = name in ("base", "paper", "depths", "constituents")
    assert of_the_paper == (config.attachment_head == "published")
    rotary = of_the_paper or "rotary" in name or name == "plain-head"
    assert config.decoder.no_rope_layers == [int(rotary)] * 6
    longest = max(getattr(row, "max_length", 1000) for row in ROWS.values())
    assert config.max_positions > longest


def test_choices() -> None:
    assert choose_models("paper, ablations,paper") == ["paper", *ABLATIONS]
    assert choose_models("all") == list(VARIANTS)
    assert choose_rows("distance-50,nesting-15-50") == ("distance-50", "nesting-15-50")
    with pytest.raises(ReproductionError, match=r"row: expected one of distance-50, .*, got 'x'"):
        choose_rows("x")


def test_command(
    finished: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def run(*arguments: str) -> int:
        monkeypatch.setattr("sys.argv", ["pushdown", "reproduce", "dyck", *arguments])
        with pytest.raises(SystemExit) as exit_:
            main()
        return int(exit_.value.code or 0)

    assert run("--models", "transformer") == 2
    assert "model: expected one of base, paper, depths, open" in capsys.readouterr().err
    assert run("--answer", "worst") == 2
    assert "answer: expected one of mixture, best" in capsys.readouterr().err
    settings = [word for override in TINY for word in ("--set", override)]
    folders = ["--out", str(finished / "quick"), "--runs", str(finished / "quick-runs")]
    arguments = ["--quick", "--models", "paper", "--items", "2", "--rows", "nesting-15-50"]
    arguments += ["--strings", "50", "--answer", "best"]
    monkeypatch.setattr("pushdown_lm.experiments.dyck.DyckOptions.quick", lambda: OPTIONS)
    assert run(*arguments, *folders, *settings) == 0
    printed = capsys.readouterr().out
    assert "| Pushdown-LM (paper) | Pushdown-LM (here) |" in printed
    assert "pushdown reproduce dyck --quick --models paper" in printed
    assert "Trained on 50 strings" in printed
    assert "its best parse answers" in printed
    assert "What differs from the authors' experiment" in printed
