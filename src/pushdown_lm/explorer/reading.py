"""One model reading one sentence: what the page shows of each step, as records and pictures.

A *record* is a JSON object with a `kind`:

    sentence    the tokens, before anything is searched
    step        one token read: what was expected, and of a model that parses, the parses, the stack
                and what was dropped
    result      the whole: its probability, and the rank of its best parse at each step

Steps are numbered from 1; the last is that of EOS, which closes the tree. Surprisals and entropies
are in bits.
"""

from __future__ import annotations

import csv
import io
import math
import time
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterator, Sequence
from contextlib import closing
from itertools import accumulate, pairwise
from typing import Any

from pushdown_lm import viz
from pushdown_lm.errors import PushdownError
from pushdown_lm.search.pushdown_scorer import AttentionMaps, Encoded, PushdownScorer
from pushdown_lm.search.steps import Step

SHOWN = 8
"""Parses, dropped parses and expected tokens that a step shows."""
CONTINUES = "\u00b7"
"""Before a token that continues a word."""

Record = dict[str, Any]


class Reading(ABC):
    """What a model makes of a sentence.

    Raises:
        PushdownError: for a sentence that the model cannot read.
    """

    beam: int | None = None
    threshold: float | None = None

    def __init__(self, scorer: PushdownScorer, sentence: str) -> None:
        self.scorer = scorer
        self.encoded: Encoded = scorer.encode(sentence)
        self.tokens = _labels(scorer.token_texts(self.encoded.ids), self.encoded.leaf_counts)
        self.steps: list[Step] = []
        self.attention: AttentionMaps | None = None
        """Under the best parse."""
        self.seconds = 0.0

    @property
    def is_whole(self) -> bool:
        return self.attention is not None

    # -------------------------------------------------------------- records

    def read(self) -> Generator[Record, None, None]:
        """Read, and tell the records as they become known."""
        began = time.perf_counter()
        yield self.sentence_record()
        with closing(self.take_steps()) as positions:
            for position in positions:
                yield self.step_record(position)
        self.attention = self.scorer.attend(self.encoded.ids, self.best_history())
        self.seconds = time.perf_counter() - began
        yield self.result_record()

    @abstractmethod
    def take_steps(self) -> Generator[int, None, None]:
        """Read token by token; each step's position once it can be told."""

    @abstractmethod
    def best_history(self) -> Sequence[int]:
        """The attachments under which attention is shown."""

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
            "end_token": self.end_token,
            "beam": self.beam,
            "threshold": self.threshold,
        }

    def step_record(self, position: int) -> Record:
        step = self._step(position)
        expected = self.scorer.token_texts([token for token, _ in step.expected])
        return {
            "kind": "step",
            "position": position,
            "token": [*self.tokens, self.end_token][position - 1],
            "surprisal": self.surprisal(position),
            "entropy": step.entropy / math.log(2),
            "expected": [
                {"token": text, "probability": probability}
                for text, (_, probability) in zip(expected, step.expected, strict=True)
            ],
            "picture": self.picture(position),
        }

    def result_record(self) -> Record:
        layers, heads = self._whole().weights.shape[:2]
        return {
            "kind": "result",
            "log2_prob": self.steps[-1].log_prefix / math.log(2),
            "words": [{"word": word, "surprisal": bits} for word, bits in self.words],
            "layers": layers,
            "heads": heads,
            "pushdown_layers": self.scorer.model.config.pushdown_layers,
            "seconds": self.seconds,
        }

    def surprisal(self, position: int) -> float:
        """-log2 p(x_t | x_<t)."""
        before = self.steps[position - 2].log_prefix if position > 1 else 0.0
        return (before - self._step(position).log_prefix) / math.log(2)

    @property
    def words(self) -> list[tuple[str, float]]:
        """The words with the summed surprisals of their tokens, EOS last."""
        bits = [self.surprisal(step.position) for step in self.steps]
        ends = accumulate(self.encoded.word_counts, initial=0)
        summed = [math.fsum(bits[start:end]) for start, end in pairwise(ends)]
        return [*zip(self.encoded.words, summed, strict=True), (self.end_token, bits[-1])]

    @property
    def end_token(self) -> str:
        return str(self.scorer.tokenizer.eos_token)

    # -------------------------------------------------------------- pictures

    @abstractmethod
    def picture(self, position: int, rank: int = 0, *, whole_tape: bool = False) -> str:
        """What is known after a step; of a model that parses, under the parse of a rank, from 0,
        with all rows of the tape or its newest one."""

    @abstractmethod
    def tape_picture(self, position: int, rank: int = 0) -> str:
        """All rows of the tape so far."""

    def attention_picture(self, position: int, layer: int | None, head: int | None) -> str:
        """Attention under the best parse: of all heads at a token, of one head, or a mean.

        Args:
            position: of the token that attends; 0 is ROOT.
            layer: from 0; None for all layers.
            head: from 0; None for the mean over the heads of the layer.
        """
        weights = self._whole().weights
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
            "result": self.result_record(),
        }

    def to_tsv(self) -> str:
        """A row for each token, EOS last; the last two columns are empty without a parse."""
        self._whole()
        file = io.StringIO()
        table = csv.writer(file, delimiter="\t", lineterminator="\n")
        table.writerow(("token_id", "token", "surprisal", "entropy", "attachment", "best_parse"))
        for step in self.steps:
            record = self.step_record(step.position)
            parses = record.get("parses", [])
            table.writerow(
                (
                    step.position,
                    record["token"],
                    f"{record['surprisal']:.6f}",
                    f"{record['entropy']:.6f}",
                    record.get("attachment"),
                    parses[0]["brackets"] if parses else None,
                )
            )
        return file.getvalue()

    # -------------------------------------------------------------- checks

    def _step(self, position: int) -> Step:
        if not 1 <= position <= len(self.steps):
            raise PushdownError(f"step: expected 1 to {len(self.steps)}, got {position}")
        return self.steps[position - 1]

    def _whole(self) -> AttentionMaps:
        if self.attention is None:
            raise PushdownError("expected a sentence that is read to its end")
        return self.attention

    def _num_read(self, position: int) -> int | None:
        """How many tokens are read after a step; None for all, EOS too."""
        return None if position > len(self.tokens) else position

    def _expectations(self, position: int) -> tuple[list[float], list[float]]:
        """Surprisals and entropies of the tokens up to a step, without EOS."""
        self._step(position)
        steps = self.steps[:position][: len(self.tokens)]
        return (
            [self.surprisal(step.position) for step in steps],
            [step.entropy / math.log(2) for step in steps],
        )


def _labels(texts: Sequence[str], counts: Sequence[int]) -> list[str]:
    """The tokens as the page shows them.

    >>> _labels(["un", "happy", "dogs", "."], [2, 1, 1])
    ['un', '·happy', 'dogs', '.']
    """
    starts = [piece == 0 for count in counts for piece in range(count)]
    return [
        text if is_start else CONTINUES + text for text, is_start in zip(texts, starts, strict=True)
    ]
