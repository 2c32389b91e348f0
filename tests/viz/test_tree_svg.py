"""Pictures of trees: what is drawn is the tree, its tape and its surprisals."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree

from pushdown_lm.trees import parse_tree
from pushdown_lm.viz.tree_svg import tree_svg

SVG = "{http://www.w3.org/2000/svg}"


def draw(text: str, surprisals: list[float] | None = None) -> tuple[list[str], int, int]:
    """The texts of a picture, and how many lines and rectangles it has."""
    root = ElementTree.fromstring(tree_svg(parse_tree(text), surprisals))
    texts = [element.text or "" for element in root.iter(f"{SVG}text")]
    return texts, len(list(root.iter(f"{SVG}line"))), len(list(root.iter(f"{SVG}rect")))


def test_the_worked_example() -> None:
    texts, lines, rectangles = draw("(S (NP The dog) (VP is happy))", [1.25, 3.0, 0.5, 2.0])
    words = ["The", "dog", "is", "happy"]
    assert texts[:4] == words
    assert texts[4:8] == ["1.2", "3.0", "0.5", "2.0"]
    tape = "The 0 dog 1 1 is 1 1 0 happy 2 2 2 2"
    assert texts[10:] == tape.split()
    assert lines == 6  # two from each of three constituents
    assert rectangles == 1 + 4 + 10  # background, bars, cells of the tape


def test_without_surprisals_there_are_no_bars() -> None:
    texts, lines, rectangles = draw("(S a b c)")
    assert "surprisal, bits" not in texts
    assert lines == 3  # an n-ary tree is drawn as it is
    assert rectangles == 1 + 6


def test_words_are_escaped() -> None:
    texts, _, _ = draw("(S R&D <b>)")
    assert texts[:2] == ["R&D", "<b>"]


def test_nothing_is_loaded_from_elsewhere() -> None:
    picture = tree_svg(parse_tree("(S a b)"))
    assert re.findall(r"https?://\S+?(?=[\"'])", picture) == ["http://www.w3.org/2000/svg"]
    assert "<script" not in picture
