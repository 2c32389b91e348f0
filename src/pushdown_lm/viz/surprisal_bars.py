"""Surprisals as bars under the words."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pushdown_lm import svg
from pushdown_lm.errors import PushdownError
from pushdown_lm.trees.picture import word_row

BARS, VALUE = 52, 16
"""Heights of the highest bar and of a row of values."""
LEAST_SCALE = 8.0
"""Bits that a bar of full height stands for, or the highest surprisal if that is more."""
SERIES = ("accent", "depth", "second", "faint")
"""Colors of the models, in order."""

Bits = Sequence[float] | Mapping[str, Sequence[float]]


def surprisals(
    words: Sequence[str],
    bits: Bits,
    entropies: Sequence[float | None] | None = None,
    *,
    num_read: int | None = None,
) -> str:
    """Bars under the words, as high as their surprisals in bits.

    Args:
        bits: the surprisals of the words, or those of several models by their names.
        entropies: of the prediction of each word before it is read, in bits: the surprisal that
            the model expects; a mark beside the bar.
        num_read: how many words a model has read, as in :func:`pushdown_lm.viz.tree`.
    """
    left = svg.MARGIN + 92
    columns = svg.Columns.of(words, left)
    parts = word_row(words, columns, svg.MARGIN + 12, num_read)
    bars, bottom = surprisal_band(columns, bits, svg.MARGIN + 20, entropies)
    title = "surprisal in bits: " + "; ".join(
        f"{name} {_description(words, values)}".strip() for name, values in _series(bits).items()
    )
    return svg.picture(columns.right + svg.MARGIN, bottom + 4, [*parts, *bars], title)


def surprisal_band(
    columns: svg.Columns,
    bits: Bits,
    top: float,
    entropies: Sequence[float | None] | None = None,
) -> tuple[list[str], float]:
    """The shapes of the bars with their values, and the height at which they end.

    There may be fewer values than columns, for words that are not read yet.
    """
    series = _series(bits)
    marks = entropies or []
    known = [value for values in series.values() for value in values]
    highest = max([*known, *(mark for mark in marks if mark is not None), LEAST_SCALE])
    base = top + BARS
    width = 16 if len(series) == 1 else max(6.0, 22 / len(series))

    parts = [svg.lines([(columns.edges[0] + 4, base, columns.right - 4, base)], "rule")]
    for number, values in enumerate(series.values()):
        color = SERIES[number % len(SERIES)]
        shift = (number - len(series) / 2) * width
        for x, value in zip(columns.centers, values, strict=False):
            height = BARS * max(value, 0.0) / highest
            parts.append(svg.rectangle(x + shift, base - height, width - 1, height, color))
            row = base + 14 + VALUE * number
            shade = "faint" if len(series) == 1 else color
            parts.append(svg.label(x, row, f"{value:.1f}", shade, size=11))
    for x, mark in zip(columns.centers, marks, strict=False):
        if mark is not None:
            y = base - BARS * mark / highest
            parts.append(svg.lines([(x - width / 2 - 4, y, x + width / 2 + 4, y)], "second", 2))
    parts += _legend(series, top, bool(marks))
    return parts, base + VALUE * len(series) + 6


def _legend(series: Mapping[str, Sequence[float]], top: float, with_entropies: bool) -> list[str]:
    rows = [(12.0, "surprisal", "accent"), (26.0, "in bits", "faint")]
    if with_entropies:
        rows.append((40, "— entropy", "second"))
    if len(series) > 1:
        rows += [
            (
                BARS + 14 + VALUE * number,
                name if len(name) < 15 else f"{name[:13]}…",
                SERIES[number % len(SERIES)],
            )
            for number, name in enumerate(series)
        ]
    return [
        svg.label(svg.MARGIN, top + down, name, color, anchor="start", size=11)
        for down, name, color in rows
    ]


def _series(bits: Bits) -> dict[str, Sequence[float]]:
    series = dict(bits) if isinstance(bits, Mapping) else {"": bits}
    for name, values in series.items():
        if not all(math.isfinite(value) for value in values):
            raise PushdownError(f"surprisals {name}: expected finite numbers, got {list(values)}")
    return series


def _description(words: Sequence[str], values: Sequence[float]) -> str:
    pairs = zip(words, values, strict=False)
    return ", ".join(f"{word} {value:.1f}" for word, value in pairs)
