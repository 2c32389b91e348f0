"""`pushdown score`, `surprisal`, `parse` and `generate` as a person runs them."""

from __future__ import annotations

import csv
import io
import json
import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pushdown_lm.bench import search as bench_search
from pushdown_lm.cli import search as search_commands
from pushdown_lm.cli.formats import joint_row
from pushdown_lm.data.tokenization import detokenize, train_bpe, train_word_vocabulary
from pushdown_lm.files import lock_file
from pushdown_lm.search.beam import posteriors
from pushdown_lm.search.pushdown_scorer import Encoded, PushdownScorer
from pushdown_lm.trees import parse_tree, to_brackets
from tests.command_line import run_pushdown
from tests.models import random_model

WORDS = ["the", "dog", "that", "she", "has", "n't", "seen", "is", "here", ",", "and", "barks", "."]
LINES = ["the dog hasn't barked.", "she is here, and the dog barks.", "the dog"]


@pytest.fixture(scope="module")
def bpe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bpe")
    tokenizer = train_bpe([detokenize(WORDS)] * 3, vocab_size=280)
    model = random_model(seed=1, scale=0.3, vocabulary=280, positions=40)
    model.float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def word(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("word")
    tokenizer = train_word_vocabulary([WORDS])
    model = random_model(seed=2, scale=0.3, vocabulary=len(tokenizer), positions=20)
    model.float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@dataclass
class Run:
    code: int
    out: str
    err: str

    @property
    def rows(self) -> list[dict[str, str]]:
        table = csv.DictReader(io.StringIO(self.out), delimiter="\t", quoting=csv.QUOTE_NONE)
        return list(table)

    @property
    def records(self) -> list[dict]:
        return [json.loads(line) for line in self.out.splitlines()]


class Pushdown:
    """Runs the command in this process."""

    def __call__(self, *arguments: object, stdin: bytes | str = "") -> Run:
        done = run_pushdown(*arguments, stdin=stdin)
        return Run(done.exit_code, done.output, done.error)


@pytest.fixture
def pushdown() -> Pushdown:
    return Pushdown()


def text(lines: Sequence[str]) -> str:
    return "".join(f"{line}\n" for line in lines)


# ------------------------------------------------------------------ score


def test_score(pushdown: Pushdown, bpe: Path, tmp_path: Path) -> None:
    file = tmp_path / "sentences.txt"
    file.write_text(text(LINES))
    run = pushdown("score", bpe, file, "--beam", 5)
    assert run.code == 0
    scorer = PushdownScorer.from_pretrained(bpe, beam=5)
    for row, line, analysis in zip(run.rows, LINES, scorer.analyse(LINES), strict=True):
        bits = analysis.log_prob / math.log(2)
        assert float(row["log2_prob"]) == pytest.approx(bits, abs=1e-3)
        tokens, words = len(analysis.sentence.ids), len(line.split())
        assert (row["tokens"], row["words"]) == (str(tokens), str(words))
        assert float(row["bits_per_token"]) == pytest.approx(-bits / (tokens + 1), abs=1e-3)
        assert float(row["bits_per_word"]) == pytest.approx(-bits / (words + 1), abs=1e-3)
        assert row["entries"] == str(len(analysis.result.log_joints))
        assert float(row["bound_bits"]) >= float(row["lost_bits"]) >= 0
    assert [row["entries"] for row in run.rows[:2]] == ["5", "5"]
    assert all(float(row["lost_bits"]) > 0 for row in run.rows[:2])


def test_results_go_to_a_file_or_to_standard_output(
    pushdown: Pushdown, bpe: Path, tmp_path: Path
) -> None:
    printed = pushdown("score", bpe, "--beam", 2, "--format", "jsonl", stdin=text(LINES))
    out = tmp_path / "scores.jsonl"
    written = pushdown(
        "score", bpe, "-", "--beam", 2, "--format", "jsonl", "--out", out, stdin=text(LINES)
    )
    assert (printed.code, written.code, written.out) == (0, 0, "")
    assert out.read_text() == printed.out
    assert [record["sentence_id"] for record in printed.records] == [1, 2, 3]


def test_threshold_trades_entries_for_a_bound(pushdown: Pushdown, bpe: Path) -> None:
    wide = pushdown("score", bpe, "--beam", 50, stdin=text(LINES)).rows
    pruned = pushdown("score", bpe, "--beam", 50, "--threshold", 0.2, stdin=text(LINES)).rows
    for before, after in zip(wide, pruned, strict=True):
        assert int(after["entries"]) < int(before["entries"])
        assert float(after["log2_prob"]) < float(before["log2_prob"])
        assert float(after["lost_bits"]) > float(before["lost_bits"])


def test_score_of_trees(pushdown: Pushdown, word: Path) -> None:
    trees = ["(S (NP the dog) (VP is here))", "((the dog) (is (here .)))", "dog"]
    run = pushdown("score", word, "--tree", stdin=text(trees[:2]))
    scorer = PushdownScorer.from_pretrained(word, beam=100)
    for row, bracketed in zip(run.rows, trees, strict=False):
        expected = scorer.log_joint(parse_tree(bracketed)) / math.log(2)
        assert float(row["log2_joint"]) == pytest.approx(expected, abs=1e-4)
        marginal = scorer.log_prob(parse_tree(bracketed).words) / math.log(2)
        assert float(row["log2_joint"]) < marginal


def test_bad_trees_are_named(pushdown: Pushdown, word: Path) -> None:
    run = pushdown("score", word, "--tree", stdin="(S the dog)\n(S the cat)\n(S is here)\n")
    assert (run.code, run.err.splitlines()[-1]) == (
        2,
        "pushdown: <stdin>, tree 2: expected words of the closed vocabulary, found 'cat'",
    )
    run = pushdown("score", word, "--tree", "--keep-going", stdin="(S the dog)\n(S the cat)\n")
    assert (run.code, [row["sentence_id"] for row in run.rows]) == (1, ["1"])
    run = pushdown("score", word, "--tree", stdin="(S (NP the dog) is")
    assert run.code == 2
    assert "<stdin>:1" in run.err
    run = pushdown("score", word, "--tree", "--keep-going", stdin="(S the dog))\n(S is here)\n")
    assert (run.code, len(run.rows)) == (1, 1)
    assert "malformed" in run.err


# ------------------------------------------------------------------ surprisal


def test_surprisals_of_tokens(pushdown: Pushdown, bpe: Path) -> None:
    run = pushdown("surprisal", bpe, "--beam", 5, "--raw-tokens", stdin=text(LINES))
    assert run.out.splitlines()[0] == "sentence_id\ttoken_id\ttoken\tsurprisal"
    scorer = PushdownScorer.from_pretrained(bpe, beam=5)
    for number, tokens in enumerate(scorer.surprisals(LINES), start=1):
        rows = [row for row in run.rows if row["sentence_id"] == str(number)]
        assert [row["token"] for row in rows] == [token.text for token in tokens]
        assert [int(row["token_id"]) for row in rows] == list(range(1, len(tokens) + 1))
        bits = [float(row["surprisal"]) for row in rows]
        assert bits == pytest.approx([token.surprisal for token in tokens], abs=1e-3)
        assert rows[-1]["token"] == "</s>"


def test_surprisals_of_words_add_up_to_the_score(pushdown: Pushdown, bpe: Path) -> None:
    words = pushdown("surprisal", bpe, "--unit", "word", "--beam", 5, stdin=text(LINES)).rows
    scores = pushdown("score", bpe, "--beam", 5, stdin=text(LINES)).rows
    assert [row["token"] for row in words if row["sentence_id"] == "1"] == [
        *LINES[0].split(),
        "</s>",
    ]
    for score in scores:
        own = [row for row in words if row["sentence_id"] == score["sentence_id"]]
        total = sum(float(row["surprisal"]) for row in own)
        assert total == pytest.approx(-float(score["log2_prob"]), abs=1e-4)


# ------------------------------------------------------------------ parse


def test_parse_gives_a_tree_a_line(pushdown: Pushdown, bpe: Path, word: Path) -> None:
    run = pushdown("parse", bpe, "--beam", 5, stdin=text(LINES))
    trees = [parse_tree(line) for line in run.out.splitlines()]
    assert trees[0].words == ("the", "dog", "has", "n't", "barked", ".")
    assert [len(tree.spans) for tree in trees] == [len(tree.words) - 1 for tree in trees]
    tokenised = pushdown("parse", word, "--pretokenised", "--beam", 5, stdin=" ".join(WORDS))
    assert parse_tree(tokenised.out).words == tuple(WORDS)


def test_parse_n_best_and_posteriors(pushdown: Pushdown, word: Path) -> None:
    sentence = "the dog is here ."
    run = pushdown("parse", word, "--n-best", 3, "--posteriors", "--format", "json", stdin=sentence)
    (record,) = run.records
    analysis = PushdownScorer.from_pretrained(word).analyse([sentence])[0]
    best = analysis.trees()
    assert len(best) == 14
    assert [tree["brackets"] for tree in record["trees"]] == [
        to_brackets(scored.tree) for scored in best[:3]
    ]
    expected = [math.exp(scored.log_prob - analysis.log_prob) for scored in best[:3]]
    assert [tree["posterior"] for tree in record["trees"]] == pytest.approx(expected)
    found = {(start, end): value for start, end, value in record["posteriors"]}
    assert found == pytest.approx(posteriors(best))

    rows = pushdown("parse", word, "--n-best", 3, stdin=sentence).out.splitlines()
    columns = [row.split("\t") for row in rows]
    assert [column[:2] for column in columns] == [["1", "1"], ["1", "2"], ["1", "3"]]
    assert [column[3] for column in columns] == [tree["brackets"] for tree in record["trees"]]

    labelled = pushdown("parse", word, "--posteriors", stdin=sentence).out
    tree = parse_tree(labelled, labels=True)
    assert tree.labels is not None
    for span, label in zip(tree.spans, tree.labels, strict=True):
        assert float(label) == pytest.approx(found[span], abs=1e-3)


def test_parse_drawn(pushdown: Pushdown, word: Path) -> None:
    run = pushdown("parse", word, "--format", "text", stdin="the dog")
    assert run.out.splitlines()[0].startswith("1.1  log2 p = -")
    assert "".join(run.out.split("\n", 1)[1]) == " ┌─┴──┐\nthe  dog\n\n"


# ------------------------------------------------------------------ generate


def test_generate(pushdown: Pushdown, bpe: Path, word: Path) -> None:
    options = ["--prompt", "the dog", "--count", 3, "--max-tokens", 12, "--format", "json"]
    run = pushdown("generate", bpe, *options, "--seed", 1, "--beam", 5)
    assert (run.code, len(run.records)) == (0, 3)
    for record in run.records:
        assert record["text"].startswith("the dog")
        assert len(record["spans"]) == len(record["words"]) - 1
        assert len(record["tokens"]) <= 12
        assert parse_tree(record["brackets"]).words == tuple(record["words"])
    assert pushdown("generate", bpe, *options, "--seed", 1, "--beam", 5).out == run.out
    assert pushdown("generate", bpe, *options, "--seed", 2, "--beam", 5).out != run.out

    drawn = pushdown("generate", word, "--count", 2, "--top-k", 5, "--temperature", 0.7)
    assert drawn.code == 0
    brackets = pushdown("generate", word, "--count", 4, "--top-p", 0.9, "--format", "brackets")
    assert len(brackets.out.splitlines()) == 4


def test_generate_with_bad_settings(pushdown: Pushdown, word: Path) -> None:
    run = pushdown("generate", word, "--temperature", -1)
    assert run.code == 2
    assert "temperature" in run.err


# ------------------------------------------------------------------ bad input

BAD = [
    "the dog is here",
    "",
    "the cat is here",
    "the dog " * 15,
    "the dog </s> is",
    "she is here",
]


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (BAD[:2], "<stdin>:2: expected a sentence of at least one word, got an empty one"),
        ([BAD[2]], "<stdin>:1: expected words of the vocabulary, found 'cat' at character 5"),
        ([BAD[0], BAD[3]], "<stdin>:2: .*expected at most 19 tokens .* got 30"),
        ([BAD[4]], "<stdin>:1: expected text without special tokens, found '</s>'"),
    ],
)
def test_a_bad_line_is_an_error_with_its_number(
    pushdown: Pushdown, word: Path, lines: list[str], message: str
) -> None:
    for command in ("score", "surprisal", "parse"):
        run = pushdown(command, word, "--beam", 2, stdin=text(lines))
        assert run.code == 2
        assert re.match(f"pushdown: {message}", run.err.splitlines()[-1])
        assert "Traceback" not in run.err


