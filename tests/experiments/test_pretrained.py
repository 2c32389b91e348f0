"""The experiment with pretrained models at a tiny size."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest
from typer.testing import CliRunner

from pushdown_lm.cli.app import app
from pushdown_lm.corpora.glue import TASKS
from pushdown_lm.corpora.grammar import generate
from pushdown_lm.data.build import DataOptions, build_data
from pushdown_lm.errors import PushdownError
from pushdown_lm.experiments.english import EnglishOptions
from pushdown_lm.experiments.pretrained import comparison, markdown, reproduce_pretrained
from pushdown_lm.trees import to_brackets
from tests.command_line import run_pushdown
from tests.tiny_glue import PLACES, save_model, save_tasks

RECIPE = """
description: A step or two of training further.
model:
  pretrained: nowhere
training:
  {steps: 4, batch_size: 2, lr: 1e-2, eval_every: 2, freeze: "lower:1", cache_lower: true, lora: {}}
data: {window: 64}
"""
PAIR = {
    "sentence_good": "The dog sleeps.",
    "sentence_bad": "The dog sleep.",
    "field": "morphology",
    "linguistics_term": "agreement",
    "UID": "agreement",
    "pairID": "0",
}

pytest.importorskip("peft", reason="peft is not installed")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Converted models, parsed text, trees and tasks."""
    folder = tmp_path_factory.mktemp("pretrained")
    base = save_model(folder / "base", pushdown_layers=[])
    save_model(folder / "pushdown", pushdown_layers=[1, 2], head_input="lower_layers")
    options = DataOptions(tokenizer=str(base), window=64, errors="skip")
    splits = {"train": list(generate(60, seed=1)), "valid": list(generate(8, seed=2))}
    build_data(splits, folder / "data", options)
    for name in ("base", "pushdown"):
        (folder / f"{name}.yaml").write_text(RECIPE)
    (folder / "test.trees").write_text("\n".join(map(to_brackets, generate(3, seed=5))))
    (folder / "glue").mkdir()
    save_tasks(folder / "glue")
    (folder / "blimp").mkdir()
    (folder / "blimp" / "agreement.jsonl").write_text(json.dumps(PAIR))
    return folder


def run(folder: Path, adapters: Mapping[str, Path] = MappingProxyType({}), **more: object) -> str:
    """The page that the command prints."""
    options = {
        "data": folder / "data",
        "tasks": "sst5,mrpc",
        "models": f"{folder / 'base.yaml'},{folder / 'pushdown.yaml'}",
        "trees": f"test={folder / 'test.trees'}",
        "blimp": folder / "blimp",
        "out": folder / "out",
        "runs": folder / "runs",
        "seeds": 2,
        "beam": 2,
        "task-beam": 3,
        "epochs": 1,
        "batch-size": 4,
        "max-eval": 6,
        **more,
    }
    arguments = [f"--{name}={value}" for name, value in options.items() if value is not None]
    arguments += [f"--adapter={name}={value}" for name, value in adapters.items()]
    arguments += [f"--pretrained={name}={folder / name}" for name in ("base", "pushdown")]
    result = CliRunner().invoke(app, ["reproduce", "pretrained", *arguments])
    assert result.exit_code == 0, result.output
    return result.stdout


def test_pretrained(folder: Path) -> None:
    page = run(folder, glue=folder / "glue")
    found = json.loads((folder / "out" / "results.json").read_text())
    assert (folder / "out" / "table.md").read_text() == markdown(found) == page.removesuffix("\n")
    for model in ("base", "pushdown"):
        training = found["seeds"]["0"][model]
        assert training["before"]["perplexity"] > training["training"]["perplexity"] > 1
        assert training["training"]["trainable_parameters"] < training["training"]["parameters"]
        assert training["blimp"]["accuracy"] in (0, 1)
        assert (folder / "runs" / "seed0" / model / "adapter" / "pushdown.json").is_file()
    assert len(list(folder.glob("data/lower/*/train.npy"))) == 1  # equal lower layers
    assert "## BLiMP fields" in page
    assert [(result["task"], result["model"], result["kind"]) for result in found["tasks"]] == [
        ("SST-5", "base", "base"),
        ("SST-5", "pushdown", "pushdown"),
        ("MRPC", "base", "base"),
        ("MRPC", "pushdown", "pushdown"),
    ]
    assert (found["options"]["tests"]["beam"], found["finetuning"]["beam"]) == (2, 3)
    mean, deviation = found["tasks"][1]["summary"]["accuracy"]
    (line,) = (line for line in comparison(found).splitlines() if "SST-5, accuracy, %" in line)
    assert line.endswith(f"| {100 * mean:.1f} ± {100 * deviation:.1f} |")

    finished = {path: path.stat().st_mtime_ns for path in folder.glob("runs/**/*.safetensors")}
    finished |= {path: path.stat().st_mtime_ns for path in folder.glob("runs/tasks/*/*/*.json")}
    assert len(finished) >= 10
    assert run(folder, glue=folder / "glue") == page  # nothing is done twice
    assert {path: path.stat().st_mtime_ns for path in finished} == finished


