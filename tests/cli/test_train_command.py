"""`pushdown train`, as it is typed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest
import yaml

from pushdown_lm.data.dataset import Data
from tests.command_line import run_pushdown
from tests.tiny_training import TINY, at_step, read_log, tiny_data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return tiny_data(tmp_path_factory.mktemp("data"))


def tiny(data: Data, out: Path, *more: str) -> list[object]:
    settings = [word for override in more for word in ("--set", override)]
    return ["train", TINY, "--data", data.folder, "--out", out, *settings]


def test_trains_and_prints_the_metrics(data: Data, tmp_path: Path) -> None:
    command = [*tiny(data, tmp_path / "run", "training.steps=2"), "--seed", 7]
    done = run_pushdown(*command)
    assert done.exit_code == 0
    printed = dict(line.split("\t") for line in done.output.splitlines())
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert printed.keys() == metrics.keys()
    assert float(printed["perplexity"]) == pytest.approx(metrics["perplexity"], rel=1e-5)
    assert "Training: 2/2" in done.error
    recipe = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    assert (recipe["training"]["seed"], recipe["training"]["steps"]) == (7, 2)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_and_resumed(
    number: int,
    code: int,
    data: Data,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = tiny(data, tmp_path / "run", "training.steps=4")
    with monkeypatch.context() as patch:
        at_step(2, lambda: os.kill(os.getpid(), number), patch)
        done = run_pushdown(*command)
    assert done.exit_code == code
    assert "run/checkpoint-2; --resume continues from it" in done.error
    assert run_pushdown(*command, "--resume").exit_code == 0
    assert [record["step"] for record in read_log(tmp_path / "run", "train")] == [1, 2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--set", "training.lr=fast"], "training.lr: expected a number, got 'fast'"),
        (["--resume"], "expected a run to resume, found no recipe.yaml"),
        (["--data", "nowhere"], "nowhere: expected a dataset"),
    ],
)
def test_bad_input_is_one_line_and_code_2(
    arguments: list[str],
    message: str,
    data: Data,
    tmp_path: Path,
) -> None:
    done = run_pushdown(*tiny(data, tmp_path / "run"), *arguments)
    assert done.exit_code == 2
    loading, line = done.error.splitlines()
    assert loading.startswith("Loading ")
    assert line.startswith("pushdown: ")
    assert message in line
