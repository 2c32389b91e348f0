"""A model that parses, reading: the parses of its beam, step by step."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import closing
from functools import cached_property

from pushdown_lm import viz
from pushdown_lm.errors import PushdownError
from pushdown_lm.explorer.reading import SHOWN, Reading, Record
from pushdown_lm.search.beam import ScoredTree
from pushdown_lm.search.pushdown_scorer import Analysis, PushdownScorer
from pushdown_lm.search.steps import search_steps
from pushdown_lm.trees.oracle import (
    algorithm1,
    forest_from_attachments,
    tree_from_attachments,
)
from pushdown_lm.trees.picture import describe
from pushdown_lm.trees.tree import Tree


class ParsedReading(Reading):
    """What a model with an attachment head makes of a sentence.

    Args:
        threshold: parses further than this below the best one, in nats, are dropped.
    """

    beam: int

    def __init__(
        self, scorer: PushdownScorer, sentence: str, *, beam: int, threshold: float | None
    ) -> None:
        super().__init__(scorer, sentence)
        self.beam, self.threshold = beam, threshold
        self.analysis: Analysis | None = None

    def take_steps(self) -> Generator[int, None, None]:
        search = search_steps(
            self.scorer.model,
            self.encoded.ids,
            beam=self.beam,
            threshold=self.threshold,
            shown=SHOWN,
        )
        with closing(search) as steps:
            while self.analysis is None:
                try:
                    self.steps.append(next(steps))
                except StopIteration as end:
                    self.analysis = self.scorer.analysis(self.encoded, end.value)
                else:
                    if len(self.steps) <= len(self.tokens):
                        yield len(self.steps)
        yield len(self.steps)  # whose trees the analysis has

    def best_history(self) -> tuple[int, ...]:
        return self.history(len(self.steps), 0)

    # -------------------------------------------------------------- records

    def step_record(self, position: int) -> Record:
        step = self._step(position)
        history = self.history(position, 0)
        _, stack = forest_from_attachments([0, *history], self.tokens)
        is_end = position > len(self.tokens)
        return {
            **super().step_record(position),
            "attachment": None if is_end else history[-1],
            "stack": [] if is_end else stack,
            "parses": self._parses(position),
            "num_parses": len(self.trees) if is_end else step.num_entries,
            "continues": self._continues(position),
            "dropped": {
                "count": step.num_dropped,
                "share": step.dropped_share,
                "parses": [
                    {"brackets": self._brackets(dropped), "probability": share}
                    for dropped, share in zip(step.dropped, step.dropped_shares, strict=True)
                ],
            },
        }

    def result_record(self) -> Record:
        self._whole()
        assert self.analysis is not None
        result = self.analysis.result
        return {
            **super().result_record(),
            "bound_bits": result.log_prob_bound / math.log(2),
            "lost_bits": result.lost_nats / math.log(2),
            "best_ranks": self._best_ranks(),
        }

    def to_json(self) -> Record:
        return {**super().to_json(), "histories": [step.histories for step in self.steps]}

    @cached_property
    def trees(self) -> list[ScoredTree]:
        """The distinct trees over words at the end, best first."""
        assert self.analysis is not None
        return self.analysis.trees()

    def _parses(self, position: int) -> list[Record]:
        if position <= len(self.tokens):
            step = self._step(position)
            return [
                {"brackets": self._brackets(history), "probability": share}
                for history, share in zip(step.histories, step.shares, strict=True)
            ]
        assert self.analysis is not None
        log_prob = self.analysis.log_prob
        return [
            {
                "brackets": describe(scored.tree),
                "probability": math.exp(scored.log_prob - log_prob),
            }
            for scored in self.trees[:SHOWN]
        ]

    def _brackets(self, history: Sequence[int]) -> str:
        forest, _ = forest_from_attachments([0, *history], self.tokens)
        return describe(forest, len(history))

    def _continues(self, position: int) -> bool:
        """Whether the best parse adds to the best parse of the step before."""
        if position == 1:
            return True
        before = self.history(position - 1, 0)
        return self.history(position, 0)[: len(before)] == before

    def _best_ranks(self) -> list[int | None]:
        """The rank, from 1, that the best parse of the whole has at each step; None if it is not
        among the first."""
        best = self.best_history()
        ranks: list[int | None] = []
        for step in self.steps[:-1]:
            part = best[: step.position]
            ranks.append(step.histories.index(part) + 1 if part in step.histories else None)
        return [*ranks, 1]

    # -------------------------------------------------------------- pictures

    def history(self, position: int, rank: int) -> tuple[int, ...]:
        """The attachments of the parse at a step that has a rank, from 0."""
        histories = list(self._step(position).histories)
        if position > len(self.tokens):
            histories = [scored.history for scored in self.trees[:SHOWN]]
        if not 0 <= rank < len(histories):
            raise PushdownError(f"rank: expected 0 to {len(histories) - 1}, got {rank}")
        return histories[rank]

    def picture(self, position: int, rank: int = 0, *, whole_tape: bool = False) -> str:
        """The tree so far, the surprisals so far, and the tape, or its newest row."""
        history = self.history(position, rank)
        return viz.parse(
            self._tree(position, history),
            *self._expectations(position),
            attachments=[0, *history],
            num_read=self._num_read(position),
            whole_tape=whole_tape,
        )

    def tape_picture(self, position: int, rank: int = 0) -> str:
        rows = [row[1:] for row in algorithm1([0, *self.history(position, rank)])[1:]]
        return viz.tape(self.tokens, rows, marked=min(position, len(self.tokens)))

    def _tree(self, position: int, history: Sequence[int]) -> Tree:
        if position > len(self.tokens):
            return tree_from_attachments([0, *history, 0], self.tokens)
        return forest_from_attachments([0, *history], self.tokens)[0]
