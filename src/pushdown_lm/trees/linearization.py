"""Trees as the actions that build them from left to right (Choe and Charniak, 2016).

    (S (NP The dog NP) (VP is happy VP) S)

An action opens a constituent, reads the next token, or closes the constituent opened last. Parts
of speech are left out, and the tokens of a word follow each other. As everywhere in this library,
unary chains are one constituent, so a constituent has two children or more; only a sentence of one
word has a root over a single child.

Actions are integers: 0 reads a token, n > 0 opens a constituent of label number n - 1, and -1
closes one.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import chain

from pushdown_lm.errors import PushdownError
from pushdown_lm.trees.tree import Span, Tree, drop_words, label_of

TOKEN, CLOSE = 0, -1
UNLABELED = "X"
"""The label of constituents that have none."""


def actions_from_tree(
    tree: Tree, number: Callable[[str], int], piece_counts: Sequence[int] | None = None
) -> list[int]:
    """The actions of a tree.

    Args:
        number: gives the number of a label, from 0.
        piece_counts: tokens of each word, one if left out; words without any are left out.

    >>> tree = Tree("the old dog".split(), [(1, 3), (0, 3)], ["NX", "NP"])
    >>> actions_from_tree(tree, ["NP", "NX"].index, [1, 2, 1])
    [1, 0, 2, 0, 0, 0, -1, -1]
    """
    counts = list(piece_counts or [1] * len(tree.words))
    if not all(counts):
        tree = drop_words(tree, [count > 0 for count in counts])
        counts = [count for count in counts if count]
    opens: list[list[int]] = [[] for _ in counts]
    num_closes = [0] * len(counts)
    for node, (start, end) in enumerate(tree.spans or [(0, 1)]):
        opens[start].append(number(label_of(tree, node, UNLABELED)) + 1)
        num_closes[end - 1] += 1
    words = zip(opens, counts, num_closes, strict=True)
    return list(
        chain.from_iterable(
            [*reversed(opened), *[TOKEN] * count, *[CLOSE] * closes]
            for opened, count, closes in words
        )
    )


def tree_from_actions(
    actions: Sequence[int], labels: Sequence[str], words: Sequence[str] | None = None
) -> Tree:
    """The tree that actions build; of a unary chain the outermost label is kept.

    >>> tree_from_actions([1, 0, 2, 0, 0, -1, -1], ["NP", "NX"], ["the", "old", "dog"])
    Tree(words=('the', 'old', 'dog'), spans=((1, 3), (0, 3)), labels=('NX', 'NP'))
    """
    spans: list[Span] = []
    kept: list[str] = []
    opened: list[tuple[int, str]] = []
    label = ""
    position = 0
    for action in actions:
        if action == TOKEN:
            position += 1
        elif action > 0:
            opened.append((position, labels[action - 1]))
        elif not opened:
            raise PushdownError(f"expected actions of a tree, found a surplus close: {actions}")
        else:
            start, label = opened.pop()
            if spans and spans[-1] == (start, position):
                kept[-1] = label
            elif position - start > 1:
                spans.append((start, position))
                kept.append(label)
    if opened or not position:
        raise PushdownError(f"expected actions of a whole tree, found {actions}")
    leaves = tuple(words) if words is not None else ("",) * position
    return Tree(leaves, tuple(spans), tuple(kept) or (label,))
