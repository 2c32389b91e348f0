"""Constituency trees: words and spans, binarizing, and moving between words and subwords.

A tree is its words and its spans in post-order. That is all a Pushdown model needs, it is what
the attachments are computed from in one pass, and no bracket depth can overflow the stack.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from typing import Literal

from pushdown_lm.errors import PushdownError

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Tree:
    """Words, and the constituents over them.

    `spans` are half-open, in post-order (a node after its children), one for every constituent
    of at least two words; unary chains are collapsed. A binary tree over n words has n - 1.
    `labels`, kept only when asked for, are parallel to `spans`; a one-word tree, which has no
    span, has the one label of its root, so that `labels[-1]` is always the label of the root.
    A collapsed chain keeps its outermost label; ROOT, TOP and an empty outer bracket count only
    where they have several children.
    """

    words: Sequence[str]
    spans: Sequence[Span]
    labels: Sequence[str] | None = None

    def _repr_html_(self) -> str:
        """The picture that notebooks show."""
        from pushdown_lm.trees.picture import tree_html

        return tree_html(self)


def is_binary(tree: Tree) -> bool:
    """Whether every constituent has two children."""
    return len(tree.spans) == len(tree.words) - 1


def children_of(tree: Tree) -> Iterator[list[Span]]:
    """The children of each constituent, words included, in the order of `tree.spans`."""
    stack: list[Span] = []
    num_shifted = 0
    for start, end in tree.spans:
        stack += [(word, word + 1) for word in range(num_shifted, end)]
        num_shifted = max(num_shifted, end)
        first = len(stack) - 1
        while stack[first][0] > start:
            first -= 1
        yield stack[first:]
        stack[first:] = [(start, end)]


def label_of(tree: Tree, node: int, default: str) -> str:
    return (tree.labels[node] if tree.labels else "") or default


def binarize(tree: Tree, direction: Literal["right", "left"] = "right") -> Tree:
    """A binary tree that has all constituents of `tree`.

    "right" turns `(a b c d)` into `(a (b (c d)))`, "left" into `(((a b) c) d)`. A constituent
    that is added within one labelled NP is labelled `NP|`.
    """
    nodes: list[tuple[Span, str]] = []
    for node, children in enumerate(children_of(tree)):
        start, end = tree.spans[node]
        label = label_of(tree, node, "")
        if direction == "right":
            added = [(inner, end) for inner, _ in children[1:-1]]
        else:
            added = [(start, inner) for _, inner in children[1:-1]]
        nodes += [(span, label + "|") for span in added] + [((start, end), label)]
    nodes.sort(key=lambda node: (node[0][1], -node[0][0]))
    labels = tree.labels and (tuple(label for _, label in nodes) or tree.labels)
    return Tree(tree.words, tuple(span for span, _ in nodes), labels)


def split_words(tree: Tree, pieces: Sequence[Sequence[str]]) -> Tree:
    """Replace each word by its subword pieces, which form a right-branching subtree.

    >>> split_words(Tree(("the", "unhappy"), ((0, 2),)), [["the"], ["un", "happ", "y"]])
    Tree(words=('the', 'un', 'happ', 'y'), spans=((2, 4), (1, 4), (0, 4)), labels=None)

    The constituents within a word have the empty label.
    """
    if len(pieces) != len(tree.words) or not all(pieces):
        raise PushdownError(
            f"expected pieces for each of {len(tree.words)} words, found {list(map(len, pieces))}"
        )
    offsets = [0, *accumulate(map(len, pieces))]
    spans: list[Span] = []
    labels: list[str] = []
    num_split = 0
    for node, (start, end) in enumerate([*tree.spans, (0, len(tree.words))]):
        for word in range(num_split, end):
            last = offsets[word + 1]
            within = [(first, last) for first in range(last - 2, offsets[word] - 1, -1)]
            spans += within
            labels += [""] * len(within)
        num_split = max(num_split, end)
        if node < len(tree.spans):
            spans.append((offsets[start], offsets[end]))
            labels += tree.labels[node : node + 1] if tree.labels else []
    if tree.labels and not tree.spans:
        labels[-1:] = tree.labels
    return Tree(tuple(chain(*pieces)), tuple(spans), tree.labels and tuple(labels))


def drop_words(tree: Tree, kept: Sequence[bool]) -> Tree:
    """The tree without some of its words; constituents of fewer than two words vanish."""
    num_kept = list(accumulate(kept, initial=0))
    spans: list[Span] = []
    labels: list[str] = []
    for node, (start, end) in enumerate(tree.spans):
        span = num_kept[start], num_kept[end]
        if span[1] - span[0] < 2:
            continue
        if not spans or spans[-1] != span:
            spans.append(span)
            labels.append("")
        if tree.labels:
            labels[-1] = tree.labels[node] or labels[-1]
    words = tuple(word for word, is_kept in zip(tree.words, kept, strict=True) if is_kept)
    return Tree(words, tuple(spans), tree.labels and tuple(labels or tree.labels[-1:]))


def merge_pieces(tree: Tree, piece_counts: Sequence[int], words: Sequence[str]) -> Tree:
    """Turn a tree over subword pieces into a tree over words: the inverse of `split_words`.

    A predicted tree need not have a constituent for each word. The rule: of each word only its
    last piece is kept, the piece with which the word is complete; constituents left with fewer
    than two words vanish, as do unary ones. With un|happy:

           ┌────┴─────┐               ┌────┴────┐
         ┌─┴─┐     ┌──┴──┐    gives   │      ┌──┴───┐
        the  un  happy  dog          the  unhappy  dog

    Deleting leaves from a binary tree leaves a binary tree, and a constituent whose ends are
    ends of words keeps exactly its words. A word of no pieces forms a constituent with the word
    before it, in whose last piece it is contained.
    """
    num_pieces = len(tree.words)
    if (
        (len(piece_counts), sum(piece_counts)) != (len(words), num_pieces)
        or min(piece_counts) < 0
        or piece_counts[0] < 1
    ):
        raise PushdownError(
            f"expected {len(words)} positive piece counts that add up to {num_pieces}, "
            f"found {list(piece_counts)}"
        )
    is_last = [piece == count for count in piece_counts for piece in range(1, count + 1)]
    merged = drop_words(tree, is_last)
    if all(piece_counts):
        return Tree(tuple(words), merged.spans, merged.labels)
    groups: list[list[str]] = []
    for word, count in zip(words, piece_counts, strict=True):
        if count:
            groups.append([])
        groups[-1].append(word)
    return split_words(merged, groups)
