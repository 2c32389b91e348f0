"""Hypothesis strategies shared by all tests: words, trees, subword tokenisations."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from pushdown_lm.trees import Span, Tree, decode_word

LABELS = ("S", "NP", "VP", "PP", "PRP$", "-LRB-", "3")
_CHARACTERS = "abcXYZ019.,'\"-()[]{}/*\\$%é“字"


def words() -> st.SearchStrategy[str]:
    """Words of one to eight characters, brackets and slashes included.

    Left out are words that are Penn Treebank escapes of other words, as `-LRB-`.
    """
    return st.text(_CHARACTERS, min_size=1, max_size=8).filter(lambda w: decode_word(w) == w)


@st.composite
def trees(
    draw: st.DrawFn, *, min_words: int = 1, max_words: int = 12, labels: bool = False
) -> Tree:
    """Trees of any arity; the simplest have few words and one flat constituent."""
    leaves = draw(st.lists(words(), min_size=min_words, max_size=max_words))
    spans: list[Span] = []
    stack: list[int] = []
    for start in range(len(leaves)):
        stack.append(start)
        while len(stack) > 2 and draw(st.booleans()):
            first = draw(st.integers(1, len(stack) - 1)) - 1
            spans.append((stack[first], start + 1))
            del stack[first + 1 :]
    if len(stack) > 1:
        spans.append((0, len(leaves)))
    return Tree(tuple(leaves), tuple(spans), draw(_labels(spans)) if labels else None)


@st.composite
def binary_trees(
    draw: st.DrawFn, *, min_words: int = 1, max_words: int = 12, labels: bool = False
) -> Tree:
    """Binary trees; the simplest have few words and branch to the right."""
    leaves = draw(st.lists(words(), min_size=min_words, max_size=max_words))
    spans: list[Span] = []
    stack: list[int] = []
    for start in range(len(leaves)):
        stack.append(start)
        is_last = start == len(leaves) - 1
        while len(stack) > 1 and (is_last or draw(st.booleans())):
            stack.pop()
            spans.append((stack[-1], start + 1))
    return Tree(tuple(leaves), tuple(spans), draw(_labels(spans)) if labels else None)


def _labels(spans: list[Span]) -> st.SearchStrategy[tuple[str, ...]]:
    return st.tuples(*[st.sampled_from(LABELS)] * max(len(spans), 1))


@st.composite
def tokenisations(draw: st.DrawFn, tree: Tree) -> list[list[str]]:
    """The pieces of each word of a tree: words cut at any of their characters."""
    pieces = []
    for word in tree.words:
        cuts = draw(st.sets(st.integers(1, max(1, len(word) - 1)), max_size=3))
        bounds = [0, *sorted(cuts - {len(word)}), len(word)]
        pieces.append([word[i:j] for i, j in pairwise(bounds)])
    return pieces
