"""Raw text to sentences with their places, whatever the units."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushdown_lm.corpora import raw_text
from pushdown_lm.corpora.raw_text import (
    Layout,
    Rejection,
    Sentence,
    Source,
    dataset_texts,
    detect_layout,
    read_sentences,
)
from pushdown_lm.errors import PushdownError


def sentences(path: Path, layout: Layout, unit_bytes: int = 1 << 16) -> list[tuple[int, str]]:
    source = Source("text", path, layout)
    items = [
        item for unit in source.units(unit_bytes) for item in read_sentences(unit, "parser", "en")
    ]
    return [(item.line, item.text) for item in items]


def test_lines_and_paragraphs(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("\ufeffOne is\r\nhere. Two is\nthere.\n\n\nThree. Four\n", encoding="utf-8")
    assert sentences(path, "paragraphs") == [
        (1, "One is here."),
        (2, "Two is there."),
        (6, "Three."),
        (6, "Four"),
    ]
    assert sentences(path, "lines") == [
        (1, "One is"),
        (2, "here."),
        (2, "Two is"),
        (3, "there."),
        (6, "Three."),
        (6, "Four"),
    ]
    assert sentences(path, "sentences")[1] == (2, "here. Two is")


def test_wikitext(tmp_path: Path) -> None:
    path = tmp_path / "wiki"
    path.write_text(
        ' = Title = \n \n = = Section = = \n The 1 @,@ 000 half @-@ open " doors " . They fell .\n'
    )
    assert sentences(path, "wikitext") == [
        (4, 'The 1,000 half-open " doors " .'),
        (4, "They fell ."),
    ]


@given(
    text=st.text(st.sampled_from("aB. \n\né!"), max_size=300),
    layout=st.sampled_from(["lines", "paragraphs", "sentences"]),
)
def test_units_do_not_change_the_sentences(
    tmp_path_factory: pytest.TempPathFactory, text: str, layout: Layout
) -> None:
    """Unless a paragraph is longer than four units."""
    path = tmp_path_factory.mktemp("text") / "text"
    path.write_text(text, encoding="utf-8", newline="")
    whole = sentences(path, layout)
    assert sentences(path, layout, unit_bytes=100) == whole
    if layout != "paragraphs":
        assert sentences(path, layout, unit_bytes=1) == whole


@given(st.binary(max_size=200))
def test_any_bytes_are_read(tmp_path_factory: pytest.TempPathFactory, content: bytes) -> None:
    path = tmp_path_factory.mktemp("bytes") / "text"
    path.write_bytes(content)
    source = Source("text", path, "lines")
    for unit in source.units(50):
        for item in read_sentences(unit, "penn", "en"):
            assert isinstance(item, Rejection) or (item.words and item.text)
    assert source.lines == content.count(b"\n")


@pytest.mark.parametrize("text", ["word " * 40, "語" * 60])
def test_long_lines_are_cut(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr(raw_text, "LONGEST_PIECE", 32)
    path = tmp_path / "text"
    path.write_text(text + "\nlast line\n", encoding="utf-8")
    found = sentences(path, "lines", unit_bytes=32)
    assert found[-1] == (2, "last line")
    assert {line for line, _ in found[:-1]} == {1}
    assert "".join(part for _, part in found[:-1]).replace(" ", "") == text.replace(" ", "")


def test_layouts_are_told_apart(tmp_path: Path) -> None:
    wrapped = (
        "It was a long and quiet\nnight in the small town\nby the sea, and nothing\nmoved.\n\n"
    )
    cases: dict[str, Layout] = {
        wrapped * 5: "paragraphs",
        "A paragraph of several sentences. It is long.\n\nAnother one is here.\n\n" * 5: "lines",
        "No blank lines\nare in this\nlittle file\nat all\n": "lines",
        "": "lines",
    }
    for text, layout in cases.items():
        path = tmp_path / "text"
        path.write_text(text)
        assert detect_layout(path) == layout


def test_words() -> None:
    assert raw_text.cut_words('He said "no".', "penn") == ("He", "said", "``", "no", "''", ".")
    assert raw_text.cut_words("a b.", "space") == ("a", "b.")
    assert Sentence(1, "a b", ()).words == raw_text.cut_words("a b", "parser")


def test_datasets_are_streamed(tmp_path: Path) -> None:
    """A folder of text files stands for a repository on the Hub."""
    (tmp_path / "train.txt").write_text("One.\n\nTwo.\n")
    texts = list(dataset_texts(f"hf:{tmp_path}:default:train"))
    assert "".join(texts) == "One.\n\nTwo.\n"
    with pytest.raises(PushdownError, match="cannot be loaded"):
        list(dataset_texts(f"hf:{tmp_path}:default:nosuchsplit"))
