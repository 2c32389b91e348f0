"""Attention as heat maps: of one head, or of all heads at one word.

Shapes: L layers, H heads, T tokens.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from pushdown_lm import svg
from pushdown_lm.errors import PushdownError
from pushdown_lm.viz.tape_rows import ROW, label_width

LEAST_SHOWN = 0.05
"""Weights from this on are written into their cells, in percent."""
GAP = 8
"""Between layers."""


def attention(tokens: Sequence[str], weights: Any, marked: int | None = None) -> str:
    """A heat map of attention weights; a cell is as dark as the root of its weight.

    Args:
        weights: an array or tensor. ``(T, T)``: of one head, or a mean; rows attend, columns are
            attended to, and ``marked`` frames a row. ``(L, H, T, T)``: all heads, as rows by layer,
            at the token ``marked``, by default the last.
        marked: the position of a token, from 0.
    """
    array = np.asarray(weights, dtype=float)
    count = len(tokens)
    if array.ndim not in (2, 4) or array.shape[-2:] != (count, count):
        raise PushdownError(
            f"weights: expected the shape ({count}, {count}) or (layers, heads, {count}, {count}) "
            f"for {count} tokens, got {array.shape}"
        )
    if marked is not None and not 0 <= marked < count:
        raise PushdownError(f"marked: expected a position from 0 to {count - 1}, got {marked}")
    if array.ndim == 2:
        return _one_head(tokens, array, marked)
    return _all_heads(tokens, array, count - 1 if marked is None else marked)


def _one_head(tokens: Sequence[str], weights: np.ndarray, marked: int | None) -> str:
    columns = svg.Columns.of(tokens, label_width(tokens))
    parts = _header(tokens, columns, marked)
    top = svg.MARGIN + 18
    for row, token in enumerate(tokens):
        y = top + ROW * row
        is_marked = row == marked
        color = "accent" if is_marked else "ink"
        name = svg.label(
            columns.edges[0] - 8, y + 15, token, color, anchor="end", bold=is_marked, size=12
        )
        parts += [name, *_cells(weights[row, : row + 1], columns, y)]
        if is_marked:
            width = columns.edges[row + 1] - columns.edges[0]
            parts.append(svg.frame(columns.edges[0], y, width, ROW, "accent"))
    bottom = top + ROW * len(tokens) + svg.MARGIN
    title = f"attention: {_strongest(tokens, weights)}"
    return svg.picture(columns.right + svg.MARGIN, bottom, parts, title)


def _all_heads(tokens: Sequence[str], weights: np.ndarray, marked: int) -> str:
    columns = svg.Columns.of(tokens, svg.MARGIN + 108)
    parts = _header(tokens, columns, marked)
    y: float = svg.MARGIN + 18
    for layer, heads in enumerate(weights, start=1):
        for head, row in enumerate(heads[:, marked], start=1):
            if head == 1:
                parts.append(
                    svg.label(svg.MARGIN, y + 15, f"layer {layer}", "ink", anchor="start", size=12)
                )
            name = f"head {head}"
            parts.append(
                svg.label(columns.edges[0] - 8, y + 15, name, "faint", anchor="end", size=11)
            )
            parts += _cells(row[: marked + 1], columns, y)
            y += ROW
        y += GAP
    title = f"attention of {tokens[marked]} on the tokens before it, by layer and head"
    return svg.picture(columns.right + svg.MARGIN, y + svg.MARGIN, parts, title)


def _header(tokens: Sequence[str], columns: svg.Columns, marked: int | None) -> list[str]:
    return [
        svg.label(
            x,
            svg.MARGIN + 10,
            token,
            "accent" if number == marked else "ink",
            bold=number == marked,
            size=11,
        )
        for number, (x, token) in enumerate(zip(columns.centers, tokens, strict=True))
    ]


def _cells(row: np.ndarray, columns: svg.Columns, top: float) -> list[str]:
    parts = []
    for column, weight in enumerate(row.tolist()):
        left, right = columns.edges[column : column + 2]
        shown = f"{100 * weight:.0f}" if weight >= LEAST_SHOWN else ""
        parts += svg.cell(left, top, right - left, ROW, math.sqrt(max(weight, 0.0)), shown)
    return parts


def _strongest(tokens: Sequence[str], weights: np.ndarray) -> str:
    return ", ".join(
        f"{token} most on {tokens[int(row.argmax())]}"
        for token, row in zip(tokens, weights, strict=True)
    )
