"""One model reading one sentence: what the page shows of each step, as records and pictures.

A *record* is a JSON object with a `kind`:

    sentence    the tokens, before anything is searched
    step        one token read and attached: what was expected, the parses, the stack, the dropped
    result      the whole: its probability, and the rank of its best parse at each step

Steps are numbered from 1; the last is that of EOS, which closes the tree. Surprisals and entropies
are in bits.
"""

from __future__ import annotations

import csv
import io
import math
import time
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from functools import cached_property
from typing import Any

from pushdown_lm import viz
from pushdown_lm.errors import PushdownError
from pushdown_lm.search.beam import ScoredTree
from pushdown_lm.search.pushdown_scorer import Analysis, AttentionMaps, Encoded, PushdownScorer
from pushdown_lm.search.steps import Step, search_steps
from pushdown_lm.trees.oracle import (
    algorithm1,
    forest_from_attachments,
    tree_from_attachments,
)
from pushdown_lm.trees.picture import describe
from pushdown_lm.trees.tree import Tree

SHOWN = 8
"""Parses, dropped parses and expected tokens that a step shows."""
CONTINUES = "\u00b7"
"""Before a token that continues a word."""

Record = dict[str, Any]


class Reading:
    """What a model makes of a sentence.

    Args:
        threshold: parses further than this below the best one, in nats, are dropped.

    Raises:
        PushdownError: for a sentence that the model cannot read.
    """

    def __init__(
        self, scorer: PushdownScorer, sentence: str, *, beam: int, threshold: float | None
    ) -> None:
        self.scorer = scorer
        self.beam, self.threshold = beam, threshold
        self.encoded: Encoded = scorer.encode(sentence)
        self.tokens = _labels(scorer.token_texts(self.encoded.ids), self.encoded.leaf_counts)
        self.steps: list[Step] = []
        self.analysis: Analysis | None = None
        self.attention: AttentionMaps | None = None
        """Under the best parse."""
        self.seconds = 0.0

    @property
    def is_whole(self) -> bool:
        return self.attention is not None

    # -------------------------------------------------------------- records

    def read(self) -> Generator[Record, None, None]:
        """Search, and tell the records as they become known."""
        began = time.perf_counter()
        yield self.sentence_record()
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
                        yield self.step_record(len(self.steps))
        yield self.step_record(len(self.steps))
        best = self.history(len(self.steps), 0)
        self.attention = self.scorer.attend(self.encoded.ids, best)
        self.seconds = time.perf_counter() - began
        yield self.result_record()

    def records(self) -> Iterator[Record]:
        """The records of a reading that is whole."""
        yield self.sentence_record()
        for step in self.steps:
            yield self.step_record(step.position)
        yield self.result_record()

    def sentence_record(self) -> Record:
        encoded = self.encoded
        return {
            "kind": "sentence",
            "text": encoded.text,
            "tokens": self.tokens,
            "offsets": encoded.offsets,
            "end_token": self.scorer.tokenizer.eos_token,
            "beam": self.beam,
            "threshold": self.threshold,
        }

    def step_record(self, position: int) -> Record:
        step = self._step(position)
        history = self.history(position, 0)
        _, stack = forest_from_attachments([0, *history], self.tokens)
        is_end = position > len(self.tokens)
        return {
            "kind": "step",
            "position": position,
            "token": self.scorer.tokenizer.eos_token if is_end else self.tokens[position - 1],
            "surprisal": self.surprisal(position),
            "entropy": step.entropy / math.log(2),
            "expected": [
                {"token": text, "probability": probability}
                for text, (_, probability) in zip(
                    self.scorer.token_texts([token for token, _ in step.expected]),
                    step.expected,
                    strict=True,
                )
            ],
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
            "picture": self.tree_picture(position),
        }

    def result_record(self) -> Record:
        analysis, attention = self._whole()
        result = analysis.result
        layers, heads = attention.weights.shape[:2]
        return {
            "kind": "result",
            "log2_prob": result.log_prob / math.log(2),
            "bound_bits": result.log_prob_bound / math.log(2),
            "lost_bits": result.lost_nats / math.log(2),
            "best_ranks": self._best_ranks(),
            "words": [{"word": word, "surprisal": bits} for word, bits in analysis.words],
            "layers": layers,
            "heads": heads,
            "pushdown_layers": self.scorer.model.config.pushdown_layers,
            "seconds": self.seconds,
        }

    def surprisal(self, position: int) -> float:
        """-log2 p(x_t | x_<t)."""
        before = self.steps[position - 2].log_prefix if position > 1 else 0.0
        return (before - self._step(position).log_prefix) / math.log(2)

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
        best = self.history(len(self.steps), 0)
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

    def tree_picture(self, position: int, rank: int = 0, *, whole_tape: bool = False) -> str:
        """The tree so far, the surprisals so far, and the tape, or its newest row."""
        history = self.history(position, rank)
        count = min(position, len(self.tokens))
        return viz.parse(
            self._tree(position, history),
            [self.surprisal(number) for number in range(1, count + 1)],
            [step.entropy / math.log(2) for step in self.steps[:count]],
            attachments=[0, *history],
            num_read=None if position > len(self.tokens) else position,
            whole_tape=whole_tape,
        )

    def tape_picture(self, position: int, rank: int = 0) -> str:
        """All rows of the tape so far."""
        rows = [row[1:] for row in algorithm1([0, *self.history(position, rank)])[1:]]
        return viz.tape(self.tokens, rows, marked=min(position, len(self.tokens)))

    def attention_picture(self, position: int, layer: int | None, head: int | None) -> str:
        """Attention under the best parse: of all heads at a token, of one head, or a mean.

        Args:
            position: of the token that attends; 0 is ROOT.
            layer: from 0; None for all layers.
            head: from 0; None for the mean over the heads of the layer.
        """
        weights = self._whole()[1].weights
        words = [self.scorer.tokenizer.bos_token, *self.tokens]
        if layer is None:
            return viz.attention(words, weights, marked=position)
        for name, number, size in (
            ("layer", layer, len(weights)),
            ("head", head, weights.shape[1]),
        ):
            if number is not None and not 0 <= number < size:
                raise PushdownError(f"{name}: expected 0 to {size - 1}, got {number}")
        chosen = weights[layer].mean(0) if head is None else weights[layer, head]
        return viz.attention(words, chosen, marked=position)

    def _tree(self, position: int, history: Sequence[int]) -> Tree:
        if position > len(self.tokens):
            return tree_from_attachments([0, *history, 0], self.tokens)
        return forest_from_attachments([0, *history], self.tokens)[0]

    # -------------------------------------------------------------- files

    def to_json(self) -> Record:
        """All that was found, without pictures."""
        steps = [self.step_record(step.position) for step in self.steps]
        for step in steps:
            del step["picture"]
        return {
            "model": self.scorer.describe(),
            "sentence": self.sentence_record(),
            "steps": steps,
            "histories": [step.histories for step in self.steps],
            "result": self.result_record(),
        }

    def to_tsv(self) -> str:
        """A row for each token, EOS last."""
        self._whole()
        file = io.StringIO()
        table = csv.writer(file, delimiter="\t", lineterminator="\n")
        table.writerow(("token_id", "token", "surprisal", "entropy", "attachment", "best_parse"))
        for step in self.steps:
            record = self.step_record(step.position)
            attachment = "" if record["attachment"] is None else record["attachment"]
            table.writerow(
                (
                    step.position,
                    record["token"],
                    f"{record['surprisal']:.6f}",
                    f"{record['entropy']:.6f}",
                    attachment,
                    record["parses"][0]["brackets"],
                )
            )
        return file.getvalue()

    # -------------------------------------------------------------- checks

    def _step(self, position: int) -> Step:
        if not 1 <= position <= len(self.steps):
            raise PushdownError(f"step: expected 1 to {len(self.steps)}, got {position}")
        return self.steps[position - 1]

    def _whole(self) -> tuple[Analysis, AttentionMaps]:
        if self.analysis is None or self.attention is None:
            raise PushdownError("expected a sentence that is read to its end")
        return self.analysis, self.attention


def _labels(texts: Sequence[str], counts: Sequence[int]) -> list[str]:
    """The tokens as the page shows them.

    >>> _labels(["un", "happy", "dogs", "."], [2, 1, 1])
    ['un', '·happy', 'dogs', '.']
    """
    starts = [piece == 0 for count in counts for piece in range(count)]
    return [
        text if is_start else CONTINUES + text for text, is_start in zip(texts, starts, strict=True)
    ]
