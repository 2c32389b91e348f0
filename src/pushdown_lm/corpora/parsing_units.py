"""One unit of raw text to trees: splitting, parsing, checking. Any worker does it alike."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

from pushdown_lm.corpora.parsers import Answer, Parser, ParserOptions, Refusal
from pushdown_lm.corpora.raw_text import Cutting, Rejection, Sentence, Unit, read_sentences
from pushdown_lm.files import atomic_write
from pushdown_lm.trees import Tree, to_brackets


@dataclass(frozen=True)
class UnitOptions:
    """What decides the trees of a unit, besides its text."""

    parser: str
    parser_options: ParserOptions
    cutting: Cutting
    language: str | None
    min_words: int
    max_words: int | None
    stops: bool
    """Whether the first error ends the unit."""


@dataclass
class UnitResult:
    """The trees of a unit, what was rejected, and statistics."""

    trees: str = ""
    """Brackets, one tree per line."""
    counts: dict[str, int] = field(
        default_factory=lambda: {"sentences": 0, "words": 0, "constituents": 0}
    )
    maxima: dict[str, int] = field(default_factory=lambda: {"longest": 0, "max_depth": 0})
    rejected: list[Rejection] = field(default_factory=list)

    def add(self, trees: Sequence[Tree]) -> None:
        self.trees = "".join(f"{to_brackets(tree)}\n" for tree in trees)
        self.counts = {
            "sentences": len(trees),
            "words": sum(len(tree.words) for tree in trees),
            "constituents": sum(len(tree.spans) for tree in trees),
        }
        self.maxima = {
            "longest": max((len(tree.words) for tree in trees), default=0),
            "max_depth": max(map(depth, trees), default=0),
        }

    def dumps(self) -> str:
        """A line of JSON, then the trees."""
        record = {"counts": self.counts, "maxima": self.maxima, "rejected": self.rejected}
        return f"{json.dumps(record)}\n{self.trees}"

    @classmethod
    def loads(cls, text: str) -> UnitResult:
        line, _, trees = text.partition("\n")
        record: dict[str, Any] = json.loads(line)
        rejected = [Rejection(*fields) for fields in record["rejected"]]
        return cls(trees, record["counts"], record["maxima"], rejected)

    def save(self, path: Path) -> None:
        with atomic_write(path) as file:
            file.write(self.dumps())

    @classmethod
    def load(cls, path: Path) -> UnitResult:
        return cls.loads(path.read_text(encoding="utf-8"))


def depth(tree: Tree) -> int:
    """How many constituents are nested in one another at most.

    >>> depth(Tree(("a", "b", "c", "d"), ((0, 2), (2, 4), (0, 4))))
    2
    """
    deepest = 0
    stack: list[tuple[int, int]] = []  # start and depth of the constituents not yet taken in
    for start, _ in tree.spans:
        below = 0
        while stack and stack[-1][0] >= start:
            below = max(below, stack.pop()[1])
        stack.append((start, below + 1))
        deepest = max(deepest, below + 1)
    return deepest


def parse_unit(unit: Unit, parser: Parser, options: UnitOptions) -> UnitResult:
    """Split, parse and check the sentences of a unit."""
    result = UnitResult()
    sentences: list[Sentence] = []
    for item in read_sentences(unit, options.cutting, options.language):
        if isinstance(item, Rejection):
            result.rejected.append(item)
            if options.stops:
                return result
        elif (refusal := _check_length(item, options)) is not None:
            result.rejected.append(_reject(item, refusal))
        else:
            sentences.append(item)
    trees: list[Tree] = []
    answers = parser.parse(sentences)
    for sentence, answer in zip(sentences, islice(answers, len(sentences)), strict=True):
        checked = check_answer(sentence, answer, options)
        if isinstance(checked, Tree):
            trees.append(checked)
        else:
            result.rejected.append(_reject(sentence, checked))
            if options.stops and checked.reason != "low confidence":
                break
    result.add(trees)
    result.rejected.sort(key=lambda rejection: rejection.line)
    return result


def check_answer(sentence: Sentence, answer: Answer, options: UnitOptions) -> Answer:
    """The tree over the words of the sentence, or why there is none."""
    if isinstance(answer, Refusal):
        return answer
    if not answer.words:
        return Refusal("no parse", "a tree without words")
    if not sentence.words:
        words = tuple("_".join(word.split()) for word in answer.words)
        tree = Tree(words, answer.spans, answer.labels)
        return _check_length(sentence._replace(words=words), options) or tree
    if len(answer.words) != len(sentence.words):
        detail = f"expected {len(sentence.words)}, found {len(answer.words)}"
        return Refusal("wrong number of words", detail)
    return Tree(sentence.words, answer.spans, answer.labels)


def _check_length(sentence: Sentence, options: UnitOptions) -> Refusal | None:
    count = len(sentence.words)
    if count == 0:  # not cut yet
        return None
    if count < options.min_words:
        return Refusal("too few words", f"{count} of at least {options.min_words}")
    if options.max_words is not None and count > options.max_words:
        return Refusal("too many words", f"{count} of at most {options.max_words}")
    return None


def _reject(sentence: Sentence, refusal: Refusal) -> Rejection:
    return Rejection(sentence.line, refusal.reason, refusal.detail, sentence.text[:1000])
