"""Any program as a parser: sentences in, one per line; brackets or CoNLL-U out.

Words are separated by spaces. The program gives one tree for each line, in order: brackets, over
several lines if it likes, or CoNLL-U with a blank line after each sentence; a line of other text
stands for a sentence that it could not parse. By default it is started anew for every unit, and may
wait for the end of its input before it answers. A *persistent* program answers each sentence at
once, and stays for the next unit.

A program that dies, says nothing for too long, or gives another number of answers is started again
on what it has not answered: first on the next sentence alone, then on halves of the rest, until the
sentences at fault are found.
"""

from __future__ import annotations

import contextlib
import os
import queue
import re
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any

from pushdown_lm.corpora.parsers.protocol import (
    Answer,
    ParserError,
    ParserOptions,
    Refusal,
    read_answer,
)
from pushdown_lm.corpora.raw_text import Sentence
from pushdown_lm.trees import Tree

FAILURES_IN_A_ROW = 8
"""Sentences at fault, one after the other, after which the program itself is taken to be broken."""
_QUOTES = {"``": '"', "''": '"', "`": "'", "‘": "'", "’": "'", "“": '"', "”": '"'}


def split_command(command: str) -> list[str]:
    """The arguments of a command, as a shell would see them."""
    try:
        arguments = shlex.split(command)
    except ValueError as error:
        raise ParserError(f"command: {error}: {command!r}") from None
    if not arguments:
        raise ParserError("command: expected command:COMMAND, got no command")
    if shutil.which(arguments[0]) is None:
        raise ParserError(f"command: no such program: {arguments[0]}")
    return arguments


class CommandParser:
    """Runs a program; what it is asked and how its output is read can be overridden."""

    def __init__(self, arguments: Sequence[str], options: ParserOptions) -> None:
        self.arguments, self.options = list(arguments), options
        self._running: Conversation | None = None
        self._failures = 0

    def describe(self) -> dict[str, Any]:
        return {"command": self.arguments, "constituents": self.options.constituents}

    def question(self, sentence: Sentence) -> str:
        """The line, or lines, that a sentence is sent as."""
        return " ".join(sentence.words) or sentence.text

    def cut(self, lines: Iterator[str]) -> Iterator[str]:
        """The program's output, cut into one text for each sentence."""
        return cut_answers(lines)

    def read(self, sentence: Sentence, answer: str) -> Answer:
        """The tree in such a text."""
        return read_answer(answer, self.options)

    def close(self) -> None:
        if self._running is not None:
            self._running.kill()
            self._running = None

    def parse(self, sentences: Sequence[Sentence]) -> Iterator[Answer]:
        pending = list(sentences)
        while pending:
            answers, problem = self._run(pending)
            if not problem:
                yield from answers
                return
            trusted = _same_words(pending, answers)
            yield from answers[:trusted]
            pending = pending[trusted:]
            if trusted:
                self._failures = 0
            if not pending:
                return
            if len(pending) > 1:
                first, problem = self._run(pending[:1])
                if problem:
                    yield self._refusal(problem)
                else:
                    self._failures = 0
                    yield from first
                    middle = len(pending) // 2
                    yield from self.parse(pending[1 : middle + 1])
                    yield from self.parse(pending[middle + 1 :])
                    return
            else:
                yield self._refusal(problem)
            pending = pending[1:]

    def _refusal(self, problem: Refusal) -> Refusal:
        self._failures += 1
        if self._failures == FAILURES_IN_A_ROW:
            raise ParserError(
                f"command: {self.arguments[0]}: {FAILURES_IN_A_ROW} sentences in a row without a "
                f"parse: {problem.reason}: {problem.detail}"
            )
        return problem

    def _run(self, sentences: Sequence[Sentence]) -> tuple[list[Answer], Refusal | None]:
        """The answers to sentences, and what went wrong if they are not all there."""
        running = self._running
        if running is None or not running.is_ready():
            self.close()
            running = Conversation(self.arguments, self.cut)
        self._running = running if self.options.persistent else None
        questions = [self.question(sentence) for sentence in sentences]
        texts, problem = running.ask(questions, self.options.timeout, stays=self.options.persistent)
        if problem or not self.options.persistent:
            running.kill()
            self._running = None
        answers = [
            self.read(sentence, text) for sentence, text in zip(sentences, texts, strict=False)
        ]
        if problem is None and len(texts) != len(sentences):
            detail = f"{len(texts)} answers to {len(sentences)} sentences"
            problem = Refusal("wrong number of answers", detail)
        return answers, problem


