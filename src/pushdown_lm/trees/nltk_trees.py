"""Trees to and from `nltk.Tree`, an optional exchange type."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pushdown_lm.errors import PushdownError
from pushdown_lm.trees.brackets import decode_word, encode_word
from pushdown_lm.trees.reading import parse_tree
from pushdown_lm.trees.tree import Span, Tree, children_of, label_of

if TYPE_CHECKING:
    import nltk


def from_nltk(tree: nltk.Tree, *, labels: bool = False) -> Tree:
    """An `nltk.Tree`, with tags or without, as a `Tree`."""
    text: list[str] = []
    stack: list[Any] = [tree]
    while stack:
        node = stack.pop()
        if node is None:
            text.append(")")
        elif isinstance(node, str):
            text.append(" " + encode_word(decode_word(node)))
        else:
            text.append(f" ({node.label()}")
            stack += [None, *reversed(node)]
    return parse_tree("".join(text), format="penn", labels=labels)


def to_nltk(tree: Tree, *, label: str = "X") -> nltk.Tree:
    """The tree as an `nltk.Tree` without tags, with its own labels or with `label`."""
    try:
        from nltk import Tree as NltkTree
    except ImportError:
        raise PushdownError("nltk is not installed: pip install 'pushdown-lm[nltk]'") from None
    nodes: dict[Span, Any] = {(word, word + 1): text for word, text in enumerate(tree.words)}
    if not tree.spans:
        return NltkTree(label_of(tree, 0, label), list(tree.words))
    for node, (span, children) in enumerate(zip(tree.spans, children_of(tree), strict=True)):
        nodes[span] = NltkTree(label_of(tree, node, label), [nodes[child] for child in children])
    return nodes[0, len(tree.words)]
