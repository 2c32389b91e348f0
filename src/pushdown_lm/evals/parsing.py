"""Unlabeled bracketing F1, counted as EVALB counts it.

A bracket is the half-open span of a constituent of two words or more; unary chains are one
constituent, and labels play no part (EVALB's ``LABELED 0``). Precision and recall are ratios over
the brackets of the whole corpus, each predicted bracket matching at most one gold bracket:

    precision = matched / predicted      recall = matched / gold      F1 = 2 matched / (both)

Where words are deleted (punctuation), the others close up. As in EVALB a bracket left without
words goes, a bracket left with one word stays, and brackets that have become equal all stay:
they match as a multiset. Take

    ((The dog) (barks .))     spans (0,2) (2,4) (0,4)     without "."     (0,2) (2,3) (0,3)

Gold trees are taken as they come. Against binarized gold trees precision equals recall; against
n-ary ones a binary tree cannot have full precision.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from pushdown_lm.errors import PushdownError
from pushdown_lm.search.scorer import Progress, Scorer, score_distinct
from pushdown_lm.trees import Span, Tree, is_binary

PUNCTUATION = frozenset({
    ",", ".", "?", "!", ":", ";", "...", "…", "-", "--", "–", "—",
    "`", "``", "''", '"', "“", "”", "‘",
})  # fmt: skip
"""The words that bear the tags ``, : `` '' .`` which EVALB's COLLINS.prm deletes.

Trees here have no tags, so words decide. The apostrophe is left in, most often a possessive, and so
are brackets and currency signs, which EVALB keeps.
"""


def brackets(
    tree: Tree, *, deleted_words: Collection[str] = (), whole_sentence: bool = True
) -> Counter[Span]:
    """The brackets of a tree, with multiplicity, over the words that remain.

    `whole_sentence` says whether brackets over all remaining words count.

    >>> tree = Tree(("The", "dog", "barks", "."), ((0, 2), (2, 4), (0, 4)))
    >>> sorted(brackets(tree, deleted_words={"."}).elements())
    [(0, 2), (0, 3), (2, 3)]
    """
    position = [0]
    for word in tree.words:
        position.append(position[-1] + (word not in deleted_words))
    spans = ((position[start], position[end]) for start, end in tree.spans)
    whole = (0, position[-1])
    return Counter(
        span for span in spans if span[0] < span[1] and (whole_sentence or span != whole)
    )


def left_branching(words: Sequence[str]) -> Tree:
    """(((a b) c) d)"""
    return Tree(tuple(words), tuple((0, end) for end in range(2, len(words) + 1)))


def right_branching(words: Sequence[str]) -> Tree:
    """(a (b (c d)))"""
    count = len(words)
    return Tree(tuple(words), tuple((start, count) for start in range(count - 2, -1, -1)))


def reduce_probability(depth: int, remaining: int) -> float:
    """The chance that a uniformly drawn binary tree reduces next (Arnold and Sleep, 1980).

    A binary tree over n words is a sequence of n - 1 shifts (after the first word) and n - 1
    reduces. With `remaining` actions to go and `depth` + 1 constituents on the stack, the share
    of the completions that begin with a reduce is

        depth (remaining + depth + 2) / (2 remaining (depth + 1))
    """
    return depth * (remaining + depth + 2) / (2 * remaining * (depth + 1))


def random_tree(words: Sequence[str], generator: random.Random) -> Tree:
    """A binary tree drawn uniformly from all binary trees over the words."""
    spans: list[Span] = []
    starts = [0]
    shifted = 1
    for remaining in range(2 * (len(words) - 1), 0, -1):
        if generator.random() < reduce_probability(len(starts) - 1, remaining):
            starts.pop()
            spans.append((starts[-1], shifted))
        else:
            starts.append(shifted)
            shifted += 1
    return Tree(tuple(words), tuple(spans))


@dataclass(frozen=True, slots=True)
class BracketingScore:
    """Bracket counts of one parser over a corpus."""

    matched: int
    gold: int
    predicted: int
    sentences: int
    """Sentences with a bracket in either tree; the next two are shares and sums over these."""
    exact: int
    """Sentences whose brackets are all matched, in both directions."""
    total_sentence_f1: float

    @property
    def precision(self) -> float:
        return _ratio(self.matched, self.predicted)

    @property
    def recall(self) -> float:
        return _ratio(self.matched, self.gold)

    @property
    def f1(self) -> float:
        return _ratio(2 * self.matched, self.gold + self.predicted)

    @property
    def sentence_f1(self) -> float:
        """Mean of the sentences' own F1."""
        return _ratio(self.total_sentence_f1, self.sentences)

    @property
    def exact_match(self) -> float:
        return _ratio(self.exact, self.sentences)

    def to_json(self) -> dict[str, Any]:
        return {
            "f1": self.f1,
            "precision": self.precision,
            "recall": self.recall,
            "sentence_f1": self.sentence_f1,
            "exact_match": self.exact_match,
            "matched_brackets": self.matched,
            "gold_brackets": self.gold,
            "predicted_brackets": self.predicted,
            "sentences_with_brackets": self.sentences,
        }


