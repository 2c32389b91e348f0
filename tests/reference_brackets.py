"""What brackets mean, one symbol after another, written to be read.

Symbols are plain tuples: ("bos",), ("open", label), ("word",), ("close", label), ("end",).
"""

from __future__ import annotations

from collections.abc import Sequence

from pushdown_lm.data.bracketing import Nonterminals
from pushdown_lm.trees import Tree
from pushdown_lm.trees.linearization import actions_from_tree

BOS, EOS, FIRST_WORD = 0, 1, 2


def symbols_of(tree: Tree, nonterminals: Nonterminals, words: Sequence[int]) -> list[int]:
    """The ids of a bracketed sentence whose words have these ids."""
    actions = actions_from_tree(tree, nonterminals.labels.index)
    return nonterminals.linearize([BOS, *words, EOS], [0, *actions, 0])


class Automaton:
    """Transformer Grammars' stack as their Algorithm 1 moves it, and the open constituents."""

    def __init__(self, nonterminals: Nonterminals) -> None:
        self.nonterminals = nonterminals
        self.symbols: list[int] = []
        self.stack: list[int] = []
        self.open: list[int] = []
        self.children: list[int] = []
        self.composed = False
        """Whether the last symbol was the first copy of a closer."""

    def read(self, symbol: int) -> tuple[set[int], int, tuple[set[int], set[int]]]:
        """What TG sees, its position, and what the two heads of PLM-mask see."""
        now, table = len(self.symbols), self.nonterminals
        self.symbols.append(symbol)
        is_open = table.first <= symbol < table.first_closer
        is_close = table.first_closer <= symbol < table.end
        repeats = is_close and table.typed and self.composed
        self.composed = is_close and not repeats
        if self.composed:
            depth = len(self.open)
            opener = self.open.pop()
            self.children.pop()
            seen = {now}
            while self.stack[-1] != opener:
                seen.add(self.stack.pop())
            seen.add(self.stack.pop())
            self.stack.append(now)
            if self.children:
                self.children[-1] += 1
        else:
            if not repeats:
                self.stack.append(now)
            seen = {*self.stack, now}
            depth = len(self.open) + 1 if now else 0
            if is_open:
                self.open.append(now)
                self.children.append(0)
            elif self.children and not repeats:
                self.children[-1] += 1
        everything = set(range(now + 1))
        before = {j for j in everything if not self.open or j < self.open[-1]}
        after = {j for j in everything if not self.open or j >= self.open[-1]}
        return seen, depth, (before, after)

    def legal(self, num_words: int) -> set[int]:
        """The symbols that may come next; words are numbered from FIRST_WORD."""
        table = self.nonterminals
        openers = set(range(table.first, table.first_closer))
        if len(self.symbols) == 1:
            return openers
        if not self.open:
            return {EOS}
        legal = openers | set(range(FIRST_WORD, FIRST_WORD + num_words))
        if self.children[-1] >= 2 or (len(self.open) == 1 and self.children[-1] == 1):
            label = self.symbols[self.open[-1]] - table.first
            legal.add(table.first_closer + label * table.typed)
        return legal
