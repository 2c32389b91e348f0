from __future__ import annotations

import io
import json
import math
from pathlib import Path

import pytest
from rich.console import Console

from pushdown_lm.errors import PushdownError
from pushdown_lm.evals.blimp import (
    MinimalPair,
    evaluate_blimp,
    load_blimp,
    load_paradigm,
    separate_final_punctuation,
)
from pushdown_lm.search.scorer import CausalLMScorer

from .conftest import RecordedScorer

PAIRS = [
    MinimalPair("dogs bark.", "dogs barks.", "number_1", "agreement", "syntax"),
    MinimalPair("dogs ran.", "dogs barks.", "number_1", "agreement", "syntax"),
    MinimalPair("the dogs bark.", "the dogs bark.", "number_1", "agreement", "syntax"),
    MinimalPair("cats ran.", "dogs ran.", "number_1", "agreement", "syntax"),
    MinimalPair("dogs bark.", "dogs barks.", "number_2", "agreement", "syntax"),
    MinimalPair("dogs barks.", "dogs bark.", "ever", "npi", "semantics"),
]
BITS = {"bark.": 1.0, "barks.": 2.0, "ran.": 5.0}


def test_accuracies_ties_and_identical_pairs() -> None:
    """number_1: right, wrong, identical, tied; means are over paradigms, not pairs."""
    scorer = RecordedScorer(BITS)
    report = evaluate_blimp(scorer, PAIRS)
    first, second, third = report.results
    assert (first.pairs, first.correct, first.ties, first.identical) == (4, 1, 2, 1)
    assert (second.accuracy, third.accuracy) == (1.0, 0.0)
    assert report.terms == {"agreement": 0.625, "npi": 0.0}
    assert report.fields == {"semantics": 0.0, "syntax": 0.625}
    assert report.accuracy == pytest.approx(1.25 / 3)
    content = report.to_json()
    assert (content["items"], content["ties"], content["identical"]) == (6, 2, 1)
    assert content["suite_set"] == "3 of 67 paradigms"
    [sentences] = scorer.calls
    assert len(sentences) == len(set(sentences)) == 5


def test_impossible_sentences() -> None:
    """log p = -inf is a score like any other; NaN is a failure."""
    pair = PAIRS[:1]
    assert evaluate_blimp(RecordedScorer({"barks.": math.inf}), pair).accuracy == 1.0
    report = evaluate_blimp(RecordedScorer({"barks.": math.nan}), pair)
    assert (report.accuracy, report.results[0].failures) == (0.0, 1)


@pytest.mark.parametrize(
    ("sentence", "expected"),
    [("It ran.", "It ran ."), ("It ran .", "It ran ."), ("Who?", "Who ?"), ("It", "It"), ("", "")],
)
def test_separate_final_punctuation(sentence: str, expected: str) -> None:
    assert separate_final_punctuation(sentence) == expected


def test_punctuation_option_is_used_and_stated() -> None:
    scorer = RecordedScorer({"bark": 1.0})
    report = evaluate_blimp(scorer, PAIRS[:1], separate_punctuation=True)
    assert scorer.calls == [["dogs bark .", "dogs barks ."]]
    assert report.accuracy == 1.0
    assert report.to_json()["final_punctuation_separated"] is True


def test_table() -> None:
    console = Console(record=True, width=100, file=io.StringIO())
    console.print(evaluate_blimp(RecordedScorer(BITS), PAIRS).table())
    text = console.export_text()
    assert "62.5%" in text
    assert "41.7%" in text


GOOD_LINE = json.dumps(
    {
        "sentence_good": "a",
        "sentence_bad": "b",
        "UID": "toy",
        "linguistics_term": "term",
        "field": "syntax",
    }
)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", r"toy\.jsonl:2:2: expected JSON"),
        ("[]", r"toy\.jsonl:2: expected an object, got list"),
        (GOOD_LINE.replace("UID", "uid"), r"toy\.jsonl:2: expected 'UID' to be text, got None"),
        (GOOD_LINE.replace('"b"', '""'), r"toy\.jsonl:2: expected 'sentence_bad' to be text"),
    ],
)
def test_bad_lines(tmp_path: Path, line: str, message: str) -> None:
    path = tmp_path / "toy.jsonl"
    path.write_text(f"{GOOD_LINE}\n{line}\n")
    with pytest.raises(PushdownError, match=message):
        load_paradigm(path)


def test_nothing_to_read(tmp_path: Path) -> None:
    with pytest.raises(PushdownError, match=r"expected BLiMP's \*\.jsonl files, got none"):
        load_blimp(tmp_path)
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(PushdownError, match="got an empty file"):
        load_blimp(tmp_path)
    with pytest.raises(PushdownError, match="at least one minimal pair"):
        evaluate_blimp(RecordedScorer({}), [])


def test_real_pairs(shared_data: Path, tiny_scorer: CausalLMScorer) -> None:
    pairs = load_blimp(shared_data / "blimp10")
    assert len(pairs) == 6700
    report = evaluate_blimp(tiny_scorer, pairs[::25])
    content = report.to_json()
    assert content["suite_set"] == "67 of 67 paradigms"
    assert (content["items"], content["failures"]) == (268, 0)
    assert (len(content["terms"]), len(content["fields"])) == (12, 4)
    assert sum(result.term == "argument_structure" for result in report.results) == 9
    assert 0.2 < report.accuracy < 0.8
