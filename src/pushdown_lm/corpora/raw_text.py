"""Raw text files as sentences with their places, in units of work of bounded size.

A source is a file, a `.gz` file, standard input, or a split of a dataset on the Hub. What cannot be
read from its middle is copied to a plain file first. A *unit* is a run of a source's lines, ended
at a paragraph's end, that any worker reads by itself; its sentences depend on nothing else.

Layouts:

``lines``        a paragraph per line; sentences never cross a line's end
``paragraphs``   lines of limited width; blank lines separate paragraphs
``sentences``    a sentence per line
``wikitext``     as WikiText has it: tokenized paragraphs, headings as `= Title =`, `@-@` for -
"""

from __future__ import annotations

import glob
import gzip
import hashlib
import os
import re
import shutil
import sys
import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import accumulate, chain
from pathlib import Path
from typing import IO, Literal, NamedTuple

from pushdown_lm.corpora.sentence_splitting import split_sentences
from pushdown_lm.data.text import penn_words
from pushdown_lm.errors import PushdownError
from pushdown_lm.files import atomic_write

Layout = Literal["lines", "paragraphs", "sentences", "wikitext"]
Cutting = Literal["penn", "space", "parser"]
"""How sentences become words: as the Penn Treebank cuts them, at white space, or by the parser."""

LONGEST_PIECE = 1 << 20
"""Bytes after which a line is cut at white space."""
DATASET = "hf:"
"""How the name of a dataset on the Hub starts: `hf:REPOSITORY:CONFIGURATION:SPLIT`."""


class Sentence(NamedTuple):
    """A sentence of a source."""

    line: int
    text: str
    words: tuple[str, ...]
    """Empty where the parser is to cut the text."""


class Rejection(NamedTuple):
    """A line or a sentence that gave no tree."""

    line: int
    reason: str
    detail: str
    text: str


@dataclass(frozen=True)
class Unit:
    """A part of a source: so many bytes from an offset on."""

    number: int
    source: str
    """The name that messages show."""
    path: str
    offset: int
    size: int
    first_line: int
    layout: Layout


@dataclass
class Source:
    """A source as a plain file; `digest` and `lines` are known once its units have been read."""

    name: str
    path: Path
    layout: Layout
    lines: int = 0
    has_text: bool = False
    digest: str = field(default="", init=False)

    def units(self, unit_bytes: int, first_number: int = 0) -> Iterator[Unit]:
        """Cut the file after every `unit_bytes`, at the next end of a paragraph.

        A paragraph of more than four times that is cut at a line's end.
        """
        digest = hashlib.sha256()
        number, offset, size, first_line = first_number, 0, 0, 1
        with self.path.open("rb") as file:
            for piece in _pieces(file):
                digest.update(piece)
                is_blank = not piece.strip()
                self.has_text |= not is_blank
                size += len(piece)
                self.lines += piece.endswith(b"\n")
                ends = is_blank or self.layout != "paragraphs" or size >= 4 * unit_bytes
                if size >= unit_bytes and ends:
                    yield self._unit(number, offset, size, first_line)
                    number, offset, size, first_line = number + 1, offset + size, 0, self.lines + 1
        if size:
            yield self._unit(number, offset, size, first_line)
        self.digest = digest.hexdigest()

    def _unit(self, number: int, offset: int, size: int, first_line: int) -> Unit:
        return Unit(number, self.name, str(self.path), offset, size, first_line, self.layout)


def _pieces(file: IO[bytes]) -> Iterator[bytes]:
    """The lines of a file; overlong ones in several pieces, between words where there are any."""
    while piece := file.readline(LONGEST_PIECE):
        if len(piece) == LONGEST_PIECE and not piece.endswith(b"\n"):
            cut = piece.rfind(b" ") + 1 or _last_character(piece)
            file.seek(cut - len(piece), os.SEEK_CUR)
            piece = piece[:cut]
        yield piece


def _last_character(piece: bytes) -> int:
    """Where the last character of UTF-8 starts, which may be incomplete."""
    cut = len(piece) - 1
    while cut > len(piece) - 4 and piece[cut] & 0xC0 == 0x80:
        cut -= 1
    return cut


# ------------------------------------------------------------------ sources


def expand_names(texts: Iterable[str]) -> list[str]:
    """The names of sources; patterns stand for files, in the order of their names."""
    return list(chain.from_iterable(map(_expand, texts)))


def open_sources(
    names: Iterable[str], layout: Layout | Literal["auto"], copies: Path
) -> list[Source]:
    """The sources of these names.

    Args:
        copies: the folder for what has to be copied; a copy that is there already is used.
    """
    sources = []
    for name in names:
        path = Path(name)
        if name == "-":
            path = copies / "stdin.txt"
            _copy(name, path)
        elif name.startswith(DATASET) or name.endswith(".gz"):
            path = copies / f"{_identity(name)}.txt"
            if not path.exists():
                _copy(name, path)
        shown = "<stdin>" if name == "-" else name
        sources.append(Source(shown, path, detect_layout(path) if layout == "auto" else layout))
    return sources


def _identity(name: str) -> str:
    """What tells the content of one source from another's without reading it."""
    parts = [name]
    if not name.startswith(DATASET):
        status = os.stat(name)
        parts += [os.path.realpath(name), str(status.st_size), str(status.st_mtime_ns)]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


