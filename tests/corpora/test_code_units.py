"""Units of code and nesting, against slow versions."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushdown_lm.corpora.code_trees import DEDENT, INDENT, CodeError
from pushdown_lm.corpora.code_units import PAIRS, Closing, Parts, closings, cut, nesting
from pushdown_lm.data.encoding import check_spans
from pushdown_lm.trees import Tree, drop_words, parse_tree
from pushdown_lm.trees.tree import children_of
from tests.strategies import trees

SYMBOLS = (*PAIRS, *PAIRS.values(), "x")


@given(trees(max_words=30, labels=True), st.data())
def test_a_part_is_the_tree_without_the_other_words(tree: Tree, data: st.DataObject) -> None:
    start = data.draw(st.integers(0, len(tree.words) - 1))
    end = data.draw(st.integers(start + 1, len(tree.words)))
    kept = [start <= word < end for word in range(len(tree.words))]
    part = Parts(tree).part(start, end)
    expected = drop_words(tree, kept)
    assert (part.words, part.spans) == (expected.words, expected.spans)
    assert not part.spans or part.labels == expected.labels


@given(trees(max_words=30), st.integers(1, 12))
def test_units_are_short_and_have_all_words(tree: Tree, max_words: int) -> None:
    units = list(cut(tree, max_words))
    assert [word for unit in units for word in unit.words] == list(tree.words)
    assert all(len(unit.words) <= max_words for unit in units)
    for unit in units:
        check_spans(unit.spans, len(unit.words))
    for unit, following in pairwise(units):
        assert len(unit.words) + len(following.words) > max_words / 2


@given(trees(max_words=30), st.integers(1, 12))
def test_runs_are_siblings_and_as_long_as_they_can_be(tree: Tree, max_words: int) -> None:
    rows = [[(0, len(tree.words))], *children_of(tree)]
    runs = list(Parts(tree).sibling_runs(max_words))
    assert [start for start, _ in runs] == [0, *(end for _, end in runs[:-1])]
    for start, end in runs:
        row = next(row for row in rows if start in dict(row) and end in dict(row).values())
        assert dict(row).get(end, len(tree.words) + max_words) - start > max_words


def test_worked_example() -> None:
    tree = parse_tree(
        "(c class A : (b ↵ ⇥ (l x ↵) (d def f : (b pass ↵)) (d def g : (b pass ↵)) ⇤))"
    )
    units = [" ".join(unit.words) for unit in cut(tree, 12)]
    assert units == ["class A : ↵ ⇥ x ↵ def f : pass ↵", "def g : pass ↵ ⇤"]
    assert [" ".join(unit.words) for unit in cut(tree, 100)] == [" ".join(tree.words)]
    with pytest.raises(CodeError, match="max_words: expected at least 1"):
        list(cut(tree, 0))


# ------------------------------------------------------------------ nesting


def slow_pairs(tree: Tree) -> set[tuple[int, int]]:
    """Pairs of siblings between which, among the single words, all pairs are closed."""
    pairs = set()
    for siblings in children_of(tree):
        words = [(start, tree.words[start]) for start, end in siblings if end - start == 1]
        for first, (opening, word) in enumerate(words):
            for last in range(first + 1, len(words)):
                closing, other = words[last]
                inner = [symbol for _, symbol in words[first + 1 : last]]
                if PAIRS.get(word) == other and is_balanced(inner):
                    pairs.add((opening, closing))
                    break
    return pairs


def is_balanced(symbols: list[str]) -> bool:
    """Whether nothing stays open, when closing words that close nothing are passed over."""
    opened: list[str] = []
    for symbol in symbols:
        if symbol in PAIRS:
            opened.append(symbol)
        elif opened and PAIRS[opened[-1]] == symbol:
            opened.pop()
    return not opened


@st.composite
def bracketed(draw: st.DrawFn) -> Tree:
    shape = draw(trees(max_words=16))
    symbols = st.sampled_from(SYMBOLS)
    words = draw(st.lists(symbols, min_size=len(shape.words), max_size=len(shape.words)))
    return Tree(tuple(words), shape.spans)


@given(bracketed())
def test_closings_are_those_of_the_slow_version(tree: Tree) -> None:
    pairs = slow_pairs(tree)
    expected = [
        Closing(
            opening, position, sum(first <= opening and position <= last for first, last in pairs)
        )
        for opening, position in sorted(pairs, key=lambda pair: pair[1])
    ]
    assert closings(tree) == expected
    assert nesting(tree) == max((closing.nesting for closing in expected), default=0)


def test_closings_of_blocks() -> None:
    tree = parse_tree("(s if x : (b ↵ ⇥ (l (c f (a -LRB- y -RRB-)) ↵) ⇤))")
    assert tree.words[4] == INDENT
    assert closings(tree) == [Closing(6, 8, 2), Closing(4, 10, 1)]
    assert tree.words[10] == DEDENT
    assert nesting(tree) == 2
