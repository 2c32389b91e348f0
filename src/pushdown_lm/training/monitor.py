"""What watches a training run: the log of every step, the progress display, signals to stop."""

from __future__ import annotations

import json
import signal
import threading
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

from transformers import TrainerCallback

from pushdown_lm.console import Advance, progress
from pushdown_lm.errors import PushdownError
from pushdown_lm.files import atomic_write


class MetricsLog:
    """``metrics.jsonl``: one JSON object per line, each with its step."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def forget_after(self, step: int) -> None:
        """Drop the lines of steps that a resumed run takes again, and a line cut short."""
        lines = (
            self.path.read_text(encoding="utf-8", errors="replace").splitlines(True)
            if self.path.exists()
            else []
        )
        kept = [line for line in lines if line.endswith("\n") and self._step(line) <= step]
        with atomic_write(self.path) as file:
            file.writelines(kept)

    def _step(self, line: str) -> int:
        try:
            return int(json.loads(line)["step"])
        except (ValueError, KeyError, TypeError, RecursionError):
            raise PushdownError(
                f"{self.path}: expected a JSON object with its step on every line, got "
                f"{line.strip()[:60]!r}"
            ) from None

    def write(self, *records: Mapping[str, Any]) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.writelines(json.dumps(record) + "\n" for record in records)


class StopSignals:
    """Notes SIGINT and SIGTERM; a second signal of the same kind acts at once."""

    NUMBERS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self) -> None:
        self.received: int | None = None

    @contextmanager
    def noted(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._note) for number in self.NUMBERS}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.received = number
        signal.signal(
            number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL
        )


class ProgressCallback(TrainerCallback):
    """A progress bar or log lines on standard error, by the main process only."""

    def __init__(self, stack: ExitStack, label: str = "Training") -> None:
        self.stack, self.label = stack, label
        self.advance: Advance | None = None

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.is_world_process_zero:
            remaining = state.max_steps - state.global_step
            label = self.label
            if state.global_step:
                label += f" from step {state.global_step}"
            self.advance = self.stack.enter_context(progress(label, remaining, "steps"))

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self.advance is not None:
            self.advance()

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        shown = (
            "answer_loss",
            "lm_loss",
            "attachment_loss",
            "eval_perplexity",
            "eval_attachment_accuracy",
            "eval_answer_loss",
        )
        notes = [
            f"{name.replace('eval_', 'valid ').replace('_', ' ')} {logs[name]:.4g}"
            for name in shown
            if name in logs
        ]
        if self.advance is not None and notes:
            self.advance(0, ", ".join(notes))
