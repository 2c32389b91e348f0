"""Programs as parsers, with every fault that a program can have."""

from __future__ import annotations

import shlex
import sys
from contextlib import closing
from pathlib import Path

import pytest

from pushdown_lm.corpora.parsers import Answer, ParserError, ParserOptions, Refusal, open_parser
from pushdown_lm.corpora.parsers.command import cut_answers
from pushdown_lm.corpora.raw_text import Sentence
from pushdown_lm.trees import Tree
from tests.corpora import toy_parser

TOY = f"command:{shlex.quote(sys.executable)} {shlex.quote(str(toy_parser.__file__))}"


def sentences(*texts: str) -> list[Sentence]:
    return [Sentence(line, text, tuple(text.split())) for line, text in enumerate(texts, start=1)]


def parse(name: str, *texts: str, rounds: int = 1, **options: object) -> list[Answer]:
    with closing(open_parser(name, ParserOptions(**options))) as parser:  # type: ignore[arg-type]
        for _ in range(rounds):
            answers = list(parser.parse(sentences(*texts)))
        return answers


def reasons(answers: list[Answer]) -> list[str]:
    return [answer.reason if isinstance(answer, Refusal) else "tree" for answer in answers]


@pytest.mark.parametrize("persistent", [False, True])
def test_trees_come_in_order(persistent: bool) -> None:
    answers = parse(TOY, "a b c", "( d )", "e", rounds=2, persistent=persistent)
    assert answers == [
        Tree(("a", "b", "c"), ((1, 3), (0, 3)), ("X", "X")),
        Tree(("(", "d", ")"), ((1, 3), (0, 3)), ("X", "X")),
        Tree(("e",), (), ("X",)),
    ]


def test_dependencies_become_constituents() -> None:
    (by_heads,) = parse(f"{TOY} --conllu", "a b c", constituents="heads")
    assert isinstance(by_heads, Tree)
    assert by_heads.spans == ((0, 2), (0, 3))
    (by_rule,) = parse(f"{TOY} --conllu", "a b c")
    assert isinstance(by_rule, Tree)
    assert by_rule.spans[-1] == (0, 3)


@pytest.mark.parametrize("persistent", [False, True])
def test_only_the_sentences_at_fault_are_refused(persistent: bool) -> None:
    texts = ["a b", "c DIE", "d e", "f NONE g", "h BROKEN", "DIE", "i j", "k l", "m n o DIE"]
    answers = parse(TOY, *texts, persistent=persistent, timeout=4.0)
    unclosed = "parser hung" if persistent else "malformed answer"
    assert reasons(answers) == [
        "tree", "parser died", "tree", "no parse", unclosed,
        "parser died", "tree", "tree", "parser died",
    ]  # fmt: skip
    assert answers[1] == Refusal("parser died", "exit code 3: out of luck")


def test_a_sentence_that_is_skipped_shifts_no_other() -> None:
    texts = ["a b", "c d", "SKIP it", "e f", "g h", "i j"]
    answers = parse(TOY, *texts)
    assert reasons(answers) == ["tree", "tree", "wrong number of answers", "tree", "tree", "tree"]
    for text, answer in zip(texts, answers, strict=True):
        assert isinstance(answer, Refusal) or answer.words == tuple(text.split())


def test_a_parser_that_hangs_is_stopped() -> None:
    answers = parse(TOY, "a b", "HANG now", "c d", timeout=3.0)
    assert reasons(answers) == ["tree", "parser hung", "tree"]


def test_a_parser_that_always_fails_stops_the_run() -> None:
    with pytest.raises(ParserError, match="8 sentences in a row without a parse: parser died: ex"):
        parse("command:false", *["a b"] * 20)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("command:no-such-program", "no such program: no-such-program"),
        ("command:", "got no command"),
        ("command:'", "No closing quotation"),
        ("oracle:x", "expected a parser of command, .*got 'oracle:x'"),
        ("pushdown:", "got no model"),
        ("pushdown:nowhere", "nowhere: no such folder"),
    ],
)
def test_bad_names(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        open_parser(name)


def test_answers_are_cut_at_their_ends() -> None:
    output = "(S\n  (NP a)\n  b)\n\n(S (NP e\n(S c d)\nnothing\n\n"
    lines = iter(output.splitlines(keepends=True))
    assert list(cut_answers(lines)) == [
        "(S\n  (NP a)\n  b)\n",
        "(S (NP e\n",
        "(S c d)\n",
        "nothing\n",
    ]
    conllu = f"{toy_parser.conllu(['(', 'b'])}\n{toy_parser.conllu(['c'])}"
    answers = list(cut_answers(iter(conllu.splitlines(keepends=True))))
    assert [answer.count("\n") for answer in answers] == [2, 1]


def test_killed_commands_leave_nothing_behind(tmp_path: Path) -> None:
    """A shell's child is ended with it."""
    script = tmp_path / "parser.sh"
    script.write_text(f"sleep 300 & echo $! > {tmp_path / 'pid'}; wait\n")
    assert reasons(parse(f"command:sh {script}", "a b", timeout=0.5)) == ["parser hung"]
    child = int((tmp_path / "pid").read_text())
    status = Path(f"/proc/{child}/stat")
    assert not status.exists() or status.read_text().split()[2] == "Z"
