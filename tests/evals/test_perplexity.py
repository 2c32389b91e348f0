from __future__ import annotations

import io
import math

import pytest
from rich.console import Console

from pushdown_lm.errors import PushdownError
from pushdown_lm.evals.perplexity import evaluate_perplexity
from pushdown_lm.search.scorer import CausalLMScorer

from .conftest import TEXT, RecordedScorer


def test_by_hand() -> None:
    """Three sentences, 3 + 1, 3 + 1 and 6 + 1 bits; four words and three EOS."""
    scorer = RecordedScorer({"a": 3.0, "b": 3.0})
    report = evaluate_perplexity(scorer, ["a", "a", "a  b"])
    assert scorer.calls == [["a", "a  b"]]
    assert (report.sentences, report.tokens, report.words) == (3, 7, 7)
    assert report.token_perplexity == pytest.approx(2 ** (15 / 7))
    assert report.word_perplexity == pytest.approx(2 ** (15 / 7))


def test_tokens_and_words_share_one_total(tiny_scorer: CausalLMScorer) -> None:
    report = evaluate_perplexity(tiny_scorer, TEXT, chunk_size=2)
    total = math.fsum(tiny_scorer.log_probs(TEXT))
    ids = tiny_scorer.tokenizer(TEXT, add_special_tokens=False)["input_ids"]
    tokens = sum(len(sentence) + 1 for sentence in ids)
    words = sum(len(sentence.split()) + 1 for sentence in TEXT)
    assert (report.tokens, report.words) == (tokens, words)
    assert tokens > words
    assert report.token_perplexity == pytest.approx(math.exp(-total / tokens))
    assert report.word_perplexity == pytest.approx(math.exp(-total / words))
    content = report.to_json()
    assert content["scorer"]["model"] == "tiny"
    assert "EOS" in content["words_are"]


def test_impossible_sentence_makes_it_infinite() -> None:
    report = evaluate_perplexity(RecordedScorer({"a": math.inf}), ["a", "b", "a"])
    assert report.failures == 2
    assert report.word_perplexity == math.inf
    assert report.to_json()["word_perplexity"] is None


def test_overflow_is_infinite() -> None:
    assert evaluate_perplexity(RecordedScorer({"a": 1e6}), ["a"]).token_perplexity == math.inf


def test_table_and_empty_input() -> None:
    console = Console(record=True, width=120, file=io.StringIO())
    console.print(evaluate_perplexity(RecordedScorer({}, default=1.0), ["a b"]).table())
    assert "2.00" in console.export_text()
    with pytest.raises(PushdownError, match="at least one sentence"):
        evaluate_perplexity(RecordedScorer({}), [])
