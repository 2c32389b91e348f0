"""Closing brackets and blocks of source code, by how deeply they are nested.

Shapes: B prefixes or parses of a prefix, T positions, V entries of the vocabulary, K closing words.

A prefix is a unit of code up to a word that closes a bracket or a block. Asked is the next token:
whether the right one is the most probable of all closing words, and of all tokens. The parse of the
prefix is the model's own, by beam search,

    p(x | prefix) ~ sum_r p(prefix, r) p(x | prefix, r)        r: the entries of the beam

and, for comparison, the gold parse. A model whose layers do not read the parse needs none.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pushdown_lm.console import Advance
from pushdown_lm.corpora.code_trees import DEDENT
from pushdown_lm.corpora.code_units import CLOSING, Closing, closings
from pushdown_lm.data.batching import Collator
from pushdown_lm.data.encoding import attach_tokens
from pushdown_lm.errors import PushdownError
from pushdown_lm.search.beam import SearchResult, search_batches
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from pushdown_lm.trees import Tree

BATCH = 16
"""Prefixes that are read at once."""
KINDS = {"brackets": ")]}", "blocks": DEDENT}
"""What is closed, and by which words."""


class Prefix(NamedTuple):
    """A unit up to a closing word."""

    unit: Tree
    closing: Closing

    @property
    def answer(self) -> str:
        return self.unit.words[self.closing.position]

    @property
    def kind(self) -> str:
        return next(kind for kind, words in KINDS.items() if self.answer in words)


def draw_prefixes(units: Iterable[Tree], items: int, seed: int = 0) -> list[Prefix]:
    """At most `items` prefixes of each kind and nesting, all units taken together."""
    groups: dict[tuple[str, int], list[Prefix]] = {}
    for unit in units:
        for closing in closings(unit):
            prefix = Prefix(unit, closing)
            groups.setdefault((prefix.kind, closing.nesting), []).append(prefix)
    generator = random.Random(seed)
    drawn = []
    for group in sorted(groups):
        found = groups[group]
        drawn += found if len(found) <= items else generator.sample(found, items)
    return drawn


class Answer(NamedTuple):
    """What a model made of one prefix."""

    closes_right: bool
    """Whether the right closing word is more probable than any other one."""
    is_likeliest: bool
    """Whether it is more probable than any other token."""
    surprisal: float
    """Of the right closing word, in bits."""


@dataclass(frozen=True)
class ClosingScores:
    """The answers of a model to all prefixes."""

    own: list[Answer]
    """With the model's own parses."""
    gold: list[Answer] | None
    """With gold parses; None if the model reads no parse."""


def evaluate_closing(
    scorer: PushdownScorer, prefixes: Sequence[Prefix], *, advance: Advance | None = None
) -> ClosingScores:
    """Ask a model for the closing word after each prefix, with the scorer's beam and threshold."""
    task = _Task(scorer, prefixes)
    gold = list(task.with_gold_parses())
    if not scorer.model.config.pushdown_layers:
        return ClosingScores(gold, None)
    return ClosingScores(task.with_own_parses(advance), gold)


class _Task:
    """A model before the prefixes that it is to continue."""

    def __init__(self, scorer: PushdownScorer, prefixes: Sequence[Prefix]) -> None:
        self.scorer, self.model = scorer, scorer.model
        self.closing = torch.tensor([_token(scorer, word) for word in CLOSING])
        self.answers = [CLOSING.index(prefix.answer) for prefix in prefixes]
        self.tokens: list[list[int]] = []
        self.attachments: list[list[int]] = []
        for unit, closing in prefixes:
            encoded = scorer.encode(unit.words)
            end = list(accumulate(encoded.leaf_counts, initial=0))[closing.position]
            self.tokens.append(list(encoded.ids[:end]))
            self.attachments.append(attach_tokens(unit, encoded.leaf_counts)[: end + 1])

    @torch.inference_mode()
    def with_gold_parses(self) -> Iterator[Answer]:
        collate = Collator(self.model.config.pad_token_id or 0)
        for start in range(0, len(self.tokens), BATCH):
            numbers = range(start, min(start + BATCH, len(self.tokens)))
            batch = collate(
                [
                    {
                        "input_ids": [self.model.config.bos_token_id, *self.tokens[number]],
                        "attachments": self.attachments[number],
                    }
                    for number in numbers
                ]
            )
            del batch["labels"]
            last = batch["attention_mask"].sum(-1) - 1
            device = self.model.device
            output = self.model(**{name: value.to(device) for name, value in batch.items()})
            for row, number in enumerate(numbers):
                log_probs = output.logits[row, last[row]].double().log_softmax(-1)
                yield self.answer(number, log_probs.cpu())

    def with_own_parses(self, advance: Advance | None) -> list[Answer]:
        found: dict[int, Answer] = {}
        for batch in search_batches(
            self.model,
            self.tokens,
            beam=self.scorer.beam,
            threshold=self.scorer.threshold,
            batch_cells=self.scorer.batch_cells,
        ):
            for number, result in batch.items():
                found[number] = self.answer(number, self.mixture(result))
            if advance is not None:
                advance(len(batch))
        return [found[number] for number in range(len(self.tokens))]

    @torch.inference_mode()
    def mixture(self, result: SearchResult) -> Tensor:
        """Log-probabilities ``(V,)`` of the next token: those of the beam's parses, summed."""
        logits = self.model.get_output_embeddings()(result.hidden)
        log_probs = self.model.forbidden.mask(logits).double().log_softmax(-1)  # (B, V)
        weights = torch.tensor(result.log_open_joints, dtype=torch.float64).log_softmax(0)
        return (log_probs.cpu() + weights[:, None]).logsumexp(0)

    def answer(self, number: int, log_probs: Tensor) -> Answer:
        """A tie is wrong."""
        closing = log_probs[self.closing].tolist()
        right = closing.pop(self.answers[number])
        others = log_probs.index_fill(0, self.closing[self.answers[number]], -torch.inf)
        return Answer(right > max(closing), right > float(others.max()), -right / math.log(2))


def _token(scorer: PushdownScorer, word: str) -> int:
    """The one token of a closing word after another word."""
    tokens = scorer.encode([")", word]).ids[1:]
    if len(tokens) != 1:
        raise PushdownError(
            f"{scorer.name}: expected one token for {word!r}, found {len(tokens)}: the model was "
            "not trained on source code"
        )
    return tokens[0]


def by_nesting(prefixes: Sequence[Prefix], answers: Sequence[Answer]) -> dict[str, Any]:
    """Of each kind and nesting: how many prefixes, how many right, and the mean surprisal."""
    groups: dict[str, dict[int, list[Answer]]] = {kind: {} for kind in KINDS}
    for prefix, answer in zip(prefixes, answers, strict=True):
        groups[prefix.kind].setdefault(prefix.closing.nesting, []).append(answer)
    return {
        kind: {
            str(nesting): {
                "items": len(found),
                "closes_right": sum(answer.closes_right for answer in found),
                "is_likeliest": sum(answer.is_likeliest for answer in found),
                "surprisal": math.fsum(answer.surprisal for answer in found) / len(found),
            }
            for nesting, found in sorted(by_depth.items())
        }
        for kind, by_depth in groups.items()
    }
