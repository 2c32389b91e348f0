"""Constituency trees: reading, writing, binarizing, and moving between words and subwords.

A tree is its words and its spans in post-order. That is all a Pushdown model needs, it is what
the attachments are computed from in one pass, and no bracket depth can overflow the stack.

    >>> parse_tree("(S (NP (DT The) (NN dog)) (VP (VBZ is) (ADJP (JJ happy))))")
    Tree(words=('The', 'dog', 'is', 'happy'), spans=((0, 2), (2, 4), (0, 4)), labels=None)
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from itertools import accumulate, chain, islice
from typing import TYPE_CHECKING, Any, Literal, get_args

from pushdown_lm.errors import PushdownError, TreeError

if TYPE_CHECKING:
    import nltk

Format = Literal["auto", "penn", "binary", "conllu", "snli"]
Errors = Literal["raise", "skip"]
Nonprojective = Literal["report", "lift"]
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


# A bracketed text is a run of units: opening brackets (with labels), a word, closing brackets.
# Each part may be empty, so a unit matches everywhere, and every character belongs to one unit.
# All quantifiers are possessive: a malformed text costs no backtracking.
_UNIT_END = r"([^()\s]*+)(\)*+)\s*+"
_PENN_UNIT = re.compile(r"((?:\(\s*+[^()\s]*+\s*+)*+)" + _UNIT_END)
_BINARY_UNIT = re.compile(r"((?:\(\s*+)*+)" + _UNIT_END)
_TOKEN = re.compile(r"[()]|[^()\s]+")
_LABELLED_BRACKET = re.compile(r"\([^()\s]")
_CONLLU_LINE = re.compile(r"#|\d+(?:[-.]\d+)?\t")
_ROOT_LABELS = frozenset({"", "ROOT", "TOP"})

_BRACKET_NAMES = {
    "(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-", "{": "-LCB-", "}": "-RCB-",
}  # fmt: skip
_BRACKETS = {name: bracket for bracket, name in _BRACKET_NAMES.items()}
_ESCAPE = re.compile(r"-[LR][RSC]B-|\\[/*]", re.IGNORECASE)
_SPECIAL = re.compile(r"[][(){}/*]")


def decode_word(word: str) -> str:
    r"""Undo the Penn Treebank's escapes: `-LRB-` is `(`, `1\/2` is `1/2`."""
    return _ESCAPE.sub(lambda match: _BRACKETS.get(match[0].upper()) or match[0][1:], word)


def encode_word(word: str) -> str:
    r"""Apply the Penn Treebank's escapes: `(` is `-LRB-`, `1/2` is `1\/2`.

    Not to be told apart afterwards: a word that itself looks like an escape, as `-LRB-`.
    """
    if word.split() != [word]:
        raise PushdownError(f"expected a word without white space, found {word!r}")
    return _SPECIAL.sub(lambda match: _BRACKET_NAMES.get(match[0]) or "\\" + match[0], word)


@lru_cache(maxsize=4096)
def strip_function_tags(label: str) -> str:
    """`NP-SBJ=2` is `NP`; a label that starts with a dash, as `-LRB-`, stays."""
    return label if label.startswith("-") else re.split("[-=]", label, maxsplit=1)[0]


def _decoded(words: list[str], text: str) -> tuple[str, ...]:
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
            yield Tree(_decoded(words, text), tuple(spans), tuple(labels) if labelled else None)
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
                trees.append(Tree(_decoded(words, text), tuple(spans)))
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


def _chunks(
    lines: Iterable[str], first_line: int = 1, strict: bool | None = None
) -> Iterator[tuple[int, str, str]]:
    """Runs of lines that hold whole trees: the first line's number, the text, what follows it.

    Where a closing bracket is missing, only the layout shows it: a bracket in the first column
    starts a tree (`strict`), unless the first tree of the input has such a bracket inside.
    """
    buffer: list[str] = []
    start = first_line
    depth = 0
    has_inner_first_column = False
    for number, line in enumerate(lines, first_line):
        if depth and line.startswith("("):
            if strict:
                yield start, "".join(buffer), "'(' in the first column"
                buffer, depth = [], 0
            has_inner_first_column = True
        if not buffer:
            start = number
        buffer.append(line)
        depth += line.count("(") - line.count(")")
        if depth <= 0:
            text = "".join(buffer)
            yield start, text, "the end of the text"
            if strict is None and "(" in text:
                strict = not has_inner_first_column
            buffer, depth = [], 0
    if buffer and strict is None:
        yield from _chunks(buffer, start, strict=True)
    elif buffer:
        yield start, "".join(buffer), "the end of the text"


def _read_brackets(
    lines: Iterable[str], source: str, is_penn: bool, labelled: bool, first_line: int = 1
) -> Iterator[Tree | TreeError]:
    unit = _PENN_UNIT if is_penn else _BINARY_UNIT
    for number, text, follower in _chunks(lines, first_line):
        trees = _scan_tagged(text) if is_penn and not labelled else None
        if trees is not None:
            yield from trees
            continue
        if not is_penn and len(text.split()) == 1 and "(" not in text and ")" not in text:
            yield Tree(_decoded([text.strip()], text), ())
            continue
        try:
            yield from _scan(text, unit, labelled and is_penn)
        except _MalformedError:
            yield _diagnose(text, is_penn, source, number, follower)


