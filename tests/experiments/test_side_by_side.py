"""Several trainings at once: finished, failed, stopped and resumed ones."""

from __future__ import annotations

import os
import shutil
import signal
import threading
import time
from pathlib import Path

import pytest

from pushdown_lm.errors import PushdownError
from pushdown_lm.experiments.side_by_side import train_side_by_side
from pushdown_lm.training.checkpoint import checkpoints
from pushdown_lm.training.run import is_finished
from tests.tiny_training import TINY, tiny_data


def test_finished_runs_are_left_alone_and_failures_are_told(tmp_path: Path) -> None:
    data = Path(tiny_data(tmp_path / "data").folder)
    good, bad = tmp_path / "runs" / "good", tmp_path / "runs" / "bad"
    train_side_by_side({good: str(TINY)}, data, ["training.steps=2"])
    assert is_finished(good)

    weights = (good / "model" / "model.safetensors").stat().st_mtime_ns
    broken = tmp_path / "broken.yaml"
    shutil.copy(TINY, broken)
    broken.write_text(f"{broken.read_text()}data:\n  window: 7\n", encoding="utf-8")
    with pytest.raises(PushdownError, match=r"bad: training failed: pushdown: .*window.* \(log: "):
        train_side_by_side({good: str(TINY), bad: str(broken)}, data, ["training.steps=2"])
    assert (good / "model" / "model.safetensors").stat().st_mtime_ns == weights
    assert not is_finished(bad)


def test_sigterm_reaches_the_trainings(tmp_path: Path) -> None:
    data = Path(tiny_data(tmp_path / "data").folder)
    run = tmp_path / "runs" / "long"

    def stop_once_it_trains() -> None:
        log, deadline = run / "metrics.jsonl", time.monotonic() + 120
        while time.monotonic() < deadline and not (log.exists() and log.stat().st_size):
            time.sleep(0.1)
        os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=stop_once_it_trains).start()
    with pytest.raises(SystemExit) as stopped:
        train_side_by_side({run: str(TINY)}, data, ["training.steps=100000"])
    assert stopped.value.code == 128 + signal.SIGTERM
    assert len(checkpoints(run)) == 1
    assert not is_finished(run)
