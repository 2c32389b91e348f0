"""Trees as brackets: the Penn Treebank's, with labels, or binary ones without.

    (S (NP (DT The) (NN dog)) (VP (VBZ barks)))          ( ( The dog ) barks )

A malformed text costs no backtracking, and its error names the line and the column.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Iterable, Iterator
from functools import lru_cache, partial

from pushdown_lm.errors import PushdownError, TreeError
from pushdown_lm.trees.tree import Span, Tree, label_of

# A bracketed text is a run of units: opening brackets (with labels), a word, closing brackets.
# Each part may be empty, so a unit matches everywhere, and every character belongs to one unit.
# All quantifiers are possessive: a malformed text costs no backtracking.
_UNIT_END = r"([^()\s]*+)(\)*+)\s*+"
_PENN_UNIT = re.compile(r"((?:\(\s*+[^()\s]*+\s*+)*+)" + _UNIT_END)
_BINARY_UNIT = re.compile(r"((?:\(\s*+)*+)" + _UNIT_END)
_TOKEN = re.compile(r"[()]|[^()\s]+")
_ROOT_LABELS = frozenset({"", "ROOT", "TOP"})

_BRACKET_NAMES = {
    "(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-",
}  # fmt: skip
_BRACKETS = {name: bracket for bracket, name in _BRACKET_NAMES.items()}
_ESCAPE = re.compile(r"-[LR][RSC]B-|\\[/*]", re.IGNORECASE)


def decode_word(word: str) -> str:
    r"""Undo the Penn Treebank's escapes: `-LRB-` is `(`, `1\/2` is `1/2`."""
    return _ESCAPE.sub(lambda match: _BRACKETS.get(match[0].upper()) or match[0][1:], word)


def encode_word(word: str, characters: str = "()[]{}/*") -> str:
    r"""Apply the Penn Treebank's escapes: `(` is `-LRB-`, `1/2` is `1\/2`.

    Not to be told apart afterwards: a word that itself looks like an escape, as `-LRB-`.
    """
    if word.split() != [word]:
        raise PushdownError(f"expected a word without white space, found {word!r}")
    return "".join(
        (_BRACKET_NAMES.get(letter) or "\\" + letter) if letter in characters else letter
        for letter in word
    )


@lru_cache(maxsize=4096)
def strip_function_tags(label: str) -> str:
    """`NP-SBJ=2` is `NP`; a label that starts with a dash, as `-LRB-`, stays."""
    return label if label.startswith("-") else re.split("[-=]", label, maxsplit=1)[0]


def _decode(words: list[str], text: str) -> tuple[str, ...]:
    if "B-" in text or "\\" in text or "b-" in text:
        return tuple(map(decode_word, words))
    return tuple(words)


class _MalformedError(Exception):
    """The scanner met a malformed tree; `_diagnose` finds where and why."""


def _scan(text: str, unit: re.Pattern[str], labelled: bool) -> Iterator[Tree]:
    """The trees of a text that holds whole trees.

    `starts` are the first positions of the open brackets. Of the brackets that close after one
    word, inner before outer, those that start before `lowest` are the new constituents of two or
    more words; the others are unary, or left empty by a trace.
    """
    has_traces = "-NONE-" in text
    words: list[str] = []
    spans: list[Span] = []
    labels: list[str] = []
    starts: list[int] = []
    open_labels: list[str] = []
    word_label = ""
    end, lowest = 0, -1
    for opens, word, closes in unit.findall(text):
        if opens:
            if not word:
                raise _MalformedError
            starts += [end] * opens.count("(")
            if labelled:
                open_labels += opens.split("(")[1:]
        if word and not starts:
            raise _MalformedError
        if word and not (has_traces and opens.rstrip().endswith("(-NONE-")):
            words.append(word)
            lowest = end
            end += 1
        if not closes:
            continue
        count = len(closes)
        if count > len(starts):
            raise _MalformedError
        for start in starts[: -count - 1 : -1]:
            label = strip_function_tags(open_labels.pop().strip()) if labelled else ""
            if start < lowest:
                spans.append((start, end))
                labels.append(label)
                lowest = start
            elif start < end and label not in _ROOT_LABELS:
                if not spans:
                    word_label = label
                elif spans[-1] == (start, end):
                    labels[-1] = label
        del starts[-count:]
        if not starts:
            if not spans:
                labels = [word_label]
            yield Tree(_decode(words, text), tuple(spans), tuple(labels) if labelled else None)
            words, spans, labels, word_label = [], [], [], ""
            end, lowest = 0, -1
    if starts:
        raise _MalformedError


def _scan_tagged(text: str) -> list[Tree] | None:
    """The fast twin of `_scan`: unlabelled trees in the usual form, or None for any other text.

    In the usual form every bracket follows white space, every word has its own tag, and nothing
    stands between closing brackets: `(S (NP (DT the) (NN dog)) (VP (VBZ barks)))`. Between two
    closing brackets there is then either nothing, or opening brackets and one word.
    """
    num_brackets = text.count("(")
    if text.count(" (") + text.startswith("(") != num_brackets or text.count(")") != num_brackets:
        return None
    trees: list[Tree] = []
    words: list[str] = []
    spans: list[Span] = []
    starts: list[int] = []
    end, lowest = 0, -1
    *pieces, rest = text.split(")")
    if rest.strip():
        return None
    try:
        for piece in pieces:
            if piece:
                *opens, word = piece.split()
                tag = opens[-1]
                if tag == "(" or word[0] == "(":
                    return None
                starts += [end] * (len(opens) - 1)
                if tag != "(-NONE-":
                    words.append(word)
                    lowest = end
                    end += 1
            else:
                start = starts.pop()
                if start < lowest:
                    spans.append((start, end))
                    lowest = start
            if not starts:
                trees.append(Tree(_decode(words, text), tuple(spans)))
                words, spans = [], []
                end, lowest = 0, -1
    except (IndexError, ValueError):
        return None
    return None if starts else trees


