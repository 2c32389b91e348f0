"""WikiTrees at a tiny size, from text in WikiText's layout."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from pushdown_lm.corpora.wikitrees import build_wikitrees
from pushdown_lm.data.dataset import load_data
from pushdown_lm.errors import PushdownError
from tests.command_line import run_pushdown
from tests.corpora.parsers.test_command import TOY
from tests.corpora.test_build import OPTIONS, words_of, write

ARTICLE = " = Dogs = \n \n The well @-@ known dog barks . It sleeps .\n" * 20
LONG = f" {'Very ' * 60}long .\n"


def test_windows_of_parsed_articles(tmp_path: Path) -> None:
    train, valid = write(tmp_path, train=ARTICLE + LONG, valid=ARTICLE)
    done = run_pushdown(
        *("corpus", "wikitrees", "--parser", TOY, "--persistent", "--out", tmp_path / "out"),
        *("--train", train, "--valid", valid, "--tokenizer", "word", "--window", 40),
    )
    assert done.exit_code == 0, done.error
    assert words_of(tmp_path / "out" / "train")[:2] == [
        ["The", "well-known", "dog", "barks", "."],
        ["It", "sleeps", "."],
    ]
    card = load_data(tmp_path / "out" / "data").card
    assert card["window"] == 40
    assert card["splits"]["train"]["sentences"] == card["splits"]["valid"]["sentences"] == 40
    assert sum(card["splits"]["train"]["skipped"].values()) == 1
    assert card["splits"]["train"]["examples"] < 10


def test_training_text_is_needed(tmp_path: Path) -> None:
    with pytest.raises(PushdownError, match="expected train"):
        build_wikitrees(tmp_path, replace(OPTIONS), texts={"valid": "x.txt"})
    arguments = ("corpus", "wikitrees", "--parser", TOY, "--out", tmp_path, "--valid", "x.txt")
    assert "expected them with --train" in run_pushdown(*arguments).error