def _read_snli(lines: Iterable[str], source: str, labelled: bool) -> Iterator[Tree | TreeError]:
    """Both Penn parses of each pair; the column of an error counts within the parse."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            pair = json.loads(line)
            parses = [pair["sentence1_parse"], pair["sentence2_parse"]]
        except (ValueError, KeyError, TypeError):
            expected = "a JSON object with sentence1_parse and sentence2_parse"
            yield TreeError(source, number, 1, expected, repr(line[:40]), reason="not a pair")
            continue
        for parse in parses:
            yield from _read_brackets([parse], source, True, labelled, number)


def _detect_format(head: Sequence[str], source: str) -> Format:
    suffix = os.path.splitext(source.removesuffix(".gz"))[1]
    first = next((line for line in head if line.strip()), "")
    if suffix in {".conllu", ".conll"} or _CONLLU_LINE.match(first):
        return "conllu"
    if suffix == ".jsonl" or first.startswith("{"):
        return "snli"
    return "penn" if _LABELLED_BRACKET.search("".join(head)) else "binary"


def _read_lines(
    lines: Iterable[str],
    source: str,
    format: Format,
    labels: bool,
    errors: Errors,
    counts: Counter[str] | None,
    nonprojective: Nonprojective,
) -> Iterator[Tree]:
    if format not in get_args(Format):
        raise PushdownError(f"expected a format of {get_args(Format)}, found {format!r}")
    if format == "auto":
        lines = iter(lines)
        head = list(islice(lines, 64))
        lines = chain(head, lines)
        format = _detect_format(head, source)
    items: Iterable[Tree | TreeError]
    if format == "conllu":
        from pushdown_lm.conllu import read_conllu

        items = read_conllu(lines, source, nonprojective=nonprojective)
    elif format == "snli":
        items = _read_snli(lines, source, labels)
    else:
        items = _read_brackets(lines, source, format == "penn", labels)
    counts = Counter() if counts is None else counts
    for item in items:
        if isinstance(item, TreeError):
            if errors != "skip":
                raise item
            counts[item.reason] += 1
        elif item.words:
            yield item
        else:
            counts["no words"] += 1


def _file_lines(path: str) -> Iterator[str]:
    opened: Any = partial(gzip.open if path.endswith(".gz") else open, path, "rt")
    try:
        with opened(encoding="utf-8-sig") as file:
            yield from file
    except UnicodeDecodeError:
        with opened(encoding="utf-8-sig", errors="surrogateescape") as file:
            text = file.read()
        offset = next(i for i, character in enumerate(text) if "\udc80" <= character <= "\udcff")
        found = f"byte 0x{ord(text[offset]) - 0xDC00:02x}"
        raise TreeError.at(path, text, offset, "UTF-8", found, reason="not UTF-8") from None


def read_trees(
    paths: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
    *,
    format: Format = "auto",
    labels: bool = False,
    errors: Errors = "raise",
    counts: Counter[str] | None = None,
    nonprojective: Nonprojective = "report",
) -> Iterator[Tree]:
    """Stream the trees of one or several files; `.gz` is unpacked.

    format:
        "penn", brackets with labels, with or without tags: `(NP (DT the) dog)`;
        "binary", brackets without labels: `( ( Two women ) ( are here ) )`, or a lone word;
        "conllu", dependencies, turned into binary trees by `conllu.dependencies_to_tree`;
        "snli", JSON lines with `sentence1_parse` and `sentence2_parse`;
        "auto" looks at the file's name, then at its first lines: brackets none of which is
        directly followed by a label are "binary".
    labels: keep the labels of Penn brackets, without function tags.
    errors: what to do with a malformed tree: "raise" a `TreeError`, or "skip" the lines it
        stands on.
    counts: receives the number of skipped trees by reason; trees of traces only are "no words".
    nonprojective: CoNLL-U sentences with crossing arcs are errors ("report"), or are made
        projective ("lift").
    """
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    options = format, labels, errors, counts, nonprojective
    return chain.from_iterable(
        _read_lines(_file_lines(os.fspath(path)), os.fspath(path), *options) for path in paths
    )


def parse_trees(
    text: str,
    *,
    format: Format = "auto",
    labels: bool = False,
    errors: Errors = "raise",
    counts: Counter[str] | None = None,
    nonprojective: Nonprojective = "report",
    source: str = "<text>",
) -> Iterator[Tree]:
    """The trees of a string; the arguments are those of `read_trees`."""
    lines = io.StringIO(text.removeprefix("\ufeff"), newline=None)
    return _read_lines(lines, source, format, labels, errors, counts, nonprojective)


def parse_tree(text: str, *, format: Format = "auto", labels: bool = False) -> Tree:
    """The one tree of a string."""
    trees = list(parse_trees(text, format=format, labels=labels))
    if len(trees) != 1:
        raise TreeError("<text>", 1, 1, "one tree", f"{len(trees)}", reason="not one tree")
    return trees[0]


def is_binary(tree: Tree) -> bool:
    """Whether every constituent has two children."""
    return len(tree.spans) == len(tree.words) - 1


def _children(tree: Tree) -> Iterator[list[Span]]:
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


def binarize(tree: Tree, direction: Literal["right", "left"] = "right") -> Tree:
    """A binary tree that has all constituents of `tree`.

    "right" turns `(a b c d)` into `(a (b (c d)))`, "left" into `(((a b) c) d)`. A constituent
    that is added within one labelled NP is labelled `NP|`.
    """
    nodes: list[tuple[Span, str]] = []
    for node, children in enumerate(_children(tree)):
        start, end = tree.spans[node]
        label = _label(tree, node, "")
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


def merge_pieces(tree: Tree, piece_counts: Sequence[int], words: Sequence[str]) -> Tree:
    """Turn a tree over subword pieces into a tree over words: the inverse of `split_words`.

    A predicted tree need not have a constituent for each word. The rule: of each word only its
    last piece is kept, the piece with which the word is complete; constituents left with fewer
    than two words vanish, as do unary ones. With un|happy:

           ┌────┴─────┐               ┌────┴────┐
         ┌─┴─┐     ┌──┴──┐    gives   │      ┌──┴───┐
        the  un  happy  dog          the  unhappy  dog

    Deleting leaves from a binary tree leaves a binary tree, and a constituent whose ends are
    ends of words keeps exactly its words.
    """
    num_pieces = len(tree.words)
    if (len(piece_counts), sum(piece_counts)) != (len(words), num_pieces) or min(piece_counts) < 1:
        raise PushdownError(
            f"expected {len(words)} positive piece counts that add up to {num_pieces}, "
            f"found {list(piece_counts)}"
        )
    num_complete = [0]
    for word, count in enumerate(piece_counts):
        num_complete += [word] * (count - 1) + [word + 1]
    spans: list[Span] = []
    labels: list[str] = []
    for node, (start, end) in enumerate(tree.spans):
        span = num_complete[start], num_complete[end]
        if span[1] - span[0] < 2:
            continue
        if not spans or spans[-1] != span:
            spans.append(span)
            labels.append("")
        if tree.labels:
            labels[-1] = tree.labels[node] or labels[-1]
    return Tree(tuple(words), tuple(spans), tree.labels and tuple(labels or tree.labels[-1:]))


def _label(tree: Tree, node: int, default: str) -> str:
    return (tree.labels[node] if tree.labels else "") or default


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
        opens[start].append(f"({_label(tree, node, label)} ")
        num_closes[end - 1] += 1
    return " ".join(
        "".join(reversed(opens[position])) + word + ")" * num_closes[position]
        for position, word in enumerate(words)
    )


def draw(tree: Tree) -> str:
    """The tree as text, words in a row at the bottom.

    >>> print(draw(Tree(("The", "dog", "is", "happy"), ((0, 2), (2, 4), (0, 4)))))
       ┌────┴────┐
     ┌─┴──┐   ┌──┴──┐
    The  dog  is  happy
    """
    centers: dict[Span, int] = {}
    heights: dict[Span, int] = {}
    rows: list[list[str]] = []
    lefts = [0, *accumulate(max(len(word), 2) + 2 for word in tree.words)]

    def put(height: int, column: int, text: str) -> None:
        while len(rows) <= height:
            rows.append([" "] * lefts[-1])
        rows[height][column : column + len(text)] = text

    for position, word in enumerate(tree.words):
        put(0, lefts[position], word)
        centers[position, position + 1] = lefts[position] + (len(word) - 1) // 2
        heights[position, position + 1] = 0
    for node, (span, children) in enumerate(zip(tree.spans, _children(tree), strict=True)):
        first, *inner, last = (centers[child] for child in children)
        center = centers[span] = (first + last) // 2
        height = heights[span] = 1 + max(heights[child] for child in children)
        put(height, first, "┌" + "─" * (last - first - 1) + "┐")
        for column in inner:
            put(height, column, "┬")
        put(height, center, "┼" if center in inner else "┴")
        if name := _label(tree, node, ""):
            put(height, max(first + 1, center - (len(name) - 1) // 2), name)
        for child in children:
            for level in range(heights[child] + 1, height):
                put(level, centers[child], "│")
    return "\n".join("".join(row).rstrip() for row in reversed(rows))


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
        raise PushdownError("expected nltk, found none: pip install 'pushdown-lm[nltk]'") from None
    nodes: dict[Span, Any] = {(word, word + 1): text for word, text in enumerate(tree.words)}
    if not tree.spans:
        return NltkTree(_label(tree, 0, label), list(tree.words))
    for node, (span, children) in enumerate(zip(tree.spans, _children(tree), strict=True)):
        nodes[span] = NltkTree(_label(tree, node, label), [nodes[child] for child in children])
    return nodes[0, len(tree.words)]
