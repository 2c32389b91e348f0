"""CoNLL-U: dependency trees as constituency trees, by one of two rules.

``heads``   binary and unlabeled: each head takes its dependents one by one, in any scheme.
``penn``    labeled and n-ary, in the manner of the Penn Treebank: Universal Dependencies only
            (:mod:`pushdown_lm.trees.penn_constituents`).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain
from typing import Literal

from pushdown_lm.errors import PushdownError, TreeError
from pushdown_lm.trees.penn_constituents import penn_constituents
from pushdown_lm.trees.tree import Tree

Nonprojective = Literal["report", "lift"]
Constituents = Literal["heads", "penn"]

_NUM_COLUMNS, _FORM, _KIND, _HEAD, _RELATION = 10, 1, 3, 6, 7
_NOT_A_WORD = re.compile(r"\d+[-.]\d+\t")


def dependencies_to_tree(words: Sequence[str], heads: Sequence[int]) -> Tree:
    """The binary tree of a projective dependency tree.

    `heads[i]` is the number, from 1, of the head of word i + 1, and 0 for the root. The rule: a
    head first takes its right dependents, the nearest first, then its left dependents, the
    nearest first. Each dependent comes with its whole subtree, and adds one constituent:

        ┌────────────┐                    ┌────┴─────┐
        │     ┌──────┤                    │     ┌────┴────┐
        │     │      ├──────────┐         │     │      ┌──┴───┐
        │     │      │    ┌─────┤         │     │      │    ┌─┴──┐
       She  often  reads  a   book       She  often  reads  a   book

    A right dependent d of h adds (h, last word below d), a left dependent adds (first word
    below d, last word below h).

    >>> dependencies_to_tree(["She", "often", "reads", "a", "book"], [3, 3, 0, 5, 3]).spans
    ((3, 5), (2, 5), (1, 5), (0, 5))
    """
    first, last, _ = _extents(heads)
    if not is_projective(heads):
        raise PushdownError(f"expected a projective tree, found crossing arcs in {list(heads)}")
    spans = [
        (head - 1, last[word]) if head < word else (first[word] - 1, last[head])
        for word, head in enumerate(heads, 1)
        if head
    ]
    spans.sort(key=lambda span: (span[1], -span[0]))
    return Tree(tuple(words), tuple(spans))


def is_projective(heads: Sequence[int]) -> bool:
    """Whether the words below each word are contiguous."""
    first, last, size = _extents(heads)
    return all(last[word] - first[word] + 1 == size[word] for word in range(1, len(heads) + 1))


def _top_down(heads: Sequence[int]) -> list[int]:
    """The words below 0, heads before dependents; fewer than all where there is a cycle."""
    dependents: list[list[int]] = [[] for _ in range(len(heads) + 1)]
    for word, head in enumerate(heads, 1):
        dependents[head].append(word)
    order = list(dependents[0])
    for word in order:
        order += dependents[word]
    return order


def _extents(heads: Sequence[int]) -> tuple[list[int], list[int], list[int]]:
    """First word, last word and number of words at or below each word (index 0 is unused)."""
    order = _top_down(heads)
    if heads.count(0) != 1 or len(order) != len(heads):
        raise PushdownError(f"expected heads that form a tree with one root, found {list(heads)}")
    first, last = list(range(len(heads) + 1)), list(range(len(heads) + 1))
    size = [1] * (len(heads) + 1)
    for word in reversed(order):
        head = heads[word - 1]
        if head:
            first[head] = min(first[head], first[word])
            last[head] = max(last[head], last[word])
            size[head] += size[word]
    return first, last, size


def lift(heads: Sequence[int]) -> list[int]:
    """Make a dependency tree projective (Nivre and Nilsson 2005).

    The shortest arc that crosses another, the leftmost among equals, is moved up to its head's
    head, until no arc crosses another.

    >>> lift([2, 0, 1, 2])  # the arc 1 -> 3 spans word 2, which is not below word 1
    [2, 0, 2, 2]
    """
    heads = list(heads)
    while not is_projective(heads):
        _, dependent = min(
            (abs(head - word), word)
            for word, head in enumerate(heads, 1)
            if head and not _is_arc_projective(heads, head, word)
        )
        heads[dependent - 1] = heads[heads[dependent - 1] - 1]
    return heads


def _is_arc_projective(heads: Sequence[int], head: int, dependent: int) -> bool:
    """Whether every word between the two is below `head`."""
    left, right = sorted((head, dependent))
    for word in range(left + 1, right):
        above = word
        while above not in (0, head):
            above = heads[above - 1]
        if above == 0:
            return False
    return True


def read_conllu(
    lines: Iterable[str],
    source: str,
    *,
    nonprojective: Nonprojective = "report",
    constituents: Constituents = "heads",
    language: str | None = "en",
) -> Iterator[Tree | TreeError]:
    """The sentences of CoNLL-U lines as trees; an error stands for a bad sentence.

    The words are the syntactic words: of a multiword token (`3-4 don't`), the words 3 and 4.
    Empty nodes (`8.1`) are left out. Crossing arcs are an error, or are lifted. The word lists of
    a language help the rule ``penn``.
    """
    sentence: list[tuple[int, str]] = []
    for number, line in enumerate(chain(lines, [""]), 1):
        if line.strip():
            sentence.append((number, line.rstrip("\r\n")))
        elif sentence:
            try:
                tree = _sentence_to_tree(sentence, source, nonprojective, constituents, language)
                if tree.words:
                    yield tree
            except TreeError as error:
                yield error
            sentence = []


def _sentence_to_tree(
    sentence: Sequence[tuple[int, str]],
    source: str,
    nonprojective: Nonprojective,
    constituents: Constituents,
    language: str | None,
) -> Tree:
    rows = [
        (number, line.split("\t"))
        for number, line in sentence
        if not line.startswith("#") and not _NOT_A_WORD.match(line)
    ]
    words: list[str] = []
    heads: list[int] = []
    for number, fields in rows:
        if len(fields) != _NUM_COLUMNS:
            expected, found = f"{_NUM_COLUMNS} columns divided by tabs", str(len(fields))
            raise TreeError(source, number, 1, expected, found, reason="wrong columns")
        if fields[0] != str(len(words) + 1):
            expected, found = f"word number {len(words) + 1}", repr(fields[0])
            raise TreeError(source, number, 1, expected, found, reason="wrong word number")
        head = fields[_HEAD]
        if not (re.fullmatch("[0-9]{1,9}", head) and int(head) <= len(rows)):
            column = len("\t".join(fields[:_HEAD])) + 2
            expected = f"a head from 0 to {len(rows)}"
            raise TreeError(source, number, column, expected, repr(head[:40]), reason="wrong head")
        words.append(fields[_FORM])
        heads.append(int(head))
    if not rows:
        return Tree((), ())
    first_line = rows[0][0]
    if heads.count(0) != 1 or len(_top_down(heads)) != len(heads):
        expected, found = "heads that form a tree with one root", str(heads)
        raise TreeError(source, first_line, 1, expected, found, reason="not a tree")
    if not is_projective(heads):
        if nonprojective != "lift":
            expected, found = "a projective tree", f"crossing arcs in {heads}"
            raise TreeError(source, first_line, 1, expected, found, reason="not projective")
        heads = lift(heads)
    if constituents == "penn":
        kinds, relations = ([fields[at] for _, fields in rows] for at in (_KIND, _RELATION))
        return penn_constituents(words, kinds, heads, relations, language)
    return dependencies_to_tree(words, heads)