def score_brackets(
    gold: Sequence[Tree],
    predicted: Sequence[Tree],
    *,
    deleted_words: Collection[str] = (),
    whole_sentence: bool = True,
) -> BracketingScore:
    """Compares trees pairwise; both must have the same words."""
    matched = gold_total = predicted_total = exact = sentences = 0
    sentence_f1 = []
    for index, (gold_tree, predicted_tree) in enumerate(zip(gold, predicted, strict=True)):
        if list(gold_tree.words) != list(predicted_tree.words):
            raise PushdownError(
                f"tree {index + 1}: expected a parse of {' '.join(gold_tree.words)!r}, "
                f"got one of {' '.join(predicted_tree.words)!r}"
            )
        ours, theirs = (
            brackets(tree, deleted_words=deleted_words, whole_sentence=whole_sentence)
            for tree in (gold_tree, predicted_tree)
        )
        common = (ours & theirs).total()
        matched += common
        gold_total += ours.total()
        predicted_total += theirs.total()
        if ours or theirs:
            sentences += 1
            exact += ours == theirs
            sentence_f1.append(2 * common / (ours.total() + theirs.total()))
    return BracketingScore(
        matched, gold_total, predicted_total, sentences, exact, math.fsum(sentence_f1)
    )


@dataclass(frozen=True, slots=True)
class ParsingReport:
    """A parser's bracketing score with the trivial parsers' beside it, on the same sentences."""

    scorer: dict[str, Any]
    gold_is_binary: bool
    deleted_words: Sequence[str]
    whole_sentence: bool
    max_length: int | None
    seed: int
    parsed: int
    too_long: int
    """Sentences of more than `max_length` words, left out."""
    unknown_words: int
    """Sentences that the model cannot parse because of an unknown word, left out."""
    model: BracketingScore
    baselines: dict[str, BracketingScore]
    conventions: dict[str, dict[str, BracketingScore]]
    """Of the same parses, by parser, with punctuation ``kept`` and ``deleted``."""

    def to_json(self) -> dict[str, Any]:
        return {
            "evaluation": "parsing",
            "scorer": self.scorer,
            "gold_is_binary": self.gold_is_binary,
            "deleted_words": list(self.deleted_words),
            "whole_sentence_counted": self.whole_sentence,
            "max_length": self.max_length,
            "random_trees": f"uniform over binary trees, seed {self.seed}",
            "items": self.parsed,
            "too_long": self.too_long,
            "failures": self.unknown_words,
            "model": self.model.to_json(),
            "baselines": {name: score.to_json() for name, score in self.baselines.items()},
            "punctuation": {
                convention: {name: score.to_json() for name, score in scores.items()}
                for convention, scores in self.conventions.items()
            },
        }

    def table(self) -> Table:
        """Both conventions, one under the other."""
        whole = "counted" if self.whole_sentence else "not counted"
        table = Table(
            title=f"Unlabeled bracketing of {self.scorer.get('model')}: {self.parsed} sentences, "
            f"{self.unknown_words} with unknown words and {self.too_long} too long left out "
            f"(whole-sentence bracket {whole})"
        )
        table.add_column("punctuation")
        table.add_column("parser")
        for heading in ("F1", "precision", "recall", "sentence F1", "exact match"):
            table.add_column(heading, justify="right")
        titles = {"kept": "kept", "deleted": "deleted, as COLLINS.prm"}
        for convention, scores in self.conventions.items():
            table.add_section()
            for name, score in scores.items():
                figures = (
                    score.f1,
                    score.precision,
                    score.recall,
                    score.sentence_f1,
                    score.exact_match,
                )
                table.add_row(titles[convention], name, *(f"{figure:.1%}" for figure in figures))
        return table


