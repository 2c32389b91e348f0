"""`pushdown train`, as it is typed."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import yaml

from pushdown_lm.cli.app import main
from pushdown_lm.data.dataset import Data
from pushdown_lm.training.monitor import ProgressCallback
from tests.tiny_training import TINY, read_log, tiny_data


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return tiny_data(tmp_path_factory.mktemp("data"))


def pushdown(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["pushdown", *map(str, arguments)])
    with pytest.raises(SystemExit) as exit_:
        main()
    return int(exit_.value.code or 0)


def tiny(data: Data, out: Path, *more: str) -> list[object]:
    settings = [word for override in more for word in ("--set", override)]
    return ["train", TINY, "--data", data.folder, "--out", out, *settings]


def test_trains_and_prints_the_metrics(
    data: Data, tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    command = [*tiny(data, tmp_path / "run", "training.steps=2"), "--seed", 7]
    assert pushdown(monkeypatch, *command) == 0
    output = capsys.readouterr()
    printed = dict(line.split("\t") for line in output.out.splitlines())
    metrics = json.loads((tmp_path / "run" / "metrics.json").read_text())
    assert printed.keys() == metrics.keys()
    assert float(printed["perplexity"]) == pytest.approx(metrics["perplexity"], rel=1e-5)
    assert "Training: 2/2" in output.err
    recipe = yaml.safe_load((tmp_path / "run" / "recipe.yaml").read_text())
    assert (recipe["training"]["seed"], recipe["training"]["steps"]) == (7, 2)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_interrupted_and_resumed(
    number: int,
    code: int,
    data: Data,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def interrupt(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == 2:
            os.kill(os.getpid(), number)

    command = tiny(data, tmp_path / "run", "training.steps=4")
    with monkeypatch.context() as patch:
        patch.setattr(ProgressCallback, "on_step_end", interrupt)
        assert pushdown(patch, *command) == code
    message = "".join(capsys.readouterr().err.split())
    assert "run/checkpoint-2;--resumecontinuesfromit" in message
    assert pushdown(monkeypatch, *command, "--resume") == 0
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
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert pushdown(monkeypatch, *tiny(data, tmp_path / "run"), *arguments) == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("pushdown: ")
    assert message in lines[0]
