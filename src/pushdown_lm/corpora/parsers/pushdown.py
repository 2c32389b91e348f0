"""A Pushdown model as a parser, with a filter by its own confidence: self-training.

The confidence of a tree is the mean posterior probability of its constituents,

    1/n sum over constituents c of p(c | x),   p(c | x) = sum of p(y | x) over parses y with c

the whole sentence left out, which is one in every parse: the share of its constituents that are
right, if the model is. Posteriors are over the parses of the beam.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from pushdown_lm.corpora.parsers.protocol import Answer, ParserError, ParserOptions, Refusal
from pushdown_lm.corpora.raw_text import Sentence
from pushdown_lm.errors import PushdownError
from pushdown_lm.search.beam import ScoredTree, posteriors
from pushdown_lm.search.pushdown_scorer import (
    Analysis,
    Encoded,
    PushdownScorer,
    UnknownTokenError,
)

THRESHOLD = 10.0
"""Nats below the best parse at which a parse is dropped."""


class PushdownParser:
    """The model of a folder, or an installed one by name."""

    def __init__(self, model: str, options: ParserOptions) -> None:
        if not model:
            raise ParserError("pushdown: expected pushdown:MODEL, got no model")
        self.options = options
        self.scorer = PushdownScorer.from_pretrained(model, beam=options.beam, threshold=THRESHOLD)
        if not self.scorer.parses:
            raise ParserError(f"{model}: expected a model that parses, found no attachment head")

    def describe(self) -> dict[str, Any]:
        return {**self.scorer.describe(), "min_confidence": self.options.min_confidence}

    def close(self) -> None:
        pass

    def parse(self, sentences: Sequence[Sentence]) -> Iterator[Answer]:
        answers: dict[int, Answer] = {}
        encoded: dict[int, Encoded] = {}
        for number, sentence in enumerate(sentences):
            try:
                encoded[number] = self.scorer.encode(sentence.words or sentence.text)
            except UnknownTokenError as error:
                answers[number] = Refusal("unknown word", str(error))
            except PushdownError as error:
                answers[number] = Refusal("not readable by the model", str(error))
        numbers = list(encoded)
        for batch in self.scorer.analyse_batches(list(encoded.values())):
            for row, analysis in batch.items():
                answers[numbers[row]] = self._answer(analysis)
        for number in range(len(sentences)):
            yield answers[number]

    def _answer(self, analysis: Analysis) -> Answer:
        trees = analysis.trees()
        if self.options.min_confidence > 0:
            confidence = mean_posterior(trees)
            if confidence < self.options.min_confidence:
                detail = f"{confidence:.3f} is below {self.options.min_confidence:g}"
                return Refusal("low confidence", detail)
        return trees[0].tree


def mean_posterior(trees: Sequence[ScoredTree]) -> float:
    """The confidence of the best of the trees of a beam; 1 where there is nothing to decide."""
    best = trees[0].tree
    inner = [span for span in best.spans if span != (0, len(best.words))]
    if not inner:
        return 1.0
    probabilities = posteriors(trees)
    return sum(probabilities[span] for span in inner) / len(inner)
