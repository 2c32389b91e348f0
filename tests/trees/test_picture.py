"""What notebooks show of trees."""

from __future__ import annotations

from pushdown_lm.trees import Tree, parse_tree
from pushdown_lm.trees.picture import MAX_WORDS, tree_picture


def test_notebooks_show_the_picture() -> None:
    tree = parse_tree("(S (NP The dog) (VP is happy))")
    assert tree._repr_html_() == tree_picture(tree)


def test_a_tree_too_large_to_read_is_shown_as_brackets() -> None:
    words = ["<b>"] * (MAX_WORDS + 1)
    shown = Tree(words, [(0, len(words))])._repr_html_()
    assert shown.startswith("<pre>(X &lt;b&gt; &lt;b&gt;")
