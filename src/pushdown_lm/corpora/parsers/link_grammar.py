"""Link Grammar (Sleator and Temperley 1991): link-parser, of Debian's package link-grammar.

Sentences are given as running text, and only complete linkages count. The parser cuts words in its
own way, adds marks to them (dog.n, qwer{?}.v) and may change their case, so its constituents are
found in the text by their characters, and then hold the words whose last characters they hold.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from pushdown_lm.corpora.parsers.command import CommandParser
from pushdown_lm.corpora.parsers.protocol import Answer, ParserError, ParserOptions, Refusal
from pushdown_lm.corpora.raw_text import Sentence, cut_words
from pushdown_lm.data.text import detokenize
from pushdown_lm.trees import Span, Tree

SECONDS_PER_SENTENCE = 20
_SENTINEL = "width set to "
_PIECE = re.compile(r"\(([A-Z]+)|\)|[^\s()]+")
_MARKS = re.compile(r"(\{[^{}]\})?(\.#?[\w-]+)*")
"""What may follow a word: {?} for a guess, .n for a noun, .#then for another word's sense."""


class LinkGrammarParser(CommandParser):
    """link-parser with one of its dictionaries."""

    def __init__(self, language: str, options: ParserOptions) -> None:
        program = shutil.which("link-parser")
        if program is None:
            raise ParserError("link-parser is not installed: apt-get install link-grammar")
        arguments = [
            program,
            language,
            "-verbosity=0",
            "-constituents=3",
            "-graphics=0",
            "-null=0",
            "-panic=0",
            "-spell=0",
            "-limit=100",
            f"-timeout={SECONDS_PER_SENTENCE}",
        ]
        answers_at_once = shutil.which("stdbuf")
        if answers_at_once:
            arguments = [answers_at_once, "-oL", *arguments]
        super().__init__(arguments, replace(options, persistent=answers_at_once is not None))
        self.language = language

    def describe(self) -> dict[str, Any]:
        return {"link-grammar": self.language, "seconds": SECONDS_PER_SENTENCE}

    def question(self, sentence: Sentence) -> str:
        """The text, which must not look like a command, and a command that shows where it ends."""
        return f" {''.join(detokenize(_words(sentence)))}\n!width=16381"

    def cut(self, lines: Iterator[str]) -> Iterator[str]:
        """What stands before each sentinel; the settings come first."""
        answer: list[str] = []
        for line in lines:
            if line.startswith(_SENTINEL):
                yield "".join(answer)
                answer = []
            elif line.startswith("("):
                answer.append(line)

    def read(self, sentence: Sentence, answer: str) -> Answer:
        if not answer:
            return Refusal("no parse", "no complete linkage")
        words = _words(sentence)
        surfaces = [surface.strip() for surface in detokenize(words)]
        try:
            constituents = place_constituents(answer, "".join("".join(surfaces).split()))
        except ValueError as error:
            return Refusal("malformed answer", f"{error}: {answer[:200]}")
        return words_below(words, [len(surface) for surface in surfaces], constituents)


def _words(sentence: Sentence) -> tuple[str, ...]:
    return sentence.words or cut_words(sentence.text, "penn")


def place_constituents(brackets: str, text: str) -> list[tuple[Span, str]]:
    """The constituents in post-order, with their characters in a text without white space.

    >>> place_constituents("(S (NP the dog.n) (VP isn't) .)", "Thedogisn't.")
    [((0, 6), 'NP'), ((6, 11), 'VP'), ((0, 12), 'S')]
    """
    constituents: list[tuple[Span, str]] = []
    stack: list[tuple[int, str]] = []
    position = 0
    for piece in _PIECE.finditer(brackets):
        if piece[1]:
            stack.append((position, piece[1]))
        elif piece[0] == ")":
            if not stack:
                raise ValueError("a bracket too many")
            start, label = stack.pop()
            constituents.append(((start, position), label))
        else:
            position += _match_length(piece[0], text[position:])
    if stack or position != len(text):
        raise ValueError(f"expected the words of {text[:60]!r}")
    return constituents


def _match_length(leaf: str, text: str) -> int:
    """How many characters of the text a leaf stands for: the most that leave marks only."""
    leaf = {"{": "(", "}": ")"}.get(leaf, leaf)
    for length in range(min(len(leaf), len(text)), 0, -1):
        same = leaf[:length].casefold() == text[:length].casefold()
        if same and _MARKS.fullmatch(leaf[length:]):
            return length
    raise ValueError(f"expected a word that starts {text[:20]!r}, found {leaf!r}")


def words_below(
    words: tuple[str, ...], lengths: list[int], constituents: list[tuple[Span, str]]
) -> Tree:
    """The tree over words of so many characters each; constituents of fewer than two vanish."""
    ends: list[int] = []
    for length in lengths:
        ends.append(length + (ends[-1] if ends else 0))
    spans: list[Span] = []
    labels: list[str] = []
    for (first, last), label in constituents:
        inside = [number for number, end in enumerate(ends) if first < end <= last]
        if len(inside) < 2:
            continue
        span = inside[0], inside[-1] + 1
        if spans and spans[-1] == span:
            labels[-1] = label
        else:
            spans.append(span)
            labels.append(label)
    return Tree(words, tuple(spans), tuple(labels) or ("X",))
