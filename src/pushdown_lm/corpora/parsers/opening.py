"""From the name of a parser to the parser."""

from __future__ import annotations

from collections.abc import Callable

from pushdown_lm.corpora.parsers.protocol import Parser, ParserError, ParserOptions


def _command(argument: str, options: ParserOptions) -> Parser:
    from pushdown_lm.corpora.parsers.command import CommandParser

    return CommandParser(argument, options)


def _pushdown(argument: str, options: ParserOptions) -> Parser:
    from pushdown_lm.corpora.parsers.pushdown import PushdownParser

    return PushdownParser(argument, options)


PARSERS: dict[str, Callable[[str, ParserOptions], Parser]] = {
    "command": _command,
    "pushdown": _pushdown,
}
"""What opens the parsers of each kind, given what follows the kind's name and a colon."""


def open_parser(name: str, options: ParserOptions | None = None) -> Parser:
    """The parser of a name such as `command:COMMAND` or `pushdown:MODEL`."""
    kind, _, argument = name.partition(":")
    if kind not in PARSERS:
        raise ParserError(f"expected a parser of {', '.join(PARSERS)}, got {name!r}")
    return PARSERS[kind](argument, options or ParserOptions())
