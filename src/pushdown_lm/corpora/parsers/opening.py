"""From the name of a parser to the parser."""

from __future__ import annotations

from collections.abc import Callable

from pushdown_lm.corpora.parsers.protocol import Parser, ParserError, ParserOptions


def _command(argument: str, options: ParserOptions) -> Parser:
    from pushdown_lm.corpora.parsers.command import CommandParser, split_command

    return CommandParser(split_command(argument), options)


def _link_grammar(argument: str, options: ParserOptions) -> Parser:
    from pushdown_lm.corpora.parsers.link_grammar import LinkGrammarParser

    return LinkGrammarParser(argument or "en", options)


def _spacy(argument: str, options: ParserOptions) -> Parser:
    from pushdown_lm.corpora.parsers.pipelines import SpacyParser

    return SpacyParser(argument, options)


def _stanza(argument: str, options: ParserOptions) -> Parser:
    from pushdown_lm.corpora.parsers.pipelines import StanzaParser

    return StanzaParser(argument, options)


def _pushdown(argument: str, options: ParserOptions) -> Parser:
    from pushdown_lm.corpora.parsers.pushdown import PushdownParser

    return PushdownParser(argument, options)


PARSERS: dict[str, Callable[[str, ParserOptions], Parser]] = {
    "command": _command,
    "pushdown": _pushdown,
    "link-grammar": _link_grammar,
    "spacy": _spacy,
    "stanza": _stanza,
}
"""What opens the parsers of each kind, given what follows the kind's name and a colon."""


def open_parser(name: str, options: ParserOptions | None = None) -> Parser:
    """The parser of a name such as `command:COMMAND` or `pushdown:MODEL`."""
    kind, _, argument = name.partition(":")
    if kind not in PARSERS:
        raise ParserError(f"expected a parser of {', '.join(PARSERS)}, got {name!r}")
    return PARSERS[kind](argument, options or ParserOptions())
