"""Dyck strings, their parses and test prefixes."""

from __future__ import annotations

from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushdown_lm.cli.app import main
from pushdown_lm.corpora.dyck import (
    FURTHER_ROWS,
    PAPER_ROWS,
    DeepNesting,
    Dyck,
    DyckString,
    LongRange,
    Row,
    build_dyck_data,
    symbol_ids,
)
from pushdown_lm.data.encoding import DataError
from pushdown_lm.trees import Tree
from pushdown_lm.trees.oracle import algorithm1, attachments_from_tree, stack_tape


def drawn(language: Dyck, count: int, seed: int = 0) -> list[DyckString]:
    return list(islice(language.strings(seed), count))


def nesting(string: DyckString, num_types: int) -> np.ndarray:
    """How many brackets are open after each symbol."""
    return np.cumsum(np.where(string.symbols < num_types, 1, -1))


def is_nest(symbols: list[int]) -> bool:
    """Whether opening brackets are followed by their closing brackets in reverse."""
    half = len(symbols) // 2
    return symbols[half:] == [symbol + 20 for symbol in reversed(symbols[:half])]


def pairs_tree(string: DyckString) -> Tree:
    """The n-ary tree that has a constituent for every pair of brackets."""
    closing = [
        (int(opening) - 1, end)
        for end, opening in enumerate(string.attachments, start=1)
        if opening < end
    ]
    return Tree([str(symbol) for symbol in string.symbols], closing)


def test_the_drawn_example() -> None:
    language = Dyck(num_types=3)
    symbols = [language.words.index(word) for word in ("(1", "(2", "2)", "(3", "3)", "1)")]
    attachments = language.attachments(symbols)
    assert attachments.tolist() == [1, 2, 2, 4, 4, 1]
    rows = algorithm1([0, *attachments])
    assert rows[5] == [0, 0, 1, 1, 1, 1]
    assert rows[6] == [0, 1, 3, 3, 4, 4, 3]


languages = st.builds(
    Dyck,
    num_types=st.integers(1, 4),
    max_nesting=st.integers(1, 5),
    min_length=st.integers(2, 6),
    max_length=st.integers(6, 40),
)


@given(languages, st.integers(0, 1000))
def test_strings_are_of_the_language_with_their_parse(language: Dyck, seed: int) -> None:
    for string in drawn(language, 5, seed):
        assert language.min_length <= len(string.symbols) <= language.max_length
        level = nesting(string, language.num_types)
        assert level.min() == level[-1] == 0
        assert level.max() <= language.max_nesting
        assert language.attachments(string.symbols).tolist() == string.attachments.tolist()
        attachments = [0, *string.attachments.tolist(), 0]
        assert attachments == attachments_from_tree(pairs_tree(string))
        tape = stack_tape(np.array(attachments))
        for position, row in enumerate(algorithm1(attachments)):
            assert tape[position, : position + 1].tolist() == row


def test_the_first_strings_do_not_depend_on_how_many_are_drawn() -> None:
    few, many = drawn(Dyck(), 3, seed=5), drawn(Dyck(), 5000, seed=5)
    for one, other in zip(few, many, strict=False):
        assert one.symbols.tolist() == other.symbols.tolist()
    assert few[0].symbols.tolist() != drawn(Dyck(), 1, seed=6)[0].symbols.tolist()


def test_statistics_of_the_paper_s_language() -> None:
    strings = drawn(Dyck(), 20_000)
    lengths = np.array([len(string.symbols) for string in strings])
    assert lengths.mean() == pytest.approx(48.5, abs=2)
    assert 14 <= np.median(lengths) <= 16
    assert np.percentile(lengths, 90) == pytest.approx(144, abs=10)
    assert lengths.min() == 4
    assert 490 <= lengths.max() <= 500
    types = np.bincount(np.concatenate([s.symbols for s in strings[:5000]]), minlength=40)
    assert types[:20].sum() == types[20:].sum()
    assert types.min() > 0.9 * types.mean()


