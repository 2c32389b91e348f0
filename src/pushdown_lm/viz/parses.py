"""A parse in one picture: the tree, the surprisal of each word, and the stack tape."""

from __future__ import annotations

from collections.abc import Sequence

from pushdown_lm import svg
from pushdown_lm.trees.oracle import algorithm1, attachments_from_tree
from pushdown_lm.trees.picture import describe, tree_band
from pushdown_lm.trees.tree import Tree
from pushdown_lm.viz.surprisal_bars import surprisal_band
from pushdown_lm.viz.tape_rows import label_width, tape_band


def parse(
    tree: Tree,
    surprisals: Sequence[float] | None = None,
    entropies: Sequence[float | None] | None = None,
    *,
    attachments: Sequence[int] | None = None,
    num_read: int | None = None,
    whole_tape: bool = True,
) -> str:
    """The picture of a tree, with the surprisals of its words, in bits, if given.

    Args:
        entropies: as in :func:`pushdown_lm.viz.surprisals`.
        attachments: ``[0, r_1, ..., r_k]``, of which the tape is drawn; by default those of the
            tree, binarized.
        num_read: how many words a parser has read, as in :func:`pushdown_lm.viz.tree`.
        whole_tape: all rows of the tape, or the last one only.
    """
    if attachments is None:
        attachments = attachments_from_tree(tree)[:-1]
    columns = svg.Columns.of(tree.words, label_width(tree.words, svg.MARGIN + 92))
    parts, bottom = tree_band(tree, columns, svg.MARGIN, num_read)
    if surprisals is not None:
        bars, bottom = surprisal_band(columns, surprisals, bottom + 8, entropies)
        parts += bars
    parts.append(
        svg.label(svg.MARGIN, bottom + 18, "stack tape after", "depth", anchor="start", size=11)
    )
    rows = [row[1:] for row in algorithm1(attachments)[1:]]
    first = 0 if whole_tape else max(0, len(rows) - 1)
    cells, bottom = tape_band(tree.words[first:], rows[first:], columns, bottom + 26)
    return svg.picture(
        columns.right + svg.MARGIN,
        bottom + svg.MARGIN,
        [*parts, *cells],
        f"the parse {describe(tree, num_read)}",
    )
