"""The stack tape as a heat map."""

from __future__ import annotations

from collections.abc import Sequence

from pushdown_lm import svg

ROW = 22
DARKEST = 6
"""The depth from which on, or from the deepest on if that is more, cells are darkest."""


def tape(words: Sequence[str], rows: Sequence[Sequence[int]], marked: int | None = None) -> str:
    """The rows of the tape: row k, labeled with word k, shows W_k[1..k], the depths right after
    the word's attachment.

    ``marked`` is the number of a row, from 1, that is framed.
    """
    left = label_width(words[: len(rows)])
    columns = svg.Columns.of(words, left)
    parts = [
        svg.label(x, svg.MARGIN + 10, word, "ink" if number < len(rows) else "faint", size=11)
        for number, (x, word) in enumerate(zip(columns.centers, words, strict=True))
    ]
    cells, bottom = tape_band(words, rows, columns, svg.MARGIN + 18, marked)
    title = "stack tape: " + "; ".join(
        f"after {word} {' '.join(map(str, row))}" for word, row in zip(words, rows, strict=False)
    )
    return svg.picture(columns.right + svg.MARGIN, bottom + svg.MARGIN, [*parts, *cells], title)


def tape_band(
    words: Sequence[str],
    rows: Sequence[Sequence[int]],
    columns: svg.Columns,
    top: float,
    marked: int | None = None,
) -> tuple[list[str], float]:
    """The shapes of the rows in given columns, and the height at which they end."""
    darkest = max([DARKEST, *(depth for row in rows for depth in row)])
    parts = []
    for number, (word, row) in enumerate(zip(words, rows, strict=False)):
        y = top + ROW * number
        is_marked = number + 1 == marked
        name = svg.label(
            columns.edges[0] - 8,
            y + 15,
            word,
            "accent" if is_marked else "ink",
            anchor="end",
            bold=is_marked,
            size=12,
        )
        parts.append(name)
        for column, depth in enumerate(row):
            left, right = columns.edges[column : column + 2]
            parts += svg.cell(left, y, right - left, ROW, depth / darkest, str(depth))
        if is_marked and row:
            width = columns.edges[len(row)] - columns.edges[0]
            parts.append(svg.frame(columns.edges[0], y, width, ROW, "accent"))
    return parts, top + ROW * len(rows)


def label_width(words: Sequence[str], least: float = svg.MARGIN + 60) -> float:
    """Where columns begin beside labels of these words."""
    return max([least, *(svg.MARGIN + svg.text_width(word) + 8 for word in words)])
