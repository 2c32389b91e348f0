"""Trees as text."""

from __future__ import annotations

from itertools import accumulate

from pushdown_lm.trees.tree import Span, Tree, children_of, label_of


def draw(tree: Tree) -> str:
    """The tree as text, words in a row at the bottom.

    >>> print(draw(Tree(("The", "dog", "is", "happy"), ((0, 2), (2, 4), (0, 4)))))
       ┌────┴────┐
     ┌─┴──┐   ┌──┴──┐
    The  dog  is  happy
    """
    centers: dict[Span, int] = {}
    heights: dict[Span, int] = {}
    rows: list[list[str]] = []
    lefts = [0, *accumulate(max(len(word), 2) + 2 for word in tree.words)]

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
        height = heights[span] = 1 + max(heights[child] for child in children)
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
