"""Tests of `pushdown_lm.trees.conllu`."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushdown_lm.errors import PushdownError, TreeError
from pushdown_lm.trees import (
    Tree,
    draw,
    is_binary,
    parse_tree,
    parse_trees,
    read_trees,
    to_brackets,
)
from pushdown_lm.trees.conllu import dependencies_to_tree, is_projective, lift


def rows(*words: tuple[str, str, str]) -> str:
    """A CoNLL-U sentence of (id, form, head) triples."""
    lines = [f"{id_}\t{form}\t_\tX\t_\t_\t{head}\tdep\t_\t_" for id_, form, head in words]
    return "\n".join([*lines, "", ""])


@st.composite
def heads(draw: st.DrawFn, max_words: int = 9) -> list[int]:
    """Any dependency tree: each word in a drawn order hangs from an earlier one."""
    order = draw(st.permutations(range(1, draw(st.integers(1, max_words)) + 1)))
    chosen = [0] * len(order)
    for index, word in enumerate(order[1:], 1):
        chosen[word - 1] = order[draw(st.integers(0, index - 1))]
    return chosen


def below(heads: list[int], word: int) -> set[int]:
    """The word and all its descendants, by walking up from each word."""
    found = set()
    for start in range(1, len(heads) + 1):
        above = start
        while above not in (0, word):
            above = heads[above - 1]
        if above == word:
            found.add(start)
    return found


def test_the_drawing_of_the_docstring() -> None:
    tree = dependencies_to_tree(["She", "often", "reads", "a", "book"], [3, 3, 0, 5, 3])
    documented = (dependencies_to_tree.__doc__ or "").splitlines()
    top = next(number for number, line in enumerate(documented) if "┴" in line)
    left = documented[top + 4].rindex("She")
    assert [line[left:] for line in documented[top : top + 5]] == draw(tree).splitlines()


def test_right_dependents_come_before_left_ones() -> None:
    tree = dependencies_to_tree(tuple("abcde"), [3, 3, 0, 3, 3])
    assert tree.spans == ((2, 4), (2, 5), (1, 5), (0, 5))
    assert to_brackets(tree) == "(X a (X b (X (X c d) e)))"


def test_one_word() -> None:
    assert dependencies_to_tree(["Yes"], [0]) == Tree(("Yes",), ())


@given(heads())
def test_projective_trees_give_binary_trees_with_all_subtrees(drawn: list[int]) -> None:
    projective = lift(drawn)
    tree = dependencies_to_tree([f"w{number}" for number in range(len(drawn))], projective)
    assert is_binary(tree)
    assert parse_tree(to_brackets(tree)) == tree
    for word in range(1, len(drawn) + 1):
        subtree = below(projective, word)
        assert len(subtree) == 1 or (min(subtree) - 1, max(subtree)) in tree.spans


@given(heads())
def test_lifting(drawn: list[int]) -> None:
    contiguous = all(
        max(subtree) - min(subtree) + 1 == len(subtree)
        for subtree in (below(drawn, word) for word in range(1, len(drawn) + 1))
    )
    assert is_projective(drawn) == contiguous
    lifted = lift(drawn)
    assert is_projective(lifted)
    assert (lifted == drawn) == contiguous
    for word, head in enumerate(lifted, 1):
        assert head == 0 or word in below(drawn, head)


def test_bad_heads() -> None:
    for wrong in ([2, 1], [0, 0], [0, 3, 2]):
        with pytest.raises(PushdownError, match="tree with one root"):
            dependencies_to_tree(["w"] * len(wrong), wrong)
    with pytest.raises(PushdownError, match="expected a projective tree"):
        dependencies_to_tree(tuple("abcd"), [2, 0, 1, 2])


def test_long_chains_do_not_recurse() -> None:
    size = 20_000
    tree = dependencies_to_tree(["w"] * size, list(range(size)))
    assert tree.spans[0] == (size - 2, size)
    assert tree.spans[-1] == (0, size)


def test_reading_multiword_tokens_empty_nodes_and_comments(tmp_path: Path) -> None:
    text = "# text = We don't.\n" + rows(
        ("1", "We", "2"),
        ("2-3", "don't", "_"),
        ("2", "do", "0"),
        ("3", "n't", "2"),
        ("3.1", "know", "_"),
        ("4", ".", "2"),
    )
    expected = Tree(("We", "do", "n't", "."), ((1, 3), (1, 4), (0, 4)))
    path = tmp_path / "ud.conllu"
    path.write_text("\n" + text + "\n# only a comment\n\n" + text.rstrip("\n"), newline="\r\n")
    assert list(read_trees(path)) == [expected, expected]
    assert list(parse_trees(text)) == [expected]
    assert parse_tree(rows(("1", "Yes", "0")), format="conllu") == Tree(("Yes",), ())


CROSSING = rows(("1", "a", "2"), ("2", "b", "0"), ("3", "c", "1"), ("4", "d", "2"))


def test_crossing_arcs_are_reported_skipped_or_lifted() -> None:
    text = rows(("1", "x", "0")) + CROSSING + rows(("1", "y", "0"))
    with pytest.raises(TreeError) as raised:
        list(parse_trees(text, source="ud.conllu"))
    assert str(raised.value) == (
        "ud.conllu:3:1: expected a projective tree, found crossing arcs in [2, 0, 1, 2]"
    )
    counts: Counter[str] = Counter()
    skipped = parse_trees(text, errors="skip", counts=counts)
    assert [tree.words for tree in skipped] == [("x",), ("y",)]
    assert counts == {"not projective": 1}
    lifted = list(parse_trees(text, nonprojective="lift"))
    assert lifted[1] == Tree(tuple("abcd"), ((1, 3), (1, 4), (0, 4)))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("# c\n1\ta\t_\n", "f:2:1: expected 10 columns divided by tabs, found 3"),
        (rows(("1", "a", "0"), ("3", "b", "1")), "f:2:1: expected word number 2, found '3'"),
        (rows(("1", "a", "0"), ("2", "b", "7")), "f:2:13: expected a head from 0 to 2, found '7'"),
        (rows(("1", "a", "_")), "f:1:13: expected a head from 0 to 1, found '_'"),
        (
            rows(("1", "a", "2"), ("2", "b", "1")),
            "f:1:1: expected heads that form a tree with one root, found [2, 1]",
        ),
    ],
)
def test_error_messages(text: str, message: str) -> None:
    with pytest.raises(TreeError) as raised:
        list(parse_trees(text, format="conllu", source="f"))
    assert str(raised.value) == message