def evaluate_parsing(
    scorer: Scorer,
    gold: Sequence[Tree],
    *,
    deleted_words: Collection[str] = (),
    whole_sentence: bool = True,
    max_length: int | None = None,
    seed: int = 0,
    chunk_size: int = 256,
    progress: Progress | None = None,
) -> ParsingReport:
    """Parses the gold trees' words and scores the parses against them.

    The scores are those with punctuation kept, or, with `PUNCTUATION` as `deleted_words`, without
    it; the model reads it in any case. The table has both. `max_length` counts all words of a
    sentence, as EVALB's cut-off does. Sentences with unknown words are left out, for the baselines
    as well, and counted.
    """
    short = [tree for tree in gold if max_length is None or len(tree.words) <= max_length]
    if not short:
        raise PushdownError(
            f"expected at least one tree of at most {max_length} words, got none of {len(gold)}"
            if gold
            else "expected at least one gold tree, got none"
        )
    parses = score_distinct(
        scorer.parse,
        (tuple(tree.words) for tree in short),
        chunk_size=chunk_size,
        progress=progress,
    )
    scored_gold: list[Tree] = []
    predicted: list[Tree] = []
    for tree in short:
        parse = parses[tuple(tree.words)]
        if parse is not None:
            if not is_binary(parse):
                raise PushdownError(
                    f"expected a binary tree of {len(tree.words) - 1} constituents over "
                    f"{' '.join(tree.words)!r}, got {len(parse.spans)}"
                )
            scored_gold.append(tree)
            predicted.append(parse)
    generator = random.Random(seed)

    trees = {
        "model": predicted,
        "left-branching": [left_branching(tree.words) for tree in scored_gold],
        "right-branching": [right_branching(tree.words) for tree in scored_gold],
        "random": [random_tree(tree.words, generator) for tree in scored_gold],
    }

    def scores(deleted: Collection[str]) -> dict[str, BracketingScore]:
        return {
            name: score_brackets(
                scored_gold, parser, deleted_words=deleted, whole_sentence=whole_sentence
            )
            for name, parser in trees.items()
        }

    conventions = {"kept": scores(()), "deleted": scores(deleted_words or PUNCTUATION)}
    chosen = conventions["deleted" if deleted_words else "kept"]
    return ParsingReport(
        scorer=scorer.describe(),
        gold_is_binary=all(is_binary(tree) for tree in scored_gold),
        deleted_words=tuple(sorted(deleted_words)),
        whole_sentence=whole_sentence,
        max_length=max_length,
        seed=seed,
        parsed=len(scored_gold),
        too_long=len(gold) - len(short),
        unknown_words=len(short) - len(scored_gold),
        model=chosen["model"],
        baselines={name: score for name, score in chosen.items() if name != "model"},
        conventions=conventions,
    )


def _ratio(numerator: float, denominator: float) -> float:
    return numerator / denominator if denominator else 0.0
