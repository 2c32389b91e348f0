"""Trees of whole files cut into units that a model reads, and how deeply code is nested.

A unit is a part of a file of at most `max_words` words. Siblings stay together (lines, functions,
methods) as long as they fit; where a constituent is longer than a unit, as a class, its children
are cut up in its place. Short parts then join their neighbors, as here the first line of a class:

    class A : ↵ ⇥ x = 1 ↵ def f ...          def g ... def h ...          def i ... ⇤

A constituent that was cut is one in each of the units, over those of its words that are there. The
units of a file, in order, have each of its words once.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator
from itertools import chain
from typing import NamedTuple

from pushdown_lm.corpora.code_trees import DEDENT, INDENT, CodeError
from pushdown_lm.trees import Span, Tree
from pushdown_lm.trees.tree import children_of, label_of

PAIRS = {"(": ")", "[": "]", "{": "}", INDENT: DEDENT}
"""What opens, and what closes it."""
CLOSING = tuple(PAIRS.values())


def cut(tree: Tree, max_words: int) -> Iterator[Tree]:
    """The units of a tree, in order."""
    if max_words < 1:
        raise CodeError(f"max_words: expected at least 1, got {max_words}")
    parts = Parts(tree)
    start = end = 0
    for _, next_end in parts.sibling_runs(max_words):
        if next_end - start > max_words:
            yield parts.part(start, end)
            start = end
        end = next_end
    if end:
        yield parts.part(start, end)


class Parts:
    """A tree of which parts are taken."""

    def __init__(self, tree: Tree) -> None:
        self.tree = tree
        self._children = dict(zip(tree.spans, children_of(tree), strict=True))
        self._numbers = {span: number for number, span in enumerate(tree.spans)}
        self._parents = {
            child: parent for parent, children in self._children.items() for child in children
        }
        self._ends = [end for _, end in tree.spans]

    def sibling_runs(self, max_words: int) -> Iterator[Span]:
        """Cut the tree into runs of siblings, each as long as it can be, in order."""
        waiting: list[Span | None] = [(0, len(self.tree.words))]  # None ends a row of siblings
        start = end = 0
        while waiting:
            span = waiting.pop()
            if start < end and (span is None or span[1] - start > max_words):
                yield start, end
                start = end
            if span is None:
                continue
            if span[1] - span[0] > max_words:
                waiting += [None, *reversed(self._children[span])]
            else:
                end = span[1]
        if start < end:
            yield start, end

    def part(self, start: int, end: int) -> Tree:
        """The tree over the words from start to end: each constituent with those that it has."""
        inside = range(bisect_right(self._ends, start), bisect_right(self._ends, end))
        spans: list[Span] = []
        labels: list[str] = []
        for number in chain(inside, self._around(end)):
            first, last = self.tree.spans[number]
            span = max(first, start) - start, min(last, end) - start
            if spans and spans[-1] == span:
                labels[-1] = label_of(self.tree, number, "")
            elif span[1] - span[0] > 1:
                spans.append(span)
                labels.append(label_of(self.tree, number, ""))
        words = self.tree.words[start:end]
        return Tree(
            words, tuple(spans), self.tree.labels and (tuple(labels) or self.tree.labels[-1:])
        )

    def _around(self, end: int) -> Iterator[int]:
        """The constituents that go on after `end`, innermost first."""
        span: Span | None = (end - 1, end)
        while span is not None:
            if span[1] > end:
                yield self._numbers[span]
            span = self._parents.get(span)


class Closing(NamedTuple):
    """A bracket, or the indentation of a block, and where it is closed."""

    opening: int
    position: int
    """Of the closing word."""
    nesting: int
    """Pairs around the closing word, its own included."""


def closings(tree: Tree) -> list[Closing]:
    """The closed pairs of a tree, by the position of the closing word.

    The two words of a pair are children of one constituent; so a bracket within a string closes
    nothing outside of it.

    >>> from pushdown_lm.corpora.code_trees import read_code
    >>> closings(read_code("f(g[x], ')')"))
    [Closing(opening=3, position=5, nesting=2), Closing(opening=1, position=10, nesting=1)]
    """
    pairs: list[Span] = []
    for siblings in children_of(tree):
        opened: list[int] = []
        for start, end in siblings:
            word = tree.words[start]
            if end - start > 1:
                continue
            if word in PAIRS:
                opened.append(start)
            elif opened and PAIRS[tree.words[opened[-1]]] == word:
                pairs.append((opened.pop(), start))
    found: list[Closing] = []
    around: list[int] = []
    for opening, position in sorted(pairs):
        while around and around[-1] < opening:
            around.pop()
        around.append(position)
        found.append(Closing(opening, position, len(around)))
    return sorted(found, key=lambda closing: closing.position)


def nesting(tree: Tree) -> int:
    """The largest number of brackets and blocks within each other."""
    return max((closing.nesting for closing in closings(tree)), default=0)
