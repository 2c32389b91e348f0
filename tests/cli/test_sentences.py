"""Which argument is the model, and which are the sentences."""

from __future__ import annotations

from pathlib import Path

import pytest

from pushdown_lm.cli.sentences import model_and_sentences
from pushdown_lm.errors import PushdownError
from pushdown_lm.search.packaged import DEFAULT_MODEL

TEXT = "The horse raced past the barn fell ."


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "model").mkdir()
    (tmp_path / "sentences.txt").write_text("A file .\n")
    (tmp_path / "two words.txt").write_text("A file with a space in its name .\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    ("arguments", "model", "source"),
    [
        ([], DEFAULT_MODEL, "-"),
        (["model"], "model", "-"),
        (["-"], DEFAULT_MODEL, "-"),
        (["sentences.txt"], DEFAULT_MODEL, "sentences.txt"),
        ([TEXT], DEFAULT_MODEL, TEXT),
        (["model", TEXT], "model", TEXT),
        (["nowhere", "-"], "nowhere", "-"),  # loading tells what is wrong
    ],
)
@pytest.mark.usefixtures("folder")
def test_one_argument_is_either(arguments: list[str], model: str, source: str) -> None:
    found, sentences = model_and_sentences(arguments)
    assert (found, sentences.name) == (model, source)


@pytest.mark.parametrize(
    ("argument", "content"),
    [
        (TEXT, TEXT),
        ("sentences.txt", "A file .\n"),
        ("two words.txt", "A file with a space in its name .\n"),
        ("word " * 2_000, "word " * 2_000),
    ],
)
@pytest.mark.usefixtures("folder")
def test_files_and_texts(argument: str, content: str) -> None:
    _, sentences = model_and_sentences([argument])
    assert sentences.read()[1].decode() == content


def test_what_is_neither(tmp_path: Path) -> None:
    with pytest.raises(
        PushdownError, match=r"sentence\.txt: no such file, model folder or installed"
    ):
        model_and_sentences([str(tmp_path / "sentence.txt")])
    with pytest.raises(PushdownError, match="got 3 arguments; put a text in quotes"):
        model_and_sentences(["the", "dog", "sleeps"])