def _diagnose(text: str, is_penn: bool, source: str, first_line: int, follower: str) -> TreeError:
    """Why the scanner refused `text`, which starts at `first_line` and ends before `follower`."""
    error = partial(TreeError.at, source, text, first_line=first_line)
    depth, opener, previous = 0, "", ""
    for match in _TOKEN.finditer(text):
        token = match[0]
        if depth == 0 and token != "(":
            reason = "surplus bracket" if token == ")" else "text outside a tree"
            return error(match.start(), "'('", repr(token), reason=reason)
        if token == ")" and (previous == "(" or (is_penn and opener == "(")):
            return error(match.start(), "a word or '('", "')'", reason="empty bracket")
        depth += {"(": 1, ")": -1}.get(token, 0)
        opener, previous = previous, token
    return error(len(text), "')'", follower, reason="unclosed bracket")


_ROOT_BRACKET = re.compile(r"\(\s*(?:ROOT|TOP|$|\()")
"""How a line in the first column starts a tree that cannot stand inside another."""
LOOKAHEAD = 10_000
"""Lines after which an open tree that others seem to follow is given up."""


def _chunks(lines: Iterable[str], first_line: int = 1) -> Iterator[tuple[int, str, str]]:
    """Runs of lines that hold whole trees: the first line's number, the text, what follows it.

    Balanced brackets decide where a tree ends; its inner lines may start in the first column. Only
    where a closing bracket is missing does the layout show it: the tree ends before the first inner
    line that starts in the first column. That is known at once where the line starts a root, or
    where all trees before stood on one line each, and otherwise from the end of the text.
    """
    source = enumerate(lines, first_line)
    again: deque[tuple[int, str]] = deque()  # lines of a tree that was given up, after its end
    buffer: list[str] = []
    breaks: list[int] = []  # inner lines that start in the first column
    start, depth = first_line, 0
    one_per_line: bool | None = None
    while True:
        item = again.popleft() if again else next(source, None)
        is_given_up = bool(breaks) and (item is None or len(buffer) >= LOOKAHEAD)
        if item is None and not is_given_up:
            break
        if is_given_up:
            cut = breaks[0]
            yield start, "".join(buffer[:cut]), "'(' in the first column"
            rest = [*enumerate(buffer[cut:], start + cut), *([] if item is None else [item])]
            again.extendleft(reversed(rest))
            buffer, breaks, depth = [], [], 0
            continue
        assert item is not None
        number, line = item
        if depth and line.startswith("("):
            if one_per_line or _ROOT_BRACKET.match(line):
                yield start, "".join(buffer), "'(' in the first column"
                buffer, breaks, depth = [], [], 0
            else:
                breaks.append(len(buffer))
        if not buffer:
            start = number
        buffer.append(line)
        depth += line.count("(") - line.count(")")
        if depth <= 0:
            text = "".join(buffer)
            yield start, text, "the end of the text"
            if "(" in text:
                one_per_line = one_per_line is not False and len(buffer) == 1
            buffer, breaks, depth = [], [], 0
    if buffer:
        yield start, "".join(buffer), "the end of the text"


def read_brackets(
    lines: Iterable[str], source: str, is_penn: bool, labelled: bool, first_line: int = 1
) -> Iterator[Tree | TreeError]:
    unit = _PENN_UNIT if is_penn else _BINARY_UNIT
    for number, text, follower in _chunks(lines, first_line):
        trees = _scan_tagged(text) if is_penn and not labelled else None
        if trees is not None:
            yield from trees
            continue
        if not is_penn and len(text.split()) == 1 and "(" not in text and ")" not in text:
            yield Tree(_decode([text.strip()], text), ())
            continue
        try:
            yield from _scan(text, unit, labelled and is_penn)
        except _MalformedError:
            yield _diagnose(text, is_penn, source, number, follower)


def to_brackets(tree: Tree, *, label: str = "X", tag: str | None = None) -> str:
    """The tree on one line, with its own labels or, where it has none, with `label`.

    >>> to_brackets(Tree(("The", "dog", "barks"), ((0, 2), (0, 3))))
    '(X (X The dog) barks)'

    An empty `label` gives the "binary" format. With a `tag`, each word is a bracket of its own,
    as evaluation tools expect: `(X (X (T The) (T dog)) (T barks))`.
    """
    words = [encode_word(word) for word in tree.words]
    if tag is not None:
        words = [f"({tag} {word})" for word in words]
    opens: list[list[str]] = [[] for _ in words]
    num_closes = [0] * len(words)
    for node, (start, end) in enumerate(tree.spans or [(0, len(words))]):
        opens[start].append(f"({label_of(tree, node, label)} ")
        num_closes[end - 1] += 1
    return " ".join(
        "".join(reversed(opens[position])) + word + ")" * num_closes[position]
        for position, word in enumerate(words)
    )
