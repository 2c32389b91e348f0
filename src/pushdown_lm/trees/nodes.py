"""Constituents as nodes, while a tree is being built from the bottom up."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeAlias


@dataclass(slots=True)
class Node:
    """A constituent over the words ``start`` to ``end``, from 1 and both included."""

    label: str
    children: list[Child]
    start: int
    end: int


Child: TypeAlias = "Node | int"
"""A constituent, or a word by its number."""


def start_of(child: Child) -> int:
    return child if isinstance(child, int) else child.start


def end_of(child: Child) -> int:
    return child if isinstance(child, int) else child.end


def make_node(label: str, children: Iterable[Child]) -> Child:
    """A constituent of these children in the order of the words; a single child stays alone.

    Of children that overlap, as a predicate that is split around its subject, the parts are taken.
    """
    ordered = sorted(children, key=start_of)
    while crossing := [
        part
        for before, after in pairwise(ordered)
        if end_of(before) >= start_of(after)
        for part in (before, after)
        if isinstance(part, Node)
    ]:
        parts = crossing[0].children
        ordered = [part for part in ordered if part is not crossing[0]]
        ordered = sorted([*ordered, *parts], key=start_of)
    if len(ordered) == 1:
        return ordered[0]
    return Node(label, ordered, start_of(ordered[0]), end_of(ordered[-1]))


def label_of_child(child: Child) -> str:
    return "" if isinstance(child, int) else child.label


def parts_of(child: Child) -> list[Child]:
    """The words of a marker of several: because of, in order that."""
    return [child] if isinstance(child, int) else child.children


def post_order(root: Child) -> Iterator[Node]:
    stack: list[tuple[Child, bool]] = [(root, False)]
    while stack:
        child, is_done = stack.pop()
        if isinstance(child, int):
            continue
        if is_done:
            yield child
        else:
            stack.append((child, True))
            stack += [(part, False) for part in reversed(child.children)]