def _same_words(sentences: Sequence[Sentence], answers: Sequence[Answer]) -> int:
    """How many of the first answers surely belong to the sentences: those with their very words."""
    count = 0
    for sentence, answer in zip(sentences, answers, strict=False):
        words = sentence.words or tuple(sentence.text.split())
        if not isinstance(answer, Tree) or _plain(answer.words) != _plain(words):
            break
        count += 1
    return count


def _plain(words: Sequence[str]) -> list[str]:
    return [_QUOTES.get(word, word) for word in words]


class Conversation:
    """A running program, its answers as they come, and the end of what it writes to stderr."""

    def __init__(
        self, arguments: Sequence[str], cut: Callable[[Iterator[str]], Iterator[str]]
    ) -> None:
        self.errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115
        self.process = subprocess.Popen(
            arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self.errors,
            start_new_session=True,
        )
        self._answers: queue.Queue[str | None] = queue.Queue()
        self._cut = cut
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        lines = (line.decode(errors="replace") for line in self.process.stdout)
        with contextlib.suppress(ValueError):  # closed by kill
            for answer in self._cut(lines):
                self._answers.put(answer)
        self._answers.put(None)

    def _write(self, questions: Sequence[str], stays: bool) -> None:
        assert self.process.stdin is not None
        with contextlib.suppress(OSError, ValueError):  # it died, or was killed
            self.process.stdin.write("".join(f"{text}\n" for text in questions).encode())
            self.process.stdin.flush()
            if not stays:
                self.process.stdin.close()

    def ask(
        self, questions: Sequence[str], timeout: float, *, stays: bool
    ) -> tuple[list[str], Refusal | None]:
        """Its answers to these questions, and what went wrong."""
        threading.Thread(target=self._write, args=(questions, stays), daemon=True).start()
        answers: list[str] = []
        while not (stays and len(answers) == len(questions)):
            try:
                answer = self._answers.get(timeout=timeout)
            except queue.Empty:
                return answers, Refusal("parser hung", f"no answer for {timeout:g} seconds")
            if answer is None:
                code = self._exit_code()
                if len(answers) < len(questions) and (code or stays):
                    return answers, Refusal("parser died", self._last_words(code))
                break
            answers.append(answer)
        return answers, None

    def is_ready(self) -> bool:
        """Whether it still runs and owes nothing."""
        return self.process.poll() is None and self._answers.empty()

    def _exit_code(self) -> int:
        try:
            return self.process.wait(timeout=5)
        except subprocess.TimeoutExpired:
            return 0

    def _last_words(self, code: int) -> str:
        how = f"exit code {code}" if code >= 0 else f"signal {signal.Signals(-code).name}"
        size = self.errors.seek(0, os.SEEK_END)
        self.errors.seek(max(0, size - 400))
        said = " ".join(self.errors.read().decode(errors="replace").split())
        return f"{how}: {said[-300:]}" if said else how

    def kill(self) -> None:
        """End the program and all that it has started."""
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()
        self._reader.join(timeout=1)
        for pipe in (self.process.stdin, self.process.stdout, self.errors):
            with contextlib.suppress(OSError):
                pipe and pipe.close()


_CONLLU = re.compile(r"#|\d+(?:[-.]\d+)?\t")


def cut_answers(lines: Iterator[str]) -> Iterator[str]:
    """The answers in a program's output: brackets up to their end, or blocks of CoNLL-U."""
    answer: list[str] = []
    depth = 0
    is_conllu = False
    for line in lines:
        if not line.strip():
            if answer and is_conllu:
                yield "".join(answer)
                answer = []
            continue
        if answer and not is_conllu and line.startswith("("):  # a bracket was not closed
            yield "".join(answer)
            answer, depth = [], 0
        if not answer:
            is_conllu = _CONLLU.match(line) is not None
        answer.append(line)
        depth += line.count("(") - line.count(")")
        if not is_conllu and depth <= 0:
            yield "".join(answer)
            answer, depth = [], 0
        elif is_conllu:
            depth = 0
    if answer:
        yield "".join(answer)
