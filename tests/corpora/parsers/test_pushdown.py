"""A Pushdown model as a parser, and its confidence."""

from __future__ import annotations

import math
from contextlib import closing
from pathlib import Path

import pytest

from pushdown_lm.corpora.parsers import ParserError, ParserOptions, Refusal, open_parser
from pushdown_lm.corpora.parsers.pushdown import mean_posterior
from pushdown_lm.corpora.raw_text import Sentence
from pushdown_lm.data.tokenization import train_word_vocabulary
from pushdown_lm.search.beam import ScoredTree
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from pushdown_lm.trees import Tree
from tests.models import random_model

WORDS = ("the", "dog", "sleeps", "here", ".")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tokenizer = train_word_vocabulary([list(WORDS)])
    random_model(vocabulary=len(tokenizer), positions=12).float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def test_trees_are_the_scorers(model: Path) -> None:
    sentences = [Sentence(1, "", WORDS), Sentence(2, "", ("cat", ".")), Sentence(3, "", WORDS * 3)]
    with closing(open_parser(f"pushdown:{model}", ParserOptions(beam=20))) as parser:
        tree, unknown, long = parser.parse(sentences)
        assert parser.describe()["beam"] == 20
    assert tree == PushdownScorer.from_pretrained(model, beam=20, threshold=10.0).parse([WORDS])[0]
    assert isinstance(unknown, Refusal)
    assert unknown.reason == "unknown word"
    assert isinstance(long, Refusal)
    assert long.reason == "not readable by the model"


def test_unsure_trees_are_refused(model: Path) -> None:
    sentence = Sentence(1, "", WORDS)
    scorer = PushdownScorer.from_pretrained(model, beam=50, threshold=10.0)
    confidence = mean_posterior(scorer.analyse([WORDS])[0].trees())
    assert 0 < confidence < 1
    for least, kept in ((confidence - 0.01, True), (confidence + 0.01, False)):
        options = ParserOptions(min_confidence=least)
        (answer,) = open_parser(f"pushdown:{model}", options).parse([sentence])
        assert isinstance(answer, Tree) == kept
    assert isinstance(answer, Refusal)
    assert answer.reason == "low confidence"


def test_confidence_is_the_mean_posterior() -> None:
    left, right = Tree("abc", ((0, 2), (0, 3))), Tree("abc", ((1, 3), (0, 3)))
    beam = [ScoredTree(left, math.log(0.06)), ScoredTree(right, math.log(0.02))]
    assert mean_posterior(beam) == pytest.approx(0.75)
    assert mean_posterior([ScoredTree(Tree("ab", ((0, 2),)), 0.0)]) == 1.0


def test_a_model_without_a_head(tmp_path: Path) -> None:
    tokenizer = train_word_vocabulary([list(WORDS)])
    model = random_model(vocabulary=len(tokenizer), attachment_head=None, pushdown_layers=[])
    model.float().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(ParserError, match="found no attachment head"):
        open_parser(f"pushdown:{tmp_path}")