def test_probabilities_of_opening_and_ending() -> None:
    opened = free = ended = empty = 0
    for string in drawn(Dyck(max_length=3000), 4000):
        level, opens = nesting(string, 20), string.symbols < 20
        both = (level[:-1] > 0) & (level[:-1] < 10)
        opened, free = opened + int((opens[1:] & both).sum()), free + int(both.sum())
        empty += int((level[3:] == 0).sum())
        ended += 1
    assert opened / free == pytest.approx(0.5, abs=0.01)
    assert ended / empty == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("row", [*PAPER_ROWS, *FURTHER_ROWS], ids=lambda row: row.name)
def test_prefixes_keep_the_promise_of_their_row(row: Row) -> None:
    language = Dyck(max_nesting=1000)
    prefixes = row.prefixes(20, [3, 1])
    assert len(prefixes) == 20
    for symbols, attachments, answer, difficulty in prefixes:
        assert language.attachments(symbols).tolist() == attachments.tolist()
        closed = language.attachments([*symbols.tolist(), answer])  # an error if it does not fit
        deepest = nesting(DyckString(symbols, attachments), 20).max()
        if isinstance(row, LongRange):
            assert len(symbols) + 1 - closed[-1] == difficulty >= row.min_distance
            assert len(symbols) < row.max_length
            assert deepest <= row.max_nesting
        else:
            assert row.min_nesting <= difficulty <= row.max_nesting
            assert difficulty <= deepest <= difficulty + 10
            assert nesting(DyckString(symbols, attachments), 20)[-1] == 1
    again = row.prefixes(20, [3, 1])
    assert [p.symbols.tolist() for p in again] == [p.symbols.tolist() for p in prefixes]
    assert row.prefixes(1, [4, 1])[0].symbols.tolist() != prefixes[0].symbols.tolist()


def test_a_string_is_inserted_anywhere_into_the_nest() -> None:
    found = set()
    asked = DeepNesting(3, 3).prefixes(200, 0)
    for prefix, inserted in zip(asked, Dyck().strings(0), strict=False):
        symbols, string = prefix.symbols.tolist(), inserted.symbols.tolist()
        places = [
            place
            for place in range(6)
            if symbols[place : place + len(string)] == string
            and is_nest([*symbols[:place], *symbols[place + len(string) :], prefix.answer])
        ]
        assert places
        found.update(places)
    assert found == set(range(6))


@pytest.mark.parametrize(
    ("symbols", "message"),
    [
        ([0, 4], r"symbol 2: expected 1\) or an opening bracket, got 2\)"),
        ([0, 3, 3], r"symbol 3: expected \( or an opening bracket, got 1\)"),
    ],
)
def test_brackets_that_do_not_match(symbols: list[int], message: str) -> None:
    with pytest.raises(DataError, match=message):
        Dyck(num_types=3).attachments(symbols)


@pytest.mark.parametrize("fields", [{"num_types": 0}, {"max_nesting": 0}, {"min_length": 501}])
def test_languages_that_cannot_be(fields: dict[str, int]) -> None:
    with pytest.raises(DataError, match="expected"):
        Dyck(**fields)


def test_dataset(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data = build_dyck_data(tmp_path / "data", train=50, valid=7, seed=3)
    data.verify()
    assert (len(data.train), len(data.valid or [])) == (50, 7)
    ids = symbol_ids(data.tokenizer, Dyck())
    assert len(set(ids.tolist())) == 40
    for example, string in zip(data.train, Dyck().strings([3, 0]), strict=False):
        bos, *tokens, eos = example["input_ids"]
        assert (bos, eos) == (data.tokenizer.bos_token_id, data.tokenizer.eos_token_id)
        assert tokens == ids[string.symbols].tolist()
        assert example["attachments"] == [0, *string.attachments.tolist(), 0]
    deepest = max(np.max(algorithm1(e["attachments"])[-1]) for e in data.train)
    assert data.card["splits"]["train"]["max_depth"] == deepest

    again = build_dyck_data(tmp_path / "data", train=50, valid=7, seed=3)
    assert again.fingerprint == data.fingerprint
    with pytest.raises(DataError, match="found another dataset"):
        build_dyck_data(tmp_path / "data", train=51, valid=7, seed=3)

    monkeypatch.setattr("sys.argv", ["pushdown", "data", "show", str(data.folder), "--verify"])
    with pytest.raises(SystemExit) as exit_:
        main()
    assert not exit_.value.code
    assert "word tokenizer of 44 entries" in capsys.readouterr().out
