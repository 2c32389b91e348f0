"""The models of an explorer, their turns, and what they have read.

A model can search one sentence at a time, and a machine's cores are best used by one search after
another, so requests wait in one line. The searches run in one thread of their own, step by step:
between two steps the server answers other requests, notices that a page has moved on, and checks
the time.
"""

from __future__ import annotations

import asyncio
import hashlib
import time
import unicodedata
from collections import OrderedDict
from collections.abc import AsyncGenerator, AsyncIterator, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

from pushdown_lm.errors import PushdownError
from pushdown_lm.explorer.parsed_reading import ParsedReading
from pushdown_lm.explorer.plain_reading import PlainReading
from pushdown_lm.explorer.reading import Reading, Record
from pushdown_lm.search.loading import model_names
from pushdown_lm.search.pushdown_scorer import PushdownScorer

LOOPBACK = ("127.0.0.1", "localhost", "::1")
"""Names of this machine that no other can use."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a request may ask for."""

    characters: int = 1000
    """Of a sentence."""
    tokens: int = 80
    """Of a sentence; a model may have fewer positions."""
    beam: int = 300
    seconds: float = 30.0
    """That a search may take once it is its turn."""
    waiting: int = 64
    """Requests in the line; more are refused."""
    kept: int = 100
    """Sentences whose results are kept."""


class Line:
    """First come, first served."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self._tickets: list[asyncio.Event] = []

    def __len__(self) -> int:
        return len(self._tickets)

    def enter(self) -> asyncio.Event:
        """A ticket, which has to be given back with :meth:`leave`."""
        if len(self._tickets) >= self.capacity:
            raise PushdownError(
                f"{len(self._tickets)} sentences are waiting already; try again later"
            )
        self._tickets.append(asyncio.Event())
        return self._tickets[-1]

    async def wait(self, ticket: asyncio.Event) -> AsyncIterator[int]:
        """How many are ahead, whenever that changes, until it is the ticket's turn."""
        while ahead := self._tickets.index(ticket):
            yield ahead
            await ticket.wait()
            ticket.clear()

    def leave(self, ticket: asyncio.Event) -> None:
        self._tickets.remove(ticket)
        for other in self._tickets:
            other.set()


class Library:
    """Loaded models, and the sentences they have read.

    Args:
        threshold: of all searches, in nats.
    """

    def __init__(
        self,
        scorers: Sequence[PushdownScorer],
        *,
        threshold: float | None,
        limits: Limits | None = None,
    ) -> None:
        self.scorers = list(scorers)
        self.threshold = threshold
        self.limits = limits or Limits()
        self.line = Line(self.limits.waiting)
        self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix="search")
        self._kept: OrderedDict[str, Reading] = OrderedDict()

    def close(self) -> None:
        self._thread.shutdown(wait=True, cancel_futures=True)

    # -------------------------------------------------------------- requests

    def open(self, model: int, sentence: str, beam: int) -> tuple[str, Reading]:
        """The reading that a request asks for, with its number; an error if it asks too much."""
        if not 0 <= model < len(self.scorers):
            raise PushdownError(f"model: expected 0 to {len(self.scorers) - 1}, got {model}")
        if not 1 <= beam <= self.limits.beam:
            raise PushdownError(f"beam: expected 1 to {self.limits.beam}, got {beam}")
        sentence = clean(sentence, self.limits.characters)
        key = f"{model}\n{beam}\n{sentence}"
        number = hashlib.blake2b(key.encode(), digest_size=9).hexdigest()
        if number in self._kept:
            return number, self._kept[number]
        reading = self._reading(self.scorers[model], sentence, beam)
        if len(reading.tokens) > self.limits.tokens:
            raise PushdownError(
                f"expected a sentence of at most {self.limits.tokens} tokens, got "
                f"{len(reading.tokens)}"
            )
        return number, reading

    def _reading(self, scorer: PushdownScorer, sentence: str, beam: int) -> Reading:
        if scorer.parses:
            return ParsedReading(scorer, sentence, beam=beam, threshold=self.threshold)
        return PlainReading(scorer, sentence)

    def find(self, number: str) -> Reading:
        """A reading that is kept."""
        if number not in self._kept:
            raise KeyError(number)
        self._kept.move_to_end(number)
        return self._kept[number]

    async def read(self, number: str, reading: Reading) -> AsyncGenerator[Record, None]:
        """The records of a reading as they become known; closing the iterator ends the search."""
        if reading.is_whole:
            for record in reading.records():
                yield record
            return
        ticket = self.line.enter()
        records = reading.read()
        try:
            async for ahead in self.line.wait(ticket):
                yield {"kind": "waiting", "ahead": ahead}
            began = time.monotonic()
            while (found := await self._next(records)) is not None:
                if reading.is_whole:  # pictures are asked for as soon as its last record is there
                    self._keep(number, reading)
                yield found
                seconds = time.monotonic() - began
                if seconds > self.limits.seconds and not reading.is_whole:
                    raise PushdownError(
                        f"stopped after {seconds:.0f} seconds, at token {len(reading.steps)} of "
                        f"{len(reading.tokens)}; a smaller beam is faster"
                    )
        finally:
            self._thread.submit(records.close)  # after the step that may be running
            self.line.leave(ticket)

    async def _next(self, records: Iterator[Record]) -> Record | None:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self._thread, next, records, None)

    def _keep(self, number: str, reading: Reading) -> None:
        self._kept[number] = reading
        while len(self._kept) > self.limits.kept:
            self._kept.popitem(last=False)

    def describe(self) -> list[dict[str, Any]]:
        """The models with all that decides their answers; `name` is short."""
        return [
            {**scorer.describe(), "name": name, "parses": scorer.parses}
            for name, scorer in zip(self.names, self.scorers, strict=True)
        ]

    @property
    def names(self) -> list[str]:
        """Short names of the models, all different."""
        return list(model_names(scorer.name for scorer in self.scorers))


def clean(sentence: str, most: int) -> str:
    """The sentence with single spaces; an error for one that is empty, too long, or no text.

    >>> clean(" the\\tdog \\n barks", 100)
    'the dog barks'
    """
    sentence = " ".join(sentence.split())
    if not sentence:
        raise PushdownError("expected a sentence, got none")
    if len(sentence) > most:
        raise PushdownError(
            f"expected a sentence of at most {most} characters, got {len(sentence)}"
        )
    for at, character in enumerate(sentence, start=1):
        if unicodedata.category(character) in ("Cc", "Cs", "Cn", "Co"):
            raise PushdownError(
                f"expected text, found the character U+{ord(character):04X} at place {at}"
            )
    return sentence
