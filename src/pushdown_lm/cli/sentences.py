"""What `pushdown score`, `surprisal` and `parse` are asked about: a model and sentences.

Both may be left out, so one argument is either of them:

    pushdown parse MODEL SENTENCES
    pushdown parse SENTENCES            by the model in the box
    pushdown parse MODEL                sentences from standard input
    pushdown parse                      both

A model is a folder or the name of an installed model. Sentences are a file, `-` for standard input,
or a text of several words.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import typer

from pushdown_lm.errors import PushdownError

STANDARD_INPUT = "-"

ModelAndSentences = Annotated[
    list[str] | None,
    typer.Argument(
        metavar="[MODEL] [SENTENCES]",
        help="MODEL: the folder of a trained model, or the name of an installed one; by default "
        "english. SENTENCES: a file with one per line, a text in quotes, or `-`, standard input, "
        "which is the default.",
        show_default=False,
    ),
]


@dataclass(frozen=True)
class Source:
    """Where sentences come from."""

    name: str
    """A file, ``-``, or the text itself."""

    @property
    def is_text(self) -> bool:
        has_several_words = len(self.name.split()) > 1
        return has_several_words and not _exists(self.name)

    def read(self) -> tuple[str, bytes]:
        """The name by which messages call the source, and what it holds."""
        if self.name == STANDARD_INPUT:
            return "<stdin>", sys.stdin.buffer.read()
        if self.is_text:
            return "<text>", self.name.encode()
        return self.name, Path(self.name).read_bytes()


def model_and_sentences(arguments: list[str] | None) -> tuple[str, Source]:
    """The model and the sentences that the arguments of a command name."""
    from pushdown_lm.search.packaged import DEFAULT_MODEL, installed_models

    given = arguments or []
    if len(given) > 2:
        raise PushdownError(
            f"expected a model and sentences, got {len(given)} arguments; put a text in quotes"
        )
    if len(given) == 2:
        return given[0], Source(given[1])
    if not given:
        return DEFAULT_MODEL, Source(STANDARD_INPUT)
    source = Source(given[0])
    if given[0] in installed_models() or (_exists(given[0]) and Path(given[0]).is_dir()):
        return given[0], Source(STANDARD_INPUT)
    if not source.is_text and source.name != STANDARD_INPUT and not _exists(source.name):
        raise PushdownError(
            f"{source.name}: no such file, model folder or installed model; a text of one word is "
            "read from standard input"
        )
    return DEFAULT_MODEL, source


def _exists(name: str) -> bool:
    try:
        return Path(name).exists()
    except (OSError, ValueError):  # too long for a path, or with a NUL byte
        return False
