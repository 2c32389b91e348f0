"""Sentences that a model cannot read: found before the evaluation starts, with their places.

A word outside the vocabulary, a special token, an empty sentence or one beyond the model's
positions is an error that names the file, the item and the sentence. With `keep_going` it is
reported instead, and what depends on it counts as a failure:

    readable = check_readable(scorer, places, keep_going=True, report=print)
    report = evaluate_blimp(readable, pairs)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from pushdown_lm.errors import PushdownError
from pushdown_lm.search.loading import EvaluationScorer
from pushdown_lm.search.scorer import Scorer, ScorerWrapper, Sentence, Token
from pushdown_lm.search.search_scorer import UnknownTokenError
from pushdown_lm.trees import Tree


def check_readable(
    scorer: EvaluationScorer,
    placed: Iterable[tuple[str, Sentence]],
    *,
    keep_going: bool = False,
    report: Callable[[str], None] = print,
) -> set[Sentence]:
    """The sentences that cannot be read, each reported; without `keep_going` the first raises."""
    checked: set[Sentence] = set()
    unreadable: set[Sentence] = set()
    for place, sentence in placed:
        if sentence in checked:
            continue
        checked.add(sentence)
        try:
            scorer.check(sentence)
        except PushdownError as error:
            message = f"{place}: {error}{_help(scorer, error, keep_going)}"
            if not keep_going:
                raise PushdownError(message) from error
            report(message)
            unreadable.add(sentence)
    return unreadable


def _help(scorer: EvaluationScorer, error: PushdownError, keep_going: bool) -> str:
    hints = []
    if isinstance(error, UnknownTokenError) and scorer.tokenizer.unk_token_id is not None:
        hints.append("--allow-unknown reads such words as <unk>")
    if not keep_going:
        hints.append("--keep-going leaves such sentences out")
    return f" ({'; '.join(hints)})" if hints else ""


class ReadableScorer(ScorerWrapper):
    """A scorer that is not asked about some sentences: their scores are NaN, their parses None."""

    def __init__(self, scorer: Scorer, unreadable: set[Sentence]) -> None:
        super().__init__(scorer)
        self.unreadable = unreadable

    def log_probs(self, sentences: Sequence[Sentence]) -> list[float]:
        return self._ask(self.scorer.log_probs, sentences, lambda _: math.nan)

    def surprisals(self, sentences: Sequence[Sentence]) -> list[list[Token]]:
        return self._ask(
            self.scorer.surprisals,
            sentences,
            lambda sentence: [Token("", 0, len(sentence), math.nan)],
        )

    def parse(self, sentences: Sequence[Sequence[str]]) -> list[Tree | None]:
        return self._ask(self.scorer.parse, sentences, lambda _: None)

    def _ask(
        self,
        ask: Callable[[list[Any]], list[Any]],
        sentences: Sequence[Any],
        missing: Callable[[Any], Any],
    ) -> list[Any]:
        readable = [sentence for sentence in sentences if sentence not in self.unreadable]
        answers = iter(ask(readable) if readable else [])
        return [
            missing(sentence) if sentence in self.unreadable else next(answers)
            for sentence in sentences
        ]
