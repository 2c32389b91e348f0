"""Trees to actions and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushdown_lm.errors import PushdownError
from pushdown_lm.trees import Tree, merge_pieces, parse_tree
from pushdown_lm.trees.linearization import actions_from_tree, tree_from_actions
from tests import strategies

LABELS = [*strategies.LABELS, "X"]


def test_the_paper_s_example() -> None:
    tree = parse_tree("(S (NP The dog) (VP is happy))", labels=True)
    assert actions_from_tree(tree, ["S", "NP", "VP"].index) == [1, 2, 0, 0, -1, 3, 0, 0, -1, -1]


@given(strategies.trees(labels=True))
def test_actions_build_the_tree_again(tree: Tree) -> None:
    actions = actions_from_tree(tree, LABELS.index)
    assert tree_from_actions(actions, LABELS, tree.words) == tree


@given(st.data(), strategies.trees(labels=True))
def test_pieces_merge_to_the_words(data: st.DataObject, tree: Tree) -> None:
    counts = list(map(len, data.draw(strategies.tokenisations(tree))))
    actions = actions_from_tree(tree, LABELS.index, counts)
    assert actions.count(0) == sum(counts)
    over_tokens = tree_from_actions(actions, LABELS)
    assert merge_pieces(over_tokens, counts, tree.words) == tree


def test_words_without_tokens_and_labels_without_names() -> None:
    tree = parse_tree("(S (NP the dog) (VP barks .))", labels=True)
    assert actions_from_tree(tree, ["S", "NP"].index, [1, 1, 1, 0]) == [1, 2, 0, 0, -1, 0, -1]
    assert actions_from_tree(Tree(["yes"], []), ["X"].index) == [1, 0, -1]
    assert tree_from_actions([1, 0, -1], ["S"], ["yes"]) == Tree(("yes",), (), ("S",))


def test_unary_chains_keep_their_outermost_label() -> None:
    actions = [1, 2, 3, 0, 0, -1, -1, -1]
    assert tree_from_actions(actions, ["S", "VP", "NP"]) == Tree(("", ""), ((0, 2),), ("S",))


@pytest.mark.parametrize("actions", [[1, 0], [1, 0, -1, -1], [1, -1]])
def test_what_is_no_tree(actions: list[int]) -> None:
    with pytest.raises(PushdownError, match="expected actions of a"):
        tree_from_actions(actions, ["S"])
