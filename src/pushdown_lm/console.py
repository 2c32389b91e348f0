"""What a person sees while a command works: progress with rate and ETA, or plain log lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

LOG_SECONDS = 10.0
"""How often a log line appears where there is no terminal."""


def error_console() -> Console:
    """The console for everything but results, which go to standard output."""
    return Console(stderr=True)


def show_loading(what: object) -> None:
    """Say what is being loaded before the libraries, which take seconds, are."""
    print(f"Loading {what} ...", file=sys.stderr, flush=True)


class Advance(Protocol):
    """Reports that ``count`` more units are done, with a short note to show beside the bar.

    ``total`` corrects the number of all units.
    """

    def __call__(self, count: float = 1, note: str = "", *, total: float | None = None) -> None: ...


class _RateColumn(ProgressColumn):
    def __init__(self, unit: str) -> None:
        super().__init__()
        self.unit = unit

    def render(self, task: Task) -> Text:
        rate = task.finished_speed or task.speed
        return Text("" if rate is None else f"{rate:,.1f} {self.unit}/s")


@contextmanager
def progress(label: str, total: float | None, unit: str = "it") -> Iterator[Advance]:
    """A progress bar on a terminal, a log line every few seconds elsewhere.

    >>> with progress("Scoring", len(sentences), "sentences") as advance:  # doctest: +SKIP
    ...     for sentence in sentences:
    ...         advance()
    """
    console = error_console()
    if console.is_terminal:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            _RateColumn(unit),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            TextColumn("{task.fields[note]}"),
        )
        with Progress(*columns, console=console) as bar:
            task = bar.add_task(label, total=total, note="")

            def advance(count: float = 1, note: str = "", *, total: float | None = None) -> None:
                bar.update(task, advance=count, total=total)
                if note:
                    bar.update(task, note=note)

            yield advance
    else:
        lines = _LogLines(label, total, unit)
        yield lines
        lines.close()


@contextmanager
def sentence_progress(label: str, total: int) -> Iterator[Callable[[int, int], None]]:
    """A progress bar for evaluations, which report how many sentences are done, and of how many."""
    with progress(label, total, "sentences") as advance:
        reached = 0

        def report(done: int, of: int) -> None:
            nonlocal reached
            advance(done - reached, total=of)
            reached = done

        yield report


class _LogLines:
    def __init__(self, label: str, total: float | None, unit: str) -> None:
        self.label, self.total, self.unit = label, total, unit
        self.done, self.note = 0.0, ""
        self.began = self.shown = time.monotonic()

    def __call__(self, count: float = 1, note: str = "", *, total: float | None = None) -> None:
        self.done += count
        self.note = note or self.note
        self.total = self.total if total is None else total
        if time.monotonic() - self.shown >= LOG_SECONDS:
            self._show()

    def close(self) -> None:
        self._show()

    def _show(self) -> None:
        self.shown = time.monotonic()
        seconds = max(self.shown - self.began, 1e-9)
        rate = self.done / seconds
        parts = [f"{self.label}: {self.done:,.0f}"]
        if self.total is not None:
            parts[0] += f"/{self.total:,.0f}"
            remaining = max(self.total - self.done, 0.0) / rate if rate else 0.0
            parts.append(f"ETA {remaining:,.0f} s")
        parts.insert(1, f"{rate:,.1f} {self.unit}/s, {seconds:,.0f} s")
        if self.note:
            parts.append(self.note)
        print(", ".join(parts), file=sys.stderr, flush=True)