def test_keep_going_processes_the_rest(pushdown: Pushdown, word: Path) -> None:
    run = pushdown("score", word, "--beam", 2, "--keep-going", stdin=text(BAD))
    assert run.code == 1
    assert [row["sentence_id"] for row in run.rows] == ["1", "6"]
    reported = [line for line in run.err.splitlines() if "<stdin>:" in line]
    assert [line.split(":")[2] for line in reported] == ["2", "3", "4", "5"]
    assert run.err.splitlines()[-1] == "pushdown: 4 left out"
    parsed = pushdown("parse", word, "--beam", 2, "--keep-going", stdin=text(BAD))
    assert [bool(line) for line in parsed.out.split("\n")[:-1]] == [
        True, False, False, False, False, True,
    ]  # fmt: skip


def test_text_that_is_not_utf8(pushdown: Pushdown, word: Path) -> None:
    run = pushdown("score", word, "--keep-going", stdin=b"the dog\n\xff\n")
    assert (run.code, len(run.rows)) == (1, 1)
    assert "<stdin>:2: 'utf-8' codec can't decode" in run.err


def test_an_error_leaves_the_old_file(pushdown: Pushdown, word: Path, tmp_path: Path) -> None:
    out = tmp_path / "scores.tsv"
    out.write_text("before")
    run = pushdown("score", word, "--out", out, stdin="the dog\nthe cat\n")
    assert (run.code, out.read_text()) == (2, "before")
    assert [path.name for path in tmp_path.iterdir()] == ["scores.tsv"]


