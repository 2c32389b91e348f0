"""The errors that bad input raises."""

from __future__ import annotations

import signal


class PushdownError(ValueError):
    """Bad input: the message says what was expected, what came, and where.

    The command line prints it without a traceback and exits with code 2.
    """


class Interrupted(Exception):
    """A signal ended training early, at a step whose checkpoint is saved.

    Args:
        signal_number: of SIGINT or SIGTERM.
        message: what is saved, and how to continue.
    """

    def __init__(self, signal_number: int, message: str) -> None:
        super().__init__(f"{signal.Signals(signal_number).name}: {message}")
        self.exit_code = 128 + signal_number


class ConfigError(PushdownError):
    """A configuration that makes no model; the message names the field."""


class TreeError(PushdownError):
    """A tree that cannot be read: `corpus.trees:12:34: expected a word or '(', found ')'`.

    Lines and columns count from 1. `reason` is a short name of the kind of error, by which
    skipped trees are counted.
    """

    def __init__(
        self, file: str, line: int, column: int, expected: str, found: str, *, reason: str
    ) -> None:
        super().__init__(f"{file}:{line}:{column}: expected {expected}, found {found}")
        self.file = file
        self.line = line
        self.column = column
        self.expected = expected
        self.found = found
        self.reason = reason

    @classmethod
    def at(
        cls,
        file: str,
        text: str,
        offset: int,
        expected: str,
        found: str,
        *,
        reason: str,
        first_line: int = 1,
    ) -> TreeError:
        """The error at an offset of a text that starts at `first_line` of its file."""
        line = first_line + text.count("\n", 0, offset)
        column = offset - text.rfind("\n", 0, offset)
        return cls(file, line, column, expected, found, reason=reason)


def first_line(error: BaseException) -> str:
    """What an error of another library says, in one line.

    >>> first_line(OSError("no route\\nto the host")), first_line(KeyError())
    ('no route', 'KeyError')
    """
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
