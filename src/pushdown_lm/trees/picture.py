"""Trees as SVG pictures."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Sequence

from pushdown_lm import svg
from pushdown_lm.trees.brackets import to_brackets
from pushdown_lm.trees.tree import Span, Tree, children_of, label_of

MAX_WORDS = 400
"""Words of the largest tree that notebooks draw; a larger one is given as brackets."""
LEVEL, LABELED_LEVEL = 26, 36
"""Heights of a level of the tree, without and with labels."""
WORDS = 22
"""Height of the row of words."""


def tree_picture(tree: Tree, num_read: int | None = None) -> str:
    """The picture of a tree, words in a row at the bottom, labels at the constituents if it has
    any.

    The spans need not form one tree: what a parser has built so far may be several. With
    ``num_read``, the words after the first ``num_read`` are faint, and the last of these and the
    constituents that end with it stand out.
    """
    columns = svg.Columns.of(tree.words)
    parts, bottom = tree_band(tree, columns, svg.MARGIN, num_read)
    return svg.picture(
        columns.right + svg.MARGIN, bottom + svg.MARGIN / 2, parts, describe(tree, num_read)
    )


def describe(tree: Tree, num_read: int | None = None) -> str:
    """The words that are read, with brackets around the constituents.

    >>> describe(Tree(("The", "dog", "is", "happy"), ((0, 2), (2, 4), (0, 4))))
    '[[The dog] [is happy]]'
    """
    opened, closed = Counter(start for start, _ in tree.spans), Counter(e for _, e in tree.spans)
    return " ".join(
        "[" * opened[position] + word + "]" * closed[position + 1]
        for position, word in enumerate(tree.words[:num_read])
    )


def tree_band(
    tree: Tree, columns: svg.Columns, top: float, num_read: int | None = None
) -> tuple[list[str], float]:
    """The shapes of a tree and its words in given columns, and the height at which they end."""
    place: dict[Span, float] = {(k, k + 1): x for k, x in enumerate(columns.centers)}
    level: dict[Span, int] = dict.fromkeys(place, 0)
    nodes = list(zip(tree.spans, children_of(tree), strict=True))
    for span, children in nodes:
        place[span] = sum(place[child] for child in children) / len(children)
        level[span] = 1 + max(level[child] for child in children)
    step = LABELED_LEVEL if tree.labels else LEVEL
    room = 16 if tree.labels else 0
    bottom = top + room + step * max(level.values(), default=0)

    parts = []
    for node, (span, children) in enumerate(nodes):
        x, y = place[span], bottom - step * level[span]
        color = "accent" if span[1] == num_read else "ink"
        edges = [
            (x, y, place[child], bottom - step * level[child] - (room if level[child] else 0))
            for child in children
        ]
        parts.append(svg.lines(edges, color, 1.3))
        if name := label_of(tree, node, ""):
            parts.append(svg.label(x, y - 4, name, "faint", size=11))
    parts += word_row(tree.words, columns, bottom + 16, num_read)
    return parts, bottom + WORDS


def word_row(
    words: Sequence[str], columns: svg.Columns, baseline: float, num_read: int | None = None
) -> list[str]:
    """The words in given columns; ``num_read`` as in :func:`tree_picture`."""
    read = len(words) if num_read is None else num_read
    return [
        svg.label(
            x,
            baseline,
            word,
            "accent" if number == num_read else "ink" if number <= read else "faint",
            bold=number <= read,
        )
        for number, (x, word) in enumerate(zip(columns.centers, words, strict=True), start=1)
    ]


def tree_html(tree: Tree) -> str:
    """What notebooks show: the picture, or brackets if it would be too large to read."""
    if len(tree.words) <= MAX_WORDS:
        return tree_picture(tree)
    return f"<pre>{html.escape(to_brackets(tree))}</pre>"