def test_without_tasks(folder: Path, tmp_path: Path) -> None:
    page = run(folder, out=tmp_path, runs=folder / "runs")
    assert "parsing F1, test" in page
    assert "SST-5" not in page


def test_adapters_in_the_place_of_training(folder: Path, tmp_path: Path) -> None:
    run(folder)
    trained = json.loads((folder / "out" / "results.json").read_text())["seeds"]["0"]
    adapters = {name: tmp_path / name for name in ("base", "pushdown")}
    for name, place in adapters.items():
        done = run_pushdown(
            "adapter", "save", folder / f"runs/seed0/{name}/adapter", "--out", place
        )
        assert done.exit_code == 0, done.error
    new = {"out": tmp_path / "out", "runs": tmp_path / "runs", "seeds": 1, "glue": folder / "glue"}
    run(folder, adapters, data=None, tasks="sst5", **new)
    shutil.rmtree(tmp_path / "runs")  # what the results have is not tested again
    run(folder, adapters, data=None, tasks="mrpc", models=f"{folder / 'pushdown.yaml'}", **new)
    found = json.loads((tmp_path / "out" / "results.json").read_text())
    for name, model in found["seeds"]["0"].items():
        assert model["training"]["perplexity"] == trained[name]["training"]["perplexity"]
        assert model["parsing test"].keys() == trained[name]["parsing test"].keys()
        assert model["blimp"]["accuracy"] == trained[name]["blimp"]["accuracy"]
        ours, theirs = (
            found["perplexity test"]["perplexities"]["marginal"]["token_perplexity"]
            for found in (model, trained[name])
        )
        assert ours == pytest.approx(theirs, rel=1e-2)
    assert [(result["task"], result["model"]) for result in found["tasks"]] == [
        ("SST-5", "base"),
        ("SST-5", "pushdown"),
        ("MRPC", "pushdown"),
    ]
    assert not list(tmp_path.glob("runs/seed0/*/checkpoint-*"))
    assert not list(tmp_path.glob("runs/seed0/*/tests"))
    run(folder, adapters, **{**new, "data": None, "glue": None})  # without tasks, they stay
    assert json.loads((tmp_path / "out" / "results.json").read_text())["tasks"] == found["tasks"]
    options = EnglishOptions(data="", adapters={"pushdown": str(adapters["base"])})
    recipe = str(folder / "pushdown.yaml")
    with pytest.raises(PushdownError, match="has the model of another training"):
        reproduce_pretrained(tmp_path / "out", tmp_path / "runs", [recipe], options)


def test_an_adapter_of_an_unknown_run(folder: Path, tmp_path: Path) -> None:
    run(folder)
    options = EnglishOptions(
        data="",
        pretrained={"pushdown": str(folder / "pushdown")},
        adapters={"pushdown": str(folder / "runs/seed0/pushdown/adapter")},
    )
    recipe = str(folder / "pushdown.yaml")
    with pytest.raises(
        PushdownError, match=r"found no training\.json, which `pushdown adapter save`"
    ):
        reproduce_pretrained(tmp_path / "out", tmp_path / "runs", [recipe], options)


def test_data_is_asked_for_where_a_model_is_trained(tmp_path: Path) -> None:
    done = run_pushdown("reproduce", "pretrained", "--out", tmp_path, "--adapter", "gpt2-medium=a")
    assert done.exit_code == 2
    assert (
        "--data: expected a dataset to train on; a model with an --adapter needs none" in done.error
    )


def test_broken_task_files_are_found_before_training(folder: Path, tmp_path: Path) -> None:
    options = EnglishOptions(data=str(folder / "data"))
    (tmp_path / "sst5").mkdir()
    for name in PLACES["sst5"]:
        (tmp_path / "sst5" / name).write_text("(2 (2 The)")
    with pytest.raises(PushdownError, match=r"train\.txt"):
        reproduce_pretrained(tmp_path, tmp_path / "runs", [], options, [TASKS["sst5"]], tmp_path)
    assert not (tmp_path / "runs").exists()