def interrupt_after(monkeypatch: pytest.MonkeyPatch, chunks: int) -> None:
    """Ctrl-C while the search of a later chunk runs."""
    whole = PushdownScorer.analyse_batches
    seen = 0

    def interrupted(self: PushdownScorer, encoded: Sequence[Encoded]) -> Iterator[Any]:
        nonlocal seen
        seen += 1
        if seen > chunks:
            raise KeyboardInterrupt
        return whole(self, encoded)

    monkeypatch.setattr(PushdownScorer, "analyse_batches", interrupted)


@pytest.mark.parametrize(
    "command", [["score"], ["surprisal", "--unit", "word"], ["parse", "--n-best", "2"]]
)
def test_an_interrupted_command_resumes(
    command: list[str],
    pushdown: Pushdown,
    word: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(search_commands, "CHUNK", 2)
    lines = ["the dog", "she barks", "the cat", "the dog is here .", "she is", "here she is"]
    file, out = tmp_path / "in.txt", tmp_path / "out.tsv"
    file.write_text(text(lines))
    name, *options = command
    arguments = [name, word, file, *options, "--keep-going", "--beam", 3]
    whole = pushdown(*arguments).out
    arguments += ["--out", out]
    with monkeypatch.context() as patch:
        interrupt_after(patch, 2)
        run = pushdown(*arguments)
    assert (run.code, out.exists()) == (130, False)
    assert "4 of 6 are in" in run.err
    with (tmp_path / "out.tsv.partial").open("a") as partial:
        partial.write("a row that a crash cut sh")
    file.write_text(text([*lines[:4], "she is here"]))  # what is not done yet may change

    with monkeypatch.context() as patch:
        interrupt_after(patch, 1)  # the rest is one chunk
        run = pushdown(*arguments)
    assert (run.code, "Resuming after 4 of 5" in run.err) == (1, True)
    assert "1 left out" in run.err
    assert {path.name for path in tmp_path.iterdir()} == {"in.txt", "out.tsv"}
    assert out.read_text() == pushdown(*arguments[:-2]).out != whole


@pytest.mark.parametrize("change", ["options", "input", "state"])
def test_what_was_made_otherwise_is_not_resumed(
    change: str, pushdown: Pushdown, word: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_commands, "CHUNK", 1)
    file, out = tmp_path / "in.txt", tmp_path / "out.tsv"
    file.write_text(text(["the dog", "she barks"]))
    with monkeypatch.context() as patch:
        interrupt_after(patch, 1)
        assert pushdown("score", word, file, "--out", out, "--beam", 3).code == 130
    options = ["--beam", 4 if change == "options" else 3]
    if change == "input":
        file.write_text(text(["the dog barks", "she barks"]))
    if change == "state":
        (tmp_path / "out.tsv.partial.json").write_text('{"done": ')
    run = pushdown("score", word, file, "--out", out, *options)
    assert (run.code, "Resuming" in run.err) == (0, False)
    assert out.read_text() == pushdown("score", word, file, *options).out


def test_interrupted_trees_resume(
    pushdown: Pushdown, word: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(search_commands, "CHUNK", 1)
    trees, out = text(["(S the dog)", "(S she barks)", "(S she (VP is here))"]), tmp_path / "out"
    whole = pushdown("score", word, "--tree", stdin=trees).out

    def interrupted(number: int, *rest: Any) -> dict[str, Any]:
        if number == 3:
            raise KeyboardInterrupt
        return joint_row(number, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(search_commands, "joint_row", interrupted)
        assert pushdown("score", word, "--tree", "--out", out, stdin=trees).code == 130
    run = pushdown("score", word, "--tree", "--out", out, stdin=trees)
    assert (run.code, out.read_text()) == (0, whole)
    assert "Resuming after 2 of 3" in run.err


def test_two_commands_do_not_write_one_file(pushdown: Pushdown, word: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.tsv"
    with (tmp_path / "out.tsv.partial").open("a") as other:
        lock_file(other)
        run = pushdown("score", word, "--out", out, stdin="the dog\n")
    assert (run.code, run.err.splitlines()[-1]) == (
        2,
        f"pushdown: {out}: another process is writing it",
    )


def test_what_is_not_a_model(pushdown: Pushdown, tmp_path: Path, word: Path) -> None:
    run = pushdown("score", tmp_path, stdin="a")
    assert (run.code, run.err) == (
        2,
        f"Loading {tmp_path} ...\n"
        f"pushdown: {tmp_path}: expected a Pushdown model, found no readable config.json\n",
    )
    run = pushdown("score", word, tmp_path / "absent.txt")
    assert (run.code, run.err) == (
        2,
        f"pushdown: {tmp_path}/absent.txt: No such file or directory\n",
    )


# ------------------------------------------------------------------ bench


def test_bench_prints_its_ratios(pushdown: Pushdown, monkeypatch: pytest.MonkeyPatch) -> None:
    tiny = bench_search.Case(2, 16, 2, 30, sentences=2, length=6, beam=10)
    monkeypatch.setattr(bench_search, "CASES", {"tiny": tiny})
    run = pushdown("bench", "search", "tiny", "--repeats", 1, "--json")
    (record,) = run.records
    assert (run.code, record["bench"], record["case"]) == (0, "search", "tiny")
    assert record["time_ratio"] > 0
    assert record["pruning_speedup"] > 0
    assert record["pruned_cells"] < record["cells"]
    assert record["pruning_lost_nats"] <= 2 * bench_search.LOST_NATS
    assert pushdown("bench", "search", "absent").code == 2
