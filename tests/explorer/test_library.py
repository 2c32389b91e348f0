"""Turns, limits, and what is kept."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushdown_lm.errors import PushdownError
from pushdown_lm.explorer.library import Library, Limits, Line, clean
from pushdown_lm.explorer.reading import Record
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from tests.explorer.conftest import LIMITS

SENTENCE = "the dog has seen that she is here, and the dog barks."


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(asyncio.wait_for(work, 60))


async def read(library: Library, sentence: str, beam: int = 5) -> list[Record]:
    number, reading = library.open(0, sentence, beam)
    return [record async for record in library.read(number, reading)]


def kinds(records: list[Record]) -> list[str]:
    return [record["kind"] for record in records]


@given(st.text())
def test_clean_text_is_text_or_refused(text: str) -> None:
    try:
        cleaned = clean(text, 50)
    except PushdownError:
        return
    assert 0 < len(cleaned) <= 50
    assert cleaned.isprintable() or any(ord(character) > 127 for character in cleaned)


@pytest.mark.parametrize(
    ("sentence", "message"),
    [
        ("", "expected a sentence, got none"),
        (" \n\t ", "expected a sentence, got none"),
        ("the \x07 dog", r"found the character U\+0007 at place 5"),
        ("the \ud800 dog", r"found the character U\+D800 at place 5"),
        ("dog " * 10_000, "at most 1000 characters, got 39999"),
    ],
)
def test_bad_sentences_are_refused(sentence: str, message: str) -> None:
    with pytest.raises(PushdownError, match=message):
        clean(sentence, 1000)


def test_first_come_first_served() -> None:
    async def work() -> None:
        line = Line(capacity=3)
        order: list[str] = []

        async def visit(name: str) -> None:
            ticket = line.enter()
            order.extend([f"{name}{ahead}" async for ahead in line.wait(ticket)])
            order.append(name)
            await asyncio.sleep(0)
            line.leave(ticket)

        await asyncio.gather(*map(visit, "abc"))
        assert order == ["a", "b1", "b", "c2", "c1", "c"]
        assert len(line) == 0
        tickets = [line.enter() for _ in range(3)]
        with pytest.raises(PushdownError, match="3 sentences are waiting already"):
            line.enter()
        line.leave(tickets[1])
        line.enter()

    run(work())


def test_requests_take_turns(library: Library) -> None:
    async def work() -> list[list[Record]]:
        sentences = ["the dog barks.", "she is here.", "the dog is here."]
        return await asyncio.gather(*(read(library, sentence) for sentence in sentences))

    answers = run(work())
    assert all(records[-1]["kind"] == "result" for records in answers)
    assert {"kind": "waiting", "ahead": 2} in answers[2]


def test_what_was_read_is_told_again_at_once(library: Library) -> None:
    first = [record for record in run(read(library, SENTENCE)) if record["kind"] != "waiting"]
    assert run(read(library, f"  {SENTENCE} ")) == first


def test_a_reading_is_kept_when_its_last_record_is_told(library: Library) -> None:
    async def work() -> None:
        number, reading = library.open(0, "the dog", 5)
        async for record in library.read(number, reading):
            if record["kind"] == "result":
                assert library.find(number) is reading
                return
        raise AssertionError("no result")

    asyncio.run(work())


def test_a_search_that_is_left_makes_room(library: Library) -> None:
    async def work() -> None:
        number, reading = library.open(0, SENTENCE, 100)
        records = library.read(number, reading)
        seen = [await anext(records) for _ in range(3)]
        assert kinds(seen) == ["sentence", "step", "step"]
        waiting = asyncio.create_task(read(library, "the dog is here and barks."))
        await asyncio.sleep(0)
        await records.aclose()
        assert (await waiting)[-1]["kind"] == "result"
        assert not reading.is_whole
        assert len(library.line) == 0
        with pytest.raises(KeyError):
            library.find(number)

    run(work())


def test_searches_have_a_limit_of_time(bpe: PushdownScorer) -> None:
    limits = replace(LIMITS, seconds=0.0)
    library = Library([bpe], threshold=None, limits=limits)
    with pytest.raises(PushdownError, match=r"stopped after 0 seconds, at token \d+ of \d+"):
        run(read(library, SENTENCE))
    assert len(library.line) == 0
    library.close()


def test_only_the_last_are_kept(bpe: PushdownScorer) -> None:
    library = Library([bpe], threshold=None, limits=Limits(kept=1))
    numbers = [library.open(0, sentence, 5)[0] for sentence in ("the dog", "she")]
    run(read(library, "the dog"))
    assert library.find(numbers[0]).is_whole
    run(read(library, "she"))
    assert library.find(numbers[1]).is_whole
    with pytest.raises(KeyError):
        library.find(numbers[0])
    library.close()


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        ((2, "the dog", 5), "model: expected 0 to 1, got 2"),
        ((0, "the dog", 0), "beam: expected 1 to 100, got 0"),
        ((0, "the dog", 101), "beam: expected 1 to 100, got 101"),
        ((0, "a b c d e f g h i j k l m n o p q r s t", 5), "at most 36 tokens, got"),
        ((1, "the cat", 5), "expected words of the vocabulary, found 'cat'"),
        ((1, "the <s>", 5), "expected text without special tokens"),
    ],
)
def test_requests_that_ask_too_much(
    library: Library, request_: tuple[int, str, int], message: str
) -> None:
    with pytest.raises(PushdownError, match=message):
        library.open(*request_)
