"""The bench of corpus building, at a tiny size."""

from __future__ import annotations

from pathlib import Path

from pushdown_lm.bench import corpus as bench_corpus
from tests.corpora.parsers.test_command import TOY


def test_a_random_model_and_a_command(tmp_path: Path) -> None:
    (result,) = bench_corpus.run(None, None, sentences=5, rounds=1)
    assert result["case"] == "pushdown, 5 sentences"
    text = tmp_path / "text.txt"
    text.write_text("One is here. Two is there.\n" * 4)
    (result,) = bench_corpus.run(text, TOY, sentences=0, rounds=1)
    assert result["case"] == "command, 8 sentences"
    rates = [result[f"{part}_sentences_per_second"] for part in ("split", "cut", "parser", "whole")]
    assert all(rate > 0 for rate in rates)
    whole, parser = rates[3], rates[2]
    assert (whole < parser) == (result["overhead_percent"] > 0)
