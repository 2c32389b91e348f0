"""Several trainings at once, each a `pushdown train` in a process of its own.

Small models gain little from more than one core each, so a Base-LM and a Pushdown-LM that train
together take the time of one, and their times are comparable: both had the same machine.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from pushdown_lm.console import progress
from pushdown_lm.errors import PushdownError
from pushdown_lm.training.checkpoint import checkpoints
from pushdown_lm.training.recipe import load_recipe
from pushdown_lm.training.run import is_finished
from pushdown_lm.training.trainer import METRICS_LOG

POLL_SECONDS = 0.5
LOG = "train.log"


def train_side_by_side(runs: Mapping[Path, str], data: Path, settings: Sequence[str] = ()) -> None:
    """Train the recipe of each run folder on the same dataset, all at once.

    Finished runs are left alone and interrupted ones resumed. Ctrl-C and SIGTERM are passed on:
    every training saves a checkpoint first.

    Raises:
        PushdownError: a training failed; the message has its last words and the name of its log.
    """
    waiting = {run: recipe for run, recipe in runs.items() if not is_finished(run)}
    if not waiting:
        return
    threads = max(1, (os.cpu_count() or 1) // len(waiting))
    steps = sum(load_recipe(recipe, settings).training.steps or 0 for recipe in waiting.values())
    children = {
        run: _start(run, recipe, data, settings, threads) for run, recipe in waiting.items()
    }
    try:
        title = f"Training {' and '.join(waiting.values())}"
        with _exit_on_sigterm(), progress(title, steps or None, "steps") as go:
            done = 0
            while any(child.poll() is None for child in children.values()):
                time.sleep(POLL_SECONDS)
                before, done = done, sum(map(_steps_taken, children))
                go(done - before)
                _check(children)
            go(sum(map(_steps_taken, children)) - done)
    finally:
        for child in children.values():
            if child.poll() is None:
                child.send_signal(signal.SIGINT)
        for child in children.values():
            child.wait()
    _check(children)


@contextmanager
def _exit_on_sigterm() -> Iterator[None]:
    """Leave by an exception, which Python does of itself at Ctrl-C only."""
    before = signal.signal(signal.SIGTERM, lambda number, _: sys.exit(128 + number))
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def _start(
    run: Path, recipe: str, data: Path, settings: Sequence[str], threads: int
) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pushdown_lm", "train", recipe, f"--data={data}"]
    command += [f"--out={run}", *(f"--set={setting}" for setting in settings)]
    if checkpoints(run):
        command.append("--resume")
    run.parent.mkdir(parents=True, exist_ok=True)
    with _log(run).open("ab") as log:
        return subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            start_new_session=True,  # Ctrl-C reaches them once, through us
        )


def _log(run: Path) -> Path:
    """Beside the run folder, which `pushdown train` wants new or empty."""
    return run.with_name(f"{run.name}.{LOG}")


def _steps_taken(run: Path) -> int:
    """The steps that a run has logged."""
    path = run / METRICS_LOG
    if not path.exists():
        return 0
    return path.read_text(encoding="utf-8").count('"kind": "train"')


def _check(children: Mapping[Path, subprocess.Popen[bytes]]) -> None:
    for run, child in children.items():
        if child.poll():
            log = _log(run)
            words = log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
            last = words[-1] if words else f"exit code {child.returncode}"
            raise PushdownError(f"{run}: training failed: {last} (log: {log})")
