"""Pictures: trees, stack tapes, surprisals and attention as SVG strings.

    from pushdown_lm import viz

    viz.parse(tree, bits)             the tree, the surprisals and the tape, one above the other
    viz.tree(tree)
    viz.surprisals(words, bits)
    viz.tape(words, rows)
    viz.attention(tokens, weights)

Plain functions of plain values; nothing here knows a model.
"""

from pushdown_lm.trees.picture import tree_picture as tree
from pushdown_lm.viz.attention_maps import attention
from pushdown_lm.viz.parses import parse
from pushdown_lm.viz.surprisal_bars import surprisals
from pushdown_lm.viz.tape_rows import tape

__all__ = ["attention", "parse", "surprisals", "tape", "tree"]
