"""Pictures: what is drawn are the trees, tapes, surprisals and weights that were given."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pushdown_lm import viz
from pushdown_lm.errors import PushdownError
from pushdown_lm.trees import Tree, parse_tree
from pushdown_lm.trees.oracle import algorithm1, attachments_from_tree
from tests.strategies import trees

SVG = "{http://www.w3.org/2000/svg}"
WORDS = ["The", "dog", "is", "happy"]
EXAMPLE = parse_tree("(S (NP The dog) (VP is happy))")


def texts(picture: str) -> list[str]:
    return [element.text or "" for element in ElementTree.fromstring(picture).iter(f"{SVG}text")]


def count(picture: str, shape: str) -> int:
    return len(list(ElementTree.fromstring(picture).iter(f"{SVG}{shape}")))


def branches(picture: str) -> int:
    """Lines from a constituent to a child."""
    paths = ElementTree.fromstring(picture).iter(f"{SVG}path")
    return sum((path.get("d") or "").count("M") for path in paths)


def test_the_worked_example() -> None:
    picture = viz.parse(EXAMPLE, [1.25, 3.0, 0.5, 2.0])
    shown = texts(picture)
    assert shown[:4] == WORDS
    assert shown[4:8] == ["1.2", "3.0", "0.5", "2.0"]
    assert shown[-14:] == [
        "The",
        "0",
        "dog",
        "1",
        "1",
        "is",
        "1",
        "1",
        "0",
        "happy",
        "2",
        "2",
        "2",
        "2",
    ]
    assert branches(picture) == 6 + 1  # two from each of three constituents, and the axis
    assert count(picture, "rect") == 1 + 4 + 10  # paper, bars, cells of the tape


@given(trees(max_words=12))
def test_a_tree_is_drawn_whole(tree: Tree) -> None:
    picture = viz.tree(tree)
    assert texts(picture)[-len(tree.words) :] == list(tree.words)
    assert count(picture, "path") == len(tree.spans)
    assert branches(picture) == max(0, len(tree.words) + len(tree.spans) - 1)


@given(trees(max_words=12))
def test_the_tape_is_that_of_the_tree(tree: Tree) -> None:
    rows = [row[1:] for row in algorithm1(attachments_from_tree(tree)[:-1])[1:]]
    shown = texts(viz.tape(tree.words, rows))[len(tree.words) :]
    labeled = zip(tree.words, rows, strict=True)
    assert shown == [text for word, row in labeled for text in (word, *map(str, row))]
    assert texts(viz.parse(tree))[-len(shown) :] == shown


def test_what_is_not_read_yet_is_faint() -> None:
    picture = ElementTree.fromstring(viz.tree(Tree(WORDS, [(0, 2)]), num_read=2))
    assert [word.get("class") for word in picture.iter(f"{SVG}text")] == [
        "ink",
        "accent",
        "faint",
        "faint",
    ]
    assert [path.get("class") for path in picture.iter(f"{SVG}path")] == ["line accent"]


def test_labels_are_drawn() -> None:
    tree = parse_tree("(S (NP The dog) (VP is happy))", labels=True)
    assert texts(viz.tree(tree)) == ["NP", "VP", "S", *WORDS]


def bar_heights(picture: str, color: str) -> list[float]:
    shapes = ElementTree.fromstring(picture).iter(f"{SVG}rect")
    return [float(bar.get("height") or 0) for bar in shapes if bar.get("class") == color]


def test_bars_are_as_high_as_surprisals() -> None:
    picture = viz.surprisals(WORDS, {"one": [1, 2, 4, 0], "other": [2, 2, 2, 2]}, [None, 8, 1, 1])
    first, second = bar_heights(picture, "accent"), bar_heights(picture, "depth")
    assert [height / first[0] for height in first] == [1, 2, 4, 0]
    assert second == [first[1]] * 4
    assert {"one", "other", "— entropy"} <= set(texts(picture))
    assert count(picture, "path") == 1 + 3  # the axis, and three entropies


def test_infinite_surprisals_are_refused() -> None:
    with pytest.raises(PushdownError, match="expected finite numbers"):
        viz.surprisals(["a"], [float("inf")])


def test_attention_of_one_head_and_of_all() -> None:
    weights = torch.tril(torch.rand(2, 3, 4, 4, generator=torch.Generator().manual_seed(0)))
    weights = weights / weights.sum(-1, keepdim=True)
    picture = viz.attention(WORDS, weights[1, 2], marked=3)
    assert count(picture, "rect") == 1 + 10 + 1  # paper, cells, the frame
    percent = [f"{100 * weight:.0f}" for weight in weights[1, 2, 3].tolist() if weight >= 0.05]
    assert texts(picture)[-len(percent) :] == percent
    picture = viz.attention(WORDS, weights, marked=2)
    assert count(picture, "rect") == 1 + 2 * 3 * 3
    names = [name for name in texts(picture) if name.startswith(("layer", "head"))]
    assert names == ["layer 1", "head 1", "head 2", "head 3", "layer 2", *names[1:4]]
    assert viz.attention(WORDS, weights.numpy(), marked=2) == picture


def test_darkness_follows_the_weight() -> None:
    picture = ElementTree.fromstring(viz.attention(["a", "b"], [[1, 0], [0.25, 0.75]]))
    opacity = [float(cell.get("fill-opacity") or 1) for cell in picture.iter(f"{SVG}rect")][1:]
    assert opacity[1] < opacity[2] < opacity[0]


def test_weights_of_another_shape_are_refused() -> None:
    with pytest.raises(PushdownError, match=r"expected the shape \(2, 2\).*got \(2, 3\)"):
        viz.attention(["a", "b"], np.zeros((2, 3)))
    with pytest.raises(PushdownError, match="marked: expected a position from 0 to 1, got 2"):
        viz.attention(["a", "b"], np.zeros((2, 2)), marked=2)


PICTURES: list[Callable[[list[str]], str]] = [
    lambda words: viz.parse(Tree(words, [(0, 2)]), [1.0, 2.0]),
    lambda words: viz.tree(Tree(words, [(0, 2)])),
    lambda words: viz.surprisals(words, {words[0]: [1.0, 2.0], words[1]: [1.0, 2.0]}),
    lambda words: viz.tape(words, [[0], [1, 1]]),
    lambda words: viz.attention(words, np.eye(2)),
]


@pytest.mark.parametrize("draw", PICTURES)
@given(first=st.text(max_size=8), second=st.text(max_size=8))
def test_any_text_is_drawn_as_text(
    draw: Callable[[list[str]], str], first: str, second: str
) -> None:
    hostile = '</text><script>alert("1")</script>'
    picture = draw([f"{first}\x00{hostile}", f"\x1b{second}&amp;"])
    picture.encode()
    kinds = {element.tag for element in ElementTree.fromstring(picture).iter()}
    assert kinds <= {f"{SVG}{kind}" for kind in ("svg", "title", "text", "rect", "path")}


@pytest.mark.parametrize("draw", PICTURES)
def test_nothing_is_loaded_from_elsewhere(draw: Callable[[list[str]], str]) -> None:
    picture = draw(["a", "b"])
    assert re.findall(r"https?://[^\"']+", picture) == ["http://www.w3.org/2000/svg"]
    assert "style" not in picture