def _expand(pattern: str) -> list[str]:
    if pattern == "-" or pattern.startswith(DATASET) or os.path.isfile(pattern):
        return [pattern]
    found = [name for name in sorted(glob.glob(pattern, recursive=True)) if os.path.isfile(name)]
    if not found:
        problem = f"is a folder; give its files, as '{pattern}/*'"
        raise PushdownError(
            f"{pattern}: {problem if os.path.isdir(pattern) else 'no such file or directory'}"
        )
    return found


def _copy(name: str, path: Path) -> None:
    with atomic_write(path, "wb") as file:
        if name == "-":
            shutil.copyfileobj(sys.stdin.buffer, file)
        elif name.startswith(DATASET):
            for text in dataset_texts(name):
                file.write(text.encode("utf-8", "surrogatepass"))
        else:
            try:
                with gzip.open(name) as packed:
                    shutil.copyfileobj(packed, file)
            except (gzip.BadGzipFile, EOFError, zlib.error) as error:
                raise PushdownError(f"{name}: expected whole gzip data, found {error}") from None


def dataset_texts(name: str) -> Iterator[str]:
    """The column `text` of a dataset on the Hub, streamed: `hf:REPOSITORY:CONFIGURATION:SPLIT`.

    A folder or file that `datasets` can load serves as the repository, too.
    """
    from datasets import load_dataset

    parts = name.removeprefix(DATASET).split(":")
    if len(parts) != 3 or not all(parts):
        raise PushdownError(f"{name}: expected {DATASET}REPOSITORY:CONFIGURATION:SPLIT")
    repository, configuration, split = parts
    try:
        rows = load_dataset(repository, configuration, split=split, streaming=True)
    except Exception as error:  # of any kind: no network, no such dataset, no such split
        detail = " ".join(str(error).split())[:200]
        raise PushdownError(f"{name}: cannot be loaded: {detail}") from error
    for row in rows:
        if not isinstance(row.get("text"), str):
            raise PushdownError(f"{name}: expected a column named text, found {', '.join(row)}")
        yield row["text"] if row["text"].endswith("\n") else row["text"] + "\n"


def detect_layout(path: Path) -> Layout:
    """The layout that the first 64 kB of a file look like, WikiText's and sentences' aside.

    Paragraphs of several lines have few long lines, and few that end like sentences.
    """
    with path.open("rb") as file:
        lines = [line.strip() for line in file.read(1 << 16).split(b"\n")]
    texts = [line for line in lines if line]
    if len(texts) < 4 or all(lines[:-1]):
        return "lines"
    short = sum(len(line) <= 100 for line in texts)
    ended = sum(line.endswith((b".", b"!", b"?", b'"', b"\xe2\x80\x9d")) for line in texts)
    return "paragraphs" if short > 0.9 * len(texts) and ended < 0.5 * len(texts) else "lines"


# ------------------------------------------------------------------ sentences


def read_sentences(
    unit: Unit, cutting: Cutting, language: str | None
) -> Iterator[Sentence | Rejection]:
    """The sentences of a unit in order; a line that is not UTF-8 is rejected."""
    with open(unit.path, "rb") as file:
        file.seek(unit.offset)
        content = file.read(unit.size)
    if unit.offset == 0:
        content = content.removeprefix(b"\xef\xbb\xbf")
    paragraph: list[tuple[int, str]] = []
    for number, line in enumerate(content.split(b"\n"), unit.first_line):
        try:
            text = line.decode().strip()
        except UnicodeDecodeError as error:
            detail = f"expected UTF-8, found byte 0x{line[error.start]:02x}"
            shown = line[:200].decode(errors="backslashreplace")
            yield from _sentences_of(paragraph, unit.layout, cutting, language)
            paragraph = []
            yield Rejection(number, "not UTF-8", detail, shown)
            continue
        if text:
            paragraph.append((number, text))
        if paragraph and (unit.layout != "paragraphs" or not text):
            yield from _sentences_of(paragraph, unit.layout, cutting, language)
            paragraph = []
    yield from _sentences_of(paragraph, unit.layout, cutting, language)


_HEADING = re.compile(r"(=(?: =)*) .* \1")
_JOINER = re.compile(r" @([-,.])@ ")


def _sentences_of(
    paragraph: Sequence[tuple[int, str]], layout: Layout, cutting: Cutting, language: str | None
) -> Iterator[Sentence]:
    if not paragraph:
        return
    text = " ".join(line for _, line in paragraph)
    if layout == "wikitext":
        if _HEADING.fullmatch(text):
            return
        text = _JOINER.sub(r"\1", text)
    if layout == "sentences":
        spans = [(0, len(text))]
    else:
        spans = split_sentences(text, language)
    starts = list(accumulate((len(line) + 1 for _, line in paragraph), initial=0))
    for start, end in spans:
        line = paragraph[min(bisect_right(starts, start), len(paragraph)) - 1][0]
        sentence = text[start:end]
        yield Sentence(line, sentence, cut_words(sentence, cutting))


def cut_words(text: str, cutting: Cutting) -> tuple[str, ...]:
    """The words of a sentence, none where the parser cuts them."""
    if cutting == "penn":
        return tuple(word for word, _, _ in penn_words(text))
    return tuple(text.split()) if cutting == "space" else ()
