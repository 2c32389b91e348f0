"""What a corpus build asks of a parser."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from pushdown_lm.corpora.raw_text import Sentence
from pushdown_lm.errors import PushdownError, TreeError
from pushdown_lm.trees import Tree
from pushdown_lm.trees.conllu import Constituents
from pushdown_lm.trees.reading import parse_trees


class ParserError(PushdownError):
    """A parser that cannot be used at all."""


class Refusal(NamedTuple):
    """Why a sentence has no tree: a short name of the kind, by which they are counted, and more."""

    reason: str
    detail: str


Answer = Tree | Refusal


@dataclass(frozen=True)
class ParserOptions:
    """How a parser is run. Each parser reads those that concern it."""

    constituents: Constituents = "penn"
    """The rule that turns dependencies into constituents."""
    language: str | None = "en"
    """Its word lists help that rule."""
    timeout: float = 300.0
    """Seconds of silence after which another program counts as hanging."""
    persistent: bool = False
    """Whether a command answers each sentence at once, and stays for the next ones."""
    beam: int = 50
    """Parses that a Pushdown model's search keeps."""
    min_confidence: float = 0.0
    """The least mean posterior of the constituents of a Pushdown model's tree."""


class Parser(Protocol):
    """Turns sentences into trees; used in one thread."""

    def describe(self) -> dict[str, Any]:
        """All that decides the trees, ready for JSON."""

    def parse(self, sentences: Sequence[Sentence]) -> Iterator[Answer]:
        """An answer for each sentence, in order.

        A tree's words replace those of the sentence only where the sentence has none.
        """

    def close(self) -> None:
        """End what the parser has started."""


def read_answer(text: str, options: ParserOptions) -> Answer:
    """The tree in a parser's answer: brackets, a lone word, or a sentence of CoNLL-U."""
    if "(" not in text and "\t" not in text and len(text.split()) != 1:
        return Refusal("no parse", f"the parser says: {' '.join(text.split())[:200]}")
    try:
        trees = list(
            parse_trees(
                text,
                labels=True,
                constituents=options.constituents,
                nonprojective="lift",
                language=options.language,
                source="answer",
            )
        )
    except TreeError as error:
        return Refusal("malformed answer", str(error))
    if not trees:
        return Refusal("no parse", "the parser found none")
    if len(trees) > 1:
        return Refusal("malformed answer", f"expected one tree, found {len(trees)}")
    return trees[0]
