"""Progress off a terminal: plain lines with count, rate and ETA."""

from __future__ import annotations

import pytest

from pushdown_lm import console
from pushdown_lm.console import progress, sentence_progress


def test_log_lines(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(console, "LOG_SECONDS", 0.0)
    with progress("Scoring", 3, "sentences") as advance:
        advance()
        advance(2, note="loss 1.5")
    lines = capsys.readouterr().err.splitlines()
    assert lines[0].startswith("Scoring: 1/3, ")
    assert "sentences/s" in lines[0]
    assert "ETA" in lines[0]
    assert lines[-1].startswith("Scoring: 3/3, ")
    assert lines[-1].endswith("loss 1.5")


def test_few_lines_for_quick_work(capsys: pytest.CaptureFixture[str]) -> None:
    with progress("Reading", None) as advance:
        for _ in range(1000):
            advance()
    assert len(capsys.readouterr().err.splitlines()) == 1


def test_bar_on_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from rich.console import Console

    monkeypatch.setattr(
        console, "error_console", lambda: Console(stderr=True, force_terminal=True, width=120)
    )
    with progress("Scoring", 2, "sentences") as advance:
        advance(2, note="done soon")
    shown = capsys.readouterr().err
    assert "2/2" in shown
    assert "done soon" in shown


def test_evaluations_end_at_what_they_count(capsys: pytest.CaptureFixture[str]) -> None:
    """A sentence that occurs twice is scored once."""
    with sentence_progress("Scoring", 122) as report:
        report(64, 109)
        report(109, 109)
    assert capsys.readouterr().err.startswith("Scoring: 109/109, ")
