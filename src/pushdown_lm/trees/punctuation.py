"""Punctuation marks put into a tree over the other words.

A mark belongs to the smallest constituent around it, at the ends of the sentence to the whole.
Brackets, and dashes in pairs, make a constituent with what is between them; a closing quotation
mark stands in the constituent of the opening one, and the second comma of an apposition in that of
the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from pushdown_lm.trees.nodes import Child, Node, end_of, start_of

OPENING, CLOSING = "([{", ")]}"
DASHES = frozenset({"-", "--", "–", "—"})
QUOTES = {'"': '"', "''": "``", "”": "“", "'": "'", "’": "‘"}
"""Closing quotation marks, and the mark that opens each."""


def insert_punctuation(
    words: Sequence[str], heads: Sequence[int], root: Child, marks: Sequence[int]
) -> Child:
    """The tree with the marks, given by their numbers, from 1, as `heads` has them."""
    return _Punctuation(words, heads, root).insert(marks)


class _Punctuation:
    """Puts punctuation marks into a tree over the other words."""

    def __init__(self, words: Sequence[str], heads: Sequence[int], root: Child) -> None:
        self.words, self.heads = words, heads
        if isinstance(root, Node) and root.label != "VP":
            self.root = root
        else:  # (S (VP Sit down) .)
            self.root = Node("S", [root], start_of(root), end_of(root))
        self.closing: dict[int, int] = {}
        """Of each opening quotation mark, the one that closes it."""
        self.quotations: dict[int, Node] = {}
        """The constituent that each closing quotation mark's opening one stands in."""

    def insert(self, marks: Sequence[int]) -> Child:
        for first, last in self._bracket_pairs(marks):
            self._enclose(first, last)
        self.closing = self._quote_pairs(marks)
        done = {word for word in marks if self._holds(word)}
        for mark in marks:
            if mark not in done:
                self._insert(mark)
        root = self.root
        return root if len(root.children) > 1 else root.children[0]

    def _bracket_pairs(self, marks: Sequence[int]) -> Iterator[tuple[int, int]]:
        """Pairs of brackets, inner before outer, then of dashes.

        Dashes around a single word are the hyphens of a compound: state - of - the - art.
        """
        opened: list[int] = []
        for mark in marks:
            text = self.words[mark - 1]
            if text in OPENING:
                opened.append(mark)
            elif text in CLOSING and opened:
                yield opened.pop(), mark
        dash = 0
        for mark in marks:
            text = self.words[mark - 1]
            if text in DASHES:
                is_second = dash and text == self.words[dash - 1] and mark > dash + 2
                if is_second:
                    yield dash, mark
                dash = 0 if is_second else mark

    def _quote_pairs(self, marks: Sequence[int]) -> dict[int, int]:
        """Pairs of quotation marks: the closing one by the opening one."""
        pairs: dict[int, int] = {}
        opened: dict[str, int] = {}
        for mark in marks:
            text = self.words[mark - 1]
            opening = opened.pop(QUOTES.get(text, ""), 0)
            if opening:
                pairs[opening] = mark
            elif text in QUOTES.values():
                opened[text] = mark
        return pairs

    def _holds(self, word: int) -> bool:
        node: Child = self.root
        while isinstance(node, Node):
            inside = [part for part in node.children if start_of(part) <= word <= end_of(part)]
            if not inside:
                return False
            node = inside[0]
        return node == word

    def _smallest_around(self, first: int, last: int) -> Node:
        """The smallest constituent that holds two words."""
        node = self.root
        while True:
            inside = [
                part
                for part in node.children
                if isinstance(part, Node) and part.start <= first and last <= part.end
            ]
            if not inside:
                return node
            node = inside[0]

    def _enclose(self, opening: int, closing: int) -> None:
        """Make a constituent of two brackets and what is between, if that is a row of children."""
        content = [word for word in range(opening + 1, closing) if self._holds(word)]
        if not content:
            return
        first, last = content[0], content[-1]
        node = self.root
        while inside := [
            part
            for part in node.children
            if isinstance(part, Node)
            and part.start <= first
            and last <= part.end
            and (part.start, part.end) != (first, last)
        ]:
            node = inside[0]
        within = [
            part for part in node.children if first <= start_of(part) and end_of(part) <= last
        ]
        if not within or (start_of(within[0]), end_of(within[-1])) != (first, last):
            return
        at = node.children.index(within[0])
        enclosed = Node("PRN", [opening, *within, closing], opening, closing)
        node.children[at : at + len(within)] = [enclosed]
        self._widen(node)

    def _insert(self, mark: int) -> None:
        node = self._place(mark)
        if mark in self.closing:
            self.quotations[self.closing[mark]] = node
        at = sum(start_of(part) < mark for part in node.children)
        node.children.insert(at, mark)
        self._widen(node)

    def _place(self, mark: int) -> Node:
        """The constituent that a mark becomes a child of."""
        quotation = self.quotations.get(mark)
        if quotation is not None and quotation.end == mark - 1:
            return quotation
        if self.words[mark - 1] == "," and self.heads[mark] < mark:
            apposition = self._with_open_comma(mark - 1)
            if apposition is not None:
                return apposition
        root = self.root
        node = self._smallest_around(mark, mark) if root.start < mark < root.end else root
        if mark in self.closing:  # the constituent that the quotation opens, if it ends within
            opened = (part for part in node.children if start_of(part) == mark + 1)
            part = next(opened, mark)
            if isinstance(part, Node) and self.closing[mark] < part.end:
                return part
        return node

    def _with_open_comma(self, word: int) -> Node | None:
        """The noun phrase that ends with a word and has a comma inside: an apposition's."""
        node = self.root
        while True:
            inside = [
                part
                for part in node.children
                if isinstance(part, Node) and part.start <= word <= part.end
            ]
            if not inside:
                return None
            node = inside[0]
            if (
                node.label == "NP"
                and node.end == word
                and any(
                    isinstance(part, int) and self.words[part - 1] == ","
                    for part in node.children[-2:]
                )
            ):
                return node

    def _widen(self, node: Node) -> None:
        """Let a constituent, and all around it, reach as far as its children do."""
        first, last = start_of(node.children[0]), end_of(node.children[-1])
        around = self.root
        while around is not node:
            inside = next(
                part
                for part in around.children
                if isinstance(part, Node) and part.start <= node.start and node.end <= part.end
            )
            around.start, around.end = min(around.start, first), max(around.end, last)
            around = inside
        node.start, node.end = first, last
