"""A parse as an SVG picture: the tree, the surprisal of each word, and the stack tape.

    python -m pushdown_lm.viz.tree_svg runs/demo/seed0/demo/model 'the dog is happy .' tree.svg

The picture needs no font, style sheet or script from elsewhere, and its background is white, so
that it looks the same wherever it is shown.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from itertools import accumulate, pairwise
from pathlib import Path
from xml.sax.saxutils import escape

from pushdown_lm.files import atomic_write
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from pushdown_lm.trees.oracle import algorithm1, attachments_from_tree
from pushdown_lm.trees.tree import Span, Tree, children_of

MARGIN, LEFT = 16, 108
"""Around the picture, and the width of the labels on its left."""
LEVEL, BARS, CELL = 26, 44, 22
"""Heights of a level of the tree, of the highest bar, and of a row of the tape."""
INK, FAINT, BAR, DEPTH = "#24292f", "#6e7781", "#bf5b17", "#3b6fb6"


def tree_svg(tree: Tree, surprisals: Sequence[float] | None = None) -> str:
    """The picture of a tree of words, with the surprisals of the words, in bits, if given.

    Row k of the tape is labeled with word k and shows W_k[1..k], the depths right after the word's
    attachment. N-ary trees are drawn as they are, and their tape is that of the binarized tree.
    """
    edges = list(accumulate((max(34, 8 * len(word) + 14) for word in tree.words), initial=LEFT))
    centers = [(left + right) / 2 for left, right in pairwise(edges)]
    parts, height = _branches(tree, centers, MARGIN)
    height += 16
    for x, word in zip(centers, tree.words, strict=True):
        parts.append(_text(x, height, word, weight="bold"))
    if surprisals is not None:
        parts += _bars(centers, surprisals, height + 12)
        parts.append(_text(MARGIN, height + 12 + BARS, "surprisal, bits", FAINT, "start"))
        height += BARS + 30
    parts.append(_text(MARGIN, height + 24, "stack tape after", FAINT, "start"))
    height += 32
    rows = algorithm1(attachments_from_tree(tree)[:-1])[1:]
    for word, row in zip(tree.words, rows, strict=True):
        parts.append(_text(LEFT - 8, height + 15, word, INK, "end"))
        parts += _cells(edges, row[1:], height)
        height += CELL
    width = edges[-1] + MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height + MARGIN}" '
            f'width="{width}" height="{height + MARGIN}" font-family="sans-serif" font-size="13">',
            f'<rect width="{width}" height="{height + MARGIN}" fill="white" rx="6"/>',
            *parts,
            "</svg>\n",
        ]
    )


def _branches(tree: Tree, centers: Sequence[float], top: float) -> tuple[list[str], float]:
    """Lines from each constituent to its children, and the height at which the words begin."""
    place: dict[Span, float] = {(k, k + 1): x for k, x in enumerate(centers)}
    level: dict[Span, int] = dict.fromkeys(place, 0)
    nodes = list(zip(tree.spans, children_of(tree), strict=True))
    for span, children in nodes:
        place[span] = sum(place[child] for child in children) / len(children)
        level[span] = 1 + max(level[child] for child in children)
    bottom = top + LEVEL * max(level.values())
    return [
        f'<line x1="{place[span]:.1f}" y1="{bottom - LEVEL * level[span]}" '
        f'x2="{place[child]:.1f}" y2="{bottom - LEVEL * level[child]}" stroke="{INK}"/>'
        for span, children in nodes
        for child in children
    ], bottom


def _bars(centers: Sequence[float], bits: Sequence[float], top: float) -> Iterator[str]:
    highest = max([*bits, 1e-9])
    for x, value in zip(centers, bits, strict=True):
        bar = BARS * value / highest
        yield (
            f'<rect x="{x - 8:.1f}" y="{top + BARS - bar:.1f}" width="16" height="{bar:.1f}" '
            f'fill="{BAR}"/>'
        )
        yield _text(x, top + BARS + 14, f"{value:.1f}", FAINT)


def _cells(edges: Sequence[float], depths: Sequence[int], top: float) -> Iterator[str]:
    for (left, right), depth in zip(pairwise(edges), depths, strict=False):
        yield (
            f'<rect x="{left + 1}" y="{top + 1}" width="{right - left - 2}" height="{CELL - 2}" '
            f'fill="{DEPTH}" fill-opacity="{min(0.08 + 0.14 * depth, 0.8):.2f}"/>'
        )
        yield _text((left + right) / 2, top + 15, str(depth))


def _text(
    x: float, y: float, text: str, color: str = INK, anchor: str = "middle", weight: str = "normal"
) -> str:
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" fill="{color}" text-anchor="{anchor}" '
        f'font-weight="{weight}">{escape(text)}</text>'
    )


def main(model: str, sentence: str, out: str) -> None:
    """Draw what a trained model makes of a sentence: its best parse, with marginal surprisals."""
    analysis = PushdownScorer.from_pretrained(model).analyse([sentence.split()])[0]
    bits = [surprisal for _, surprisal in analysis.words[:-1]]
    with atomic_write(Path(out)) as file:
        file.write(tree_svg(analysis.trees()[0].tree, bits))


if __name__ == "__main__":
    main(*sys.argv[1:])
