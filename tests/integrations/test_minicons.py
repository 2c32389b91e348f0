"""Against minicons itself, on a plain language model; and on models with a parse."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

minicons = pytest.importorskip(
    "minicons.scorer", reason="minicons is not installed (pip install pushdown-lm[minicons])"
)

from pushdown_lm.errors import PushdownError  # noqa: E402
from pushdown_lm.integrations.minicons import PushdownLMScorer  # noqa: E402
from pushdown_lm.search.loading import load_scorer  # noqa: E402

SENTENCES = ["The dog that she knows barks loudly.", "The dogs", "The dogs bark, and she knows."]


@pytest.fixture(scope="module")
def ours(folders: dict[str, Path]) -> PushdownLMScorer:
    return PushdownLMScorer(folders["plain"])


@pytest.fixture(scope="module")
def theirs(folders: dict[str, Path]) -> Any:
    return minicons.IncrementalLMScorer(str(folders["plain"]), "cpu")


def total(scores: Any) -> float:
    return scores.sum(0).item()


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"surprisal": True},
        {"surprisal": True, "base_two": True},
        {"prob": True},
        {"eos_token": True},
        {"decode": True},
    ],
    ids=str,
)
def test_token_score_equals_minicons(
    ours: PushdownLMScorer, theirs: Any, options: dict[str, Any]
) -> None:
    expected = theirs.token_score(SENTENCES, bos_token=True, **options)
    for scores in (
        ours.token_score(SENTENCES, **options),
        ours.token_score(SENTENCES, bos_token=True, **options),
    ):
        for our_sentence, their_sentence in zip(scores, expected, strict=True):
            assert [token for token, _ in our_sentence] == [token for token, _ in their_sentence]
            values = [value for _, value in their_sentence]
            assert [value for _, value in our_sentence] == pytest.approx(values, rel=1e-4, abs=1e-5)
    one = theirs.token_score(SENTENCES[0], bos_token=True)[0]
    assert ours.token_score(SENTENCES[0])[0][1][1] == pytest.approx(one[1][1], rel=1e-4)


@pytest.mark.parametrize(
    "options", [{}, {"reduction": total}, {"base_two": True}], ids=["mean", "sum", "bits"]
)
@pytest.mark.parametrize("eos_token", [False, True])
def test_sequence_score_equals_minicons(
    ours: PushdownLMScorer, theirs: Any, options: dict[str, Callable], eos_token: bool
) -> None:
    expected = theirs.sequence_score(SENTENCES, bos_token=True, eos_token=eos_token, **options)
    scores = ours.sequence_score(SENTENCES, eos_token=eos_token, **options)
    assert scores == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("separator", [" ", ", "])
def test_conditional_score_equals_minicons(
    ours: PushdownLMScorer, theirs: Any, separator: str
) -> None:
    prefixes, stimuli = ["The dog that", "The"], ["she knows barks.", "dogs"]
    for options in ({}, {"reduction": total, "base_two": True}, {"prob": True}):
        expected = theirs.conditional_score(
            prefixes, stimuli, separator=separator, bos_token=True, **options
        )
        scores = ours.conditional_score(prefixes, stimuli, separator=separator, **options)
        assert scores == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("name", ["pushdown", "base"])
def test_models_with_a_parse(folders: dict[str, Path], name: str) -> None:
    """The chain rule holds: a sentence is its prefix, and the rest given the prefix."""
    reference = load_scorer(folders[name], beam=50)
    scorer = PushdownLMScorer(folders[name], beam=50)
    assert isinstance(scorer, minicons.LMScorer)
    prefix, stimulus = "The dog that", "she knows barks"
    whole = scorer.sequence_score(f"{prefix} {stimulus}", reduction=total, eos_token=True)[0]
    assert whole == pytest.approx(reference.log_probs([f"{prefix} {stimulus}"])[0], abs=1e-4)
    tokens = scorer.token_score(f"{prefix} {stimulus}", surprisal=True, eos_token=True)[0]
    assert tokens[0] == (reference.tokenizer.bos_token, 0.0)
    assert math.fsum(value for _, value in tokens) == pytest.approx(-whole, abs=1e-4)
    count = len(reference.tokenizer(prefix, add_special_tokens=False)["input_ids"])
    rest = scorer.conditional_score(prefix, stimulus, reduction=total, eos_token=True)[0]
    assert rest == pytest.approx(-math.fsum(value for _, value in tokens[count + 1 :]), abs=1e-4)


def test_what_a_sum_over_parses_cannot_tell(ours: PushdownLMScorer) -> None:
    for options in ({"rank": True}, {"bow_correction": True}):
        with pytest.raises(PushdownError, match="distribution over the vocabulary"):
            ours.token_score(SENTENCES, **options)
    with pytest.raises(PushdownError, match="expected base_two or prob, got both"):
        ours.sequence_score(SENTENCES, base_two=True, prob=True)
    with pytest.raises(PushdownError, match="reads BOS always"):
        ours.sequence_score(SENTENCES, bos_token=False)


def test_a_model_that_reads_brackets(folders: dict[str, Path]) -> None:
    ours = PushdownLMScorer(folders["plm"], beam=20)
    scores = ours.token_score(SENTENCES[:2], surprisal=True, base_two=True)
    for sentence, scored in zip(SENTENCES, scores, strict=False):
        tokens = ours.scorer.surprisals([sentence])[0][:-1]
        assert [bits for _, bits in scored[1:]] == pytest.approx([t.surprisal for t in tokens])
    assert ours.conditional_score(["The dogs"], ["bark."], reduction=total)[0] < 0
