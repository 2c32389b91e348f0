"""Pictures as SVG strings: text, shapes, and columns as wide as their words.

A picture needs no font, style sheet or script from elsewhere. Each color is given twice: as an
attribute, so that a file looks the same wherever it is opened, and as a class of the same name, by
which a page that embeds the picture can restyle it, since style sheets win over attributes.
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from xml.sax.saxutils import escape

COLORS = {
    "ink": "#24292f",
    "faint": "#6e7781",
    "rule": "#d0d7de",
    "paper": "#ffffff",
    "accent": "#b4490f",
    "second": "#2f7d6b",
    "depth": "#2b5ca8",
    "strong": "#ffffff",
}
"""By class; `strong` is text on dark cells."""

MARGIN = 16
FONT_SIZE = 13
MIN_COLUMN = 34
STRONG = 0.75
"""Opacity from which the text of a cell is `strong`."""

_NARROW, _WIDE = frozenset("fijlrtI.,;:'!|()[]"), frozenset("mwMW@%")


@dataclass(frozen=True, slots=True)
class Columns:
    """The edges of neighboring columns, one more than there are columns."""

    edges: tuple[float, ...]

    @classmethod
    def of(cls, words: Sequence[str], left: float = MARGIN) -> Columns:
        """Columns that are wide enough for the words, from ``left`` on."""
        widths = (max(MIN_COLUMN, text_width(word) + 14) for word in words)
        return cls(tuple(accumulate(widths, initial=left)))

    @property
    def centers(self) -> list[float]:
        return [(left + right) / 2 for left, right in pairwise(self.edges)]

    @property
    def right(self) -> float:
        return self.edges[-1]


def text_width(text: str) -> float:
    """About how wide a text is in any sans-serif font, in pixels."""

    def width(character: str) -> float:
        if unicodedata.east_asian_width(character) in "WF":
            return FONT_SIZE
        if unicodedata.combining(character):
            return 0
        if character in _NARROW:
            return 5
        return 11 if character in _WIDE else 9.5 if character.isupper() else 7.8

    return round(sum(map(width, text)), 1)


def label(
    x: float,
    y: float,
    content: str,
    color: str = "ink",
    *,
    anchor: str = "middle",
    bold: bool = False,
    size: int | None = None,
) -> str:
    """A line of text whose baseline is at y."""
    weight = ' font-weight="bold"' if bold else ""
    font = f' font-size="{size}"' if size else ""
    return (
        f'<text x="{x:.1f}" y="{y:.1f}" {_paint("fill", color)} text-anchor="{anchor}"{weight}'
        f"{font}>{escape(printable(content))}</text>"
    )


def rectangle(
    left: float, top: float, width: float, height: float, color: str, *, opacity: float = 1.0
) -> str:
    faded = f' fill-opacity="{opacity:.2f}"' if opacity < 1 else ""
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f"{_paint('fill', color)}{faded}/>"
    )


def frame(left: float, top: float, width: float, height: float, color: str) -> str:
    """The outline of a rectangle."""
    return (
        f'<rect x="{left:.1f}" y="{top:.1f}" width="{width:.1f}" height="{height:.1f}" '
        f'fill="none" stroke="{COLORS[color]}" class="line {color}" stroke-width="1.5"/>'
    )


def lines(pairs: Iterable[tuple[float, float, float, float]], color: str, width: float = 1) -> str:
    """Straight lines from (x, y) to (x, y) as one shape."""
    drawn = "".join(f"M{x:.1f} {y:.1f}L{to_x:.1f} {to_y:.1f}" for x, y, to_x, to_y in pairs)
    return (
        f'<path d="{drawn}" fill="none" stroke="{COLORS[color]}" class="line {color}" '
        f'stroke-width="{width}" stroke-linecap="round"/>'
    )


def cell(
    left: float,
    top: float,
    width: float,
    height: float,
    share: float,
    content: str = "",
    color: str = "depth",
) -> list[str]:
    """A cell of a heat map: ``share``, from 0 to 1, is how dark it is."""
    opacity = 0.06 + 0.8 * min(max(share, 0.0), 1.0)
    parts = [rectangle(left + 1, top + 1, width - 2, height - 2, color, opacity=opacity)]
    if content:
        ink = "strong" if opacity > STRONG else "ink"
        parts.append(label(left + width / 2, top + height / 2 + 4.5, content, ink))
    return parts


def picture(width: float, height: float, parts: Iterable[str], title: str) -> str:
    """The whole picture on white paper; ``title`` is what a screen reader says."""
    size = f'width="{width:.0f}" height="{height:.0f}"'
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height:.0f}" '
            f'{size} font-family="sans-serif" font-size="{FONT_SIZE}" role="img">',
            f"<title>{escape(printable(title))}</title>",
            f'<rect {size} fill="{COLORS["paper"]}" class="paper" rx="6"/>',
            *parts,
            "</svg>\n",
        ]
    )


def printable(text: str) -> str:
    """The text with control characters, which XML forbids, as visible symbols.

    >>> printable("a\\x00\\x1b[0m\\ud800")
    'a␀␛[0m�'
    """
    return "".join(_printable(character) for character in text)


def _printable(character: str) -> str:
    code = ord(character)
    if code < 0x20:
        return chr(0x2400 + code)
    if code == 0x7F:
        return "\u2421"
    if 0x80 <= code < 0xA0 or 0xD800 <= code < 0xE000 or code & 0xFFFE == 0xFFFE:
        return "\ufffd"
    return character


def _paint(attribute: str, color: str) -> str:
    return f'{attribute}="{COLORS[color]}" class="{color}"'
