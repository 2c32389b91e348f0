"""Link Grammar, really run where it is installed."""

from __future__ import annotations

import shutil
from contextlib import closing

import pytest

from pushdown_lm.corpora.parsers import ParserError, Refusal, open_parser
from pushdown_lm.corpora.parsers.link_grammar import place_constituents, words_below
from pushdown_lm.corpora.raw_text import Sentence, cut_words
from pushdown_lm.trees import Tree, to_brackets

needs_link_parser = pytest.mark.skipif(
    shutil.which("link-parser") is None, reason="link-parser is not installed"
)


@needs_link_parser
def test_sentences_of_every_kind() -> None:
    texts = [
        "The dog that chased the cat was happy.",
        "the the of of",
        "! % not a command",
        "She can't see John's dog (a small one).",
    ]
    sentences = [Sentence(1, text, cut_words(text, "penn")) for text in texts]
    with closing(open_parser("link-grammar")) as parser:
        answers = [*parser.parse(sentences), *parser.parse(sentences[:1])]
    assert isinstance(answers[0], Tree)
    assert to_brackets(answers[0]) == (
        "(S (NP (NP The dog) (SBAR that (S chased (NP the cat)))) (VP was happy) .)"
    )
    assert isinstance(answers[1], Refusal)
    assert answers[1].reason == "no parse"
    assert isinstance(answers[3], Tree)
    assert answers[3].words == sentences[3].words
    assert answers[-1] == answers[0]


@needs_link_parser
def test_unknown_language() -> None:
    with (
        pytest.raises(ParserError, match="8 sentences in a row"),
        closing(open_parser("link-grammar:nowhere")) as parser,
    ):
        list(parser.parse([Sentence(1, "a b", ("a", "b"))] * 9))


def test_without_the_program(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "")
    with pytest.raises(ParserError, match="apt-get install link-grammar"):
        open_parser("link-grammar")


def test_marks_are_told_from_words() -> None:
    brackets = "(S (NP Inc..y 's.p) (VP came.v-d { twice.e }) than.#then .)"
    constituents = place_constituents(brackets, "Inc.'scame(twice)than.")
    assert constituents == [((0, 6), "NP"), ((6, 17), "VP"), ((0, 22), "S")]
    for broken in ("(S a", "a)", "(S b)"):
        with pytest.raises(ValueError):
            place_constituents(broken, "a")


def test_constituents_hold_the_words_that_end_in_them() -> None:
    """12pm is one word that the parser cuts, isn't is two that it does not."""
    constituents = [((0, 2), "NP"), ((2, 9), "VP"), ((0, 9), "S")]
    tree = words_below(("12pm", "is", "n't"), [4, 2, 3], constituents)
    assert tree == Tree(("12pm", "is", "n't"), ((0, 3),), ("S",))
