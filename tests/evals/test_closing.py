"""Closing words: the mixture over parses against exhaustive search, and what is counted."""

from __future__ import annotations

import math

import pytest
import torch

pytest.importorskip("tree_sitter_python")

from pushdown_lm.corpora.code_trees import read_code
from pushdown_lm.corpora.code_units import CLOSING, closings
from pushdown_lm.data.encoding import attach_tokens
from pushdown_lm.data.text import TextRule
from pushdown_lm.data.tokenization import train_word_vocabulary
from pushdown_lm.errors import PushdownError
from pushdown_lm.evals.closing import (
    Answer,
    Prefix,
    by_nesting,
    draw_prefixes,
    evaluate_closing,
)
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from tests.models import prompt_model

UNITS = [read_code(source) for source in ("f([x])", "{x}", "if x:\n  f\n", "x[f]")]


def scorer_of(**options: object) -> PushdownScorer:
    tokenizer = train_word_vocabulary([[*unit.words, *CLOSING] for unit in UNITS])
    TextRule("tokenized", "word").save_in(tokenizer)
    return PushdownScorer(prompt_model(tokenizer, **options), tokenizer, beam=1000, threshold=None)


def test_own_answers_are_those_of_exhaustive_search() -> None:
    scorer = scorer_of(num_distances=4)
    prefixes = draw_prefixes(UNITS, 10)
    assert len(prefixes) == 5
    answers = evaluate_closing(scorer, prefixes).own
    for prefix, answer in zip(prefixes, answers, strict=True):
        words = prefix.unit.words[: prefix.closing.position]
        bits = {
            word: scorer.surprisals([[*words, word]])[0][len(words)].surprisal
            for word in scorer.tokenizer.get_vocab()
            if not word.startswith("<")
        }
        right = bits.pop(prefix.answer)
        assert answer.surprisal == pytest.approx(right, abs=1e-4)
        assert answer.closes_right == all(right < bits[word] for word in CLOSING if word in bits)
        if answer.is_likeliest:
            assert right < min(bits.values())


def test_gold_answers_are_those_of_one_pass_over_the_unit() -> None:
    scorer = scorer_of()
    prefixes = draw_prefixes(UNITS, 10)
    answers = evaluate_closing(scorer, prefixes).gold
    assert answers is not None
    for (unit, closing), answer in zip(prefixes, answers, strict=True):
        encoded = scorer.encode(unit.words)
        ids = torch.tensor([[scorer.model.config.bos_token_id, *encoded.ids]])
        attachments = torch.tensor([attach_tokens(unit, encoded.leaf_counts)[:-1]])
        with torch.inference_mode():
            logits = scorer.model(ids, attachments=attachments).logits[0, closing.position]
        log_probs = logits.log_softmax(-1)
        right = int(ids[0, closing.position + 1])
        assert answer.surprisal == pytest.approx(-float(log_probs[right]) / math.log(2), abs=1e-4)
        assert answer.is_likeliest == (int(log_probs.argmax()) == right)


def test_a_model_that_reads_no_parse_needs_none() -> None:
    scorer = scorer_of(pushdown_layers=[], attachment_head=None)
    scores = evaluate_closing(scorer, draw_prefixes(UNITS, 10))
    assert scores.gold is None
    assert len(scores.own) == 5


def test_prefixes_are_drawn_by_kind_and_nesting() -> None:
    units = [read_code(f"f([x], {number})\nif x:\n  y\n") for number in range(9)]
    prefixes = draw_prefixes(units, 4, seed=1)
    groups = [(prefix.kind, prefix.closing.nesting) for prefix in prefixes]
    assert groups == [("blocks", 1)] * 4 + [("brackets", 1)] * 4 + [("brackets", 2)] * 4
    assert prefixes == draw_prefixes(units, 4, seed=1) != draw_prefixes(units, 4, seed=2)
    assert all(prefix.closing in closings(prefix.unit) for prefix in prefixes)


def test_counts() -> None:
    prefixes = [Prefix(UNITS[0], closing) for closing in closings(UNITS[0])] * 2
    answers = [
        Answer(True, False, 1.0),
        Answer(True, True, 0.5),
        Answer(False, False, 4.0),
        Answer(True, True, 0.5),
    ]
    assert by_nesting(prefixes, answers) == {
        "brackets": {
            "1": {"items": 2, "closes_right": 2, "is_likeliest": 2, "surprisal": 0.5},
            "2": {"items": 2, "closes_right": 1, "is_likeliest": 0, "surprisal": 2.5},
        },
        "blocks": {},
    }


def test_models_of_other_text_are_refused() -> None:
    tokenizer = train_word_vocabulary([["the", "dog"]])
    TextRule("tokenized", "word").save_in(tokenizer)
    scorer = PushdownScorer(prompt_model(tokenizer), tokenizer)
    with pytest.raises(PushdownError, match="found '\\)'"):
        evaluate_closing(scorer, draw_prefixes(UNITS, 1))
