"""Reading files of trees in any format: Penn or binary brackets, CoNLL-U, SNLI's JSON lines.

>>> parse_tree("(S (NP (DT The) (NN dog)) (VP (VBZ is) (ADJP (JJ happy))))")
Tree(words=('The', 'dog', 'is', 'happy'), spans=((0, 2), (2, 4), (0, 4)), labels=None)
"""

from __future__ import annotations

import gzip
import io
import json
import os
import re
import zlib
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, Literal, get_args

from pushdown_lm.errors import PushdownError, TreeError
from pushdown_lm.trees.brackets import read_brackets
from pushdown_lm.trees.conllu import Constituents, Nonprojective, read_conllu
from pushdown_lm.trees.tree import Tree

Format = Literal["auto", "penn", "binary", "conllu", "snli"]
Errors = Literal["raise", "skip"]

_LABELLED_BRACKET = re.compile(r"\([^()\s]")
_CONLLU_LINE = re.compile(r"#|\d+(?:[-.]\d+)?\t")


def _read_snli(lines: Iterable[str], source: str, labelled: bool) -> Iterator[Tree | TreeError]:
    """Both Penn parses of each pair; the column of an error counts within the parse."""
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            pair = json.loads(line)
            parses = [pair["sentence1_parse"], pair["sentence2_parse"]]
            if not all(isinstance(parse, str) for parse in parses):
                raise TypeError
        except (ValueError, KeyError, TypeError, RecursionError):
            expected = "a JSON object with sentence1_parse and sentence2_parse"
            yield TreeError(source, number, 1, expected, repr(line[:40]), reason="not a pair")
            continue
        for parse in parses:
            yield from read_brackets([parse], source, True, labelled, number)


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
    constituents: Constituents,
    language: str | None,
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
        items = read_conllu(
            lines,
            source,
            nonprojective=nonprojective,
            constituents=constituents,
            language=language,
        )
    elif format == "snli":
        items = _read_snli(lines, source, labels)
    else:
        items = read_brackets(lines, source, format == "penn", labels)
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
    number = 0
    try:
        with opened(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, start=1):  # noqa: B007
                yield line
    except (gzip.BadGzipFile, EOFError, zlib.error) as error:
        found = f"{error}" if number == 0 else f"damage after this line ({error})"
        raise TreeError(
            path, max(number, 1), 1, "whole gzip data", found, reason="bad gzip"
        ) from None
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
    constituents: Constituents = "heads",
    language: str | None = "en",
) -> Iterator[Tree]:
    """Stream the trees of one or several files; `.gz` is unpacked.

    format:
        "penn", brackets with labels, with or without tags: `(NP (DT the) dog)`;
        "binary", brackets without labels: `( ( Two women ) ( are here ) )`, or a lone word;
        "conllu", dependencies, turned into constituents by `constituents`;
        "snli", JSON lines with `sentence1_parse` and `sentence2_parse`;
        "auto" looks at the file's name, then at its first lines: brackets none of which is
        directly followed by a label are "binary".
    labels: keep the labels of Penn brackets, without function tags.
    errors: what to do with a malformed tree: "raise" a `TreeError`, or "skip" the lines it
        stands on.
    counts: receives the number of skipped trees by reason; trees of traces only are "no words".
    nonprojective: CoNLL-U sentences with crossing arcs are errors ("report"), or are made
        projective ("lift").
    constituents: the rule that turns dependencies into constituents: "heads" or "penn", as
        :mod:`pushdown_lm.trees.conllu` describes them.
    language: code of the language whose word lists help "penn".
    """
    if isinstance(paths, str | os.PathLike):
        paths = [paths]
    options = format, labels, errors, counts, nonprojective, constituents, language
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
    constituents: Constituents = "heads",
    language: str | None = "en",
    source: str = "<text>",
) -> Iterator[Tree]:
    """The trees of a string; the arguments are those of `read_trees`."""
    lines = io.StringIO(text.removeprefix("\ufeff"), newline=None)
    options = format, labels, errors, counts, nonprojective, constituents, language
    return _read_lines(lines, source, *options)


def parse_tree(text: str, *, format: Format = "auto", labels: bool = False) -> Tree:
    """The one tree of a string."""
    trees = list(parse_trees(text, format=format, labels=labels))
    if len(trees) != 1:
        raise TreeError("<text>", 1, 1, "one tree", f"{len(trees)}", reason="not one tree")
    return trees[0]
