"""Trees as text."""

from __future__ import annotations

from itertools import accumulate

from pushdown_lm.trees.brackets import to_brackets
from pushdown_lm.trees.tree import Span, Tree, children_of, label_of

MAX_CELLS = 1_000_000
"""Characters of the largest drawing; its size grows with words times depth."""


def draw(tree: Tree) -> str:
    """The tree as text, words in a row at the bottom.

    >>> print(draw(Tree(("The", "dog", "is", "happy"), ((0, 2), (2, 4), (0, 4)))))
       ┌────┴────┐
     ┌─┴──┐   ┌──┴──┐
    The  dog  is  happy

    A tree of more than `MAX_CELLS` characters, which nobody could read, is given as brackets.
    """
    lefts = [0, *accumulate(max(len(word), 2) + 2 for word in tree.words)]
    heights: dict[Span, int] = {}
    for span, children in zip(tree.spans, children_of(tree), strict=True):
        heights[span] = 1 + max(heights.get(child, 0) for child in children)
    if lefts[-1] * max(heights.values(), default=0) > MAX_CELLS:
        return to_brackets(tree)
    centers: dict[Span, int] = {}
    rows: list[list[str]] = []

    def put(height: int, column: int, text: str) -> None:
        while len(rows) <= height:
            rows.append([" "] * lefts[-1])
        rows[height][column : column + len(text)] = text

    for position, word in enumerate(tree.words):
        put(0, lefts[position], word)
        centers[position, position + 1] = lefts[position] + (len(word) - 1) // 2
        heights[position, position + 1] = 0
    for node, (span, children) in enumerate(zip(tree.spans, children_of(tree), strict=True)):
        first, *inner, last = (centers[child] for child in children)
        center = centers[span] = (first + last) // 2
        height = heights[span]
        put(height, first, "┌" + "─" * (last - first - 1) + "┐")
        for column in inner:
            put(height, column, "┬")
        put(height, center, "┼" if center in inner else "┴")
        if name := label_of(tree, node, ""):
            put(height, max(first + 1, center - (len(name) - 1) // 2), name)
        for child in children:
            for level in range(heights[child] + 1, height):
                put(level, centers[child], "│")
    return "\n".join("".join(row).rstrip() for row in reversed(rows))
