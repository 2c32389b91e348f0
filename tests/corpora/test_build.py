"""Corpora from raw text: what is written, what is rejected, and what an interruption leaves."""

from __future__ import annotations

import gzip
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pushdown_lm.corpora.build import CorpusOptions, build_corpus, load_card
from pushdown_lm.corpora.parsers import ParserOptions
from pushdown_lm.corpora.parsing_units import depth
from pushdown_lm.errors import PushdownError
from pushdown_lm.files import FolderError
from pushdown_lm.trees import parse_tree, read_trees
from tests.command_line import run_pushdown
from tests.corpora.parsers.test_command import TOY

TEXT = "The dog barks. The cat (a small one) sleeps!\n\nDr. Smith isn't here. Why not?\n"
WORDS = [
    ["The", "dog", "barks", "."],
    ["The", "cat", "(", "a", "small", "one", ")", "sleeps", "!"],
    ["Dr.", "Smith", "is", "n't", "here", "."],
    ["Why", "not", "?"],
]
OPTIONS = CorpusOptions(TOY, ParserOptions(persistent=True, timeout=20))


def write(folder: Path, **contents: str | bytes) -> list[str]:
    paths = []
    for name, content in contents.items():
        path = folder / f"{name}.txt"
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        paths.append(str(path))
    return paths


def words_of(folder: Path) -> list[list[str]]:
    return [list(tree.words) for tree in read_trees(sorted(folder.glob("*.trees")))]


def rejected(folder: Path) -> list[dict[str, Any]]:
    lines = (folder / "rejected.jsonl").read_text(encoding="utf-8").splitlines()
    return [json.loads(line) for line in lines]


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def numbered(count: int) -> str:
    """So many sentences, no two alike."""
    return "".join(f"Sentence number {number} is here.\n" for number in range(count))


def test_text_becomes_trees(tmp_path: Path) -> None:
    card = build_corpus(write(tmp_path, a=TEXT), tmp_path / "out", OPTIONS)
    assert words_of(tmp_path / "out") == WORDS
    assert not (tmp_path / "out.partial").exists()
    assert {key: card[key] for key in ("sentences", "words", "longest", "max_depth")} == {
        "sentences": 4,
        "words": 22,
        "longest": 9,
        "max_depth": 8,
    }
    assert card["rejected"] == {}
    assert load_card(tmp_path / "out", verify=True) == card


def test_the_output_goes_into_a_dataset(tmp_path: Path) -> None:
    build_corpus(write(tmp_path, a=TEXT * 3), tmp_path / "out", OPTIONS)
    done = run_pushdown(
        "data",
        "build",
        tmp_path / "out" / "*.trees",
        "--tokenizer=word",
        "--out",
        tmp_path / "data",
    )
    assert done.exit_code == 0, done.error
    assert "sentences" in done.output


@pytest.mark.parametrize("workers", [1, 2])
def test_units_shards_and_workers_do_not_change_the_trees(tmp_path: Path, workers: int) -> None:
    (path,) = write(tmp_path, a=numbered(200))
    options = replace(OPTIONS, unit_bytes=1000, shard_sentences=50)
    build_corpus([path], tmp_path / "small", options, workers=workers)
    build_corpus([path], tmp_path / "large", OPTIONS)
    assert len(list((tmp_path / "small").glob("*.trees"))) == 3
    assert words_of(tmp_path / "small") == words_of(tmp_path / "large")
    assert len(words_of(tmp_path / "small")) == 200


def test_faults_are_counted_with_file_and_line(tmp_path: Path) -> None:
    text = b"Good one.\nBad \xe9 one.\nIt will DIE now.\nEXTRA words.\n\nGood too. Now NONE here.\n"
    paths = write(tmp_path, a=text, empty=" \n\n")
    card = build_corpus(paths, tmp_path / "out", replace(OPTIONS, max_words=5))
    assert words_of(tmp_path / "out") == [["Good", "one", "."], ["Good", "too", "."]]
    assert card["rejected"] == {
        "no parse": 1,
        "no sentence": 1,
        "not UTF-8": 1,
        "parser died": 1,
        "wrong number of words": 1,
    }
    places = {
        (Path(row["file"]).name, row["line"], row["reason"]) for row in rejected(tmp_path / "out")
    }
    assert places == {
        ("a.txt", 2, "not UTF-8"),
        ("a.txt", 3, "parser died"),
        ("a.txt", 4, "wrong number of words"),
        ("a.txt", 6, "no parse"),
        ("empty.txt", 1, "no sentence"),
    }


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"Good.\nBad \xe9.\n", "a.txt:2: not UTF-8: expected UTF-8, found byte 0xe9"),
        (b"Good.\nDIE here.\nMore.\n", "a.txt:2: parser died: exit code 3: out of luck"),
        (b"Good.\n\nEXTRA here.\n", "a.txt:3: wrong number of words: expected 3, found 4"),
        (b"\n", "a.txt:1: no sentence"),
    ],
)
def test_a_run_that_is_to_stop_stops(tmp_path: Path, content: bytes, message: str) -> None:
    options = replace(OPTIONS, errors="raise", layout="lines")
    with pytest.raises(PushdownError, match=message):
        build_corpus(write(tmp_path, a=content), tmp_path / "out", options)
    assert not (tmp_path / "out").exists()


def test_after_a_stop_the_rest_can_be_had(tmp_path: Path) -> None:
    (path,) = write(tmp_path, a=numbered(40) + "DIE here.\n" + numbered(40))
    options = replace(OPTIONS, unit_bytes=500)
    with pytest.raises(PushdownError, match=r"a\.txt:41: parser died"):
        build_corpus([path], tmp_path / "out", replace(options, errors="raise"))
    card = build_corpus([path], tmp_path / "out", options)
    assert card["sentences"] == 80
    assert card["rejected"] == {"parser died": 1}


def test_nothing_to_parse(tmp_path: Path) -> None:
    with pytest.raises(PushdownError, match="at least one sentence with a tree, found none"):
        build_corpus(write(tmp_path, a="\n"), tmp_path / "out", OPTIONS)
    assert os.listdir(tmp_path) == ["a.txt"]


def test_lengths_are_filters_not_errors(tmp_path: Path) -> None:
    options = replace(OPTIONS, min_words=4, max_words=6, errors="raise")
    card = build_corpus(write(tmp_path, a=TEXT), tmp_path / "out", options)
    assert words_of(tmp_path / "out") == [WORDS[0], WORDS[2]]
    assert card["rejected"] == {"too few words": 1, "too many words": 1}


def test_packed_files_and_standard_input(tmp_path: Path) -> None:
    plain = write(tmp_path, a=TEXT)
    packed = tmp_path / "a.txt.gz"
    packed.write_bytes(gzip.compress(TEXT.encode()))
    build_corpus(plain, tmp_path / "plain", OPTIONS)
    build_corpus([packed], tmp_path / "packed", OPTIONS)
    done = run_pushdown(
        "corpus", "build", "-", "--parser", TOY, "--out", tmp_path / "stdin", stdin=TEXT
    )
    assert done.exit_code == 0, done.error
    assert words_of(tmp_path / "plain") == words_of(tmp_path / "packed")
    assert words_of(tmp_path / "plain") == words_of(tmp_path / "stdin")
    packed.write_bytes(packed.read_bytes()[:-9])
    with pytest.raises(PushdownError, match=r"a\.txt\.gz: expected whole gzip data"):
        build_corpus([packed], tmp_path / "cut", OPTIONS)


# ------------------------------------------------------------------ interruptions


def run_command(*arguments: object, **options: Any) -> subprocess.Popen[bytes]:
    command = [sys.executable, "-m", "pushdown_lm", *map(str, arguments)]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL, **options)


def wait_for(folder: Path, count: int, process: subprocess.Popen[bytes]) -> None:
    deadline = time.monotonic() + 120
    while len(list(folder.glob("units/*/*.txt"))) < count:
        assert process.poll() is None, "it ended before it was killed"
        assert time.monotonic() < deadline
        time.sleep(0.01)


def test_kill_9_loses_and_doubles_nothing(tmp_path: Path) -> None:
    """Killed twice in the middle; what is done is not parsed again."""
    (path,) = write(tmp_path, a=numbered(120))
    log = tmp_path / "parsed.log"
    parser = f"{TOY} --slow 0.01 --log {shlex.quote(str(log))}"
    out = tmp_path / "out"
    command = ("corpus", "build", path, "--parser", parser, "--unit-size", 1, "--out", out)
    for finished in (1, 3):
        process = run_command(*command)
        wait_for(tmp_path / "out.partial", finished, process)
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert not out.exists()
    done = run_pushdown(*command)
    assert done.exit_code == 0, done.error
    assert "Resuming:" in done.error
    assert words_of(out) == [line.replace(".", " .").split() for line in numbered(120).splitlines()]
    times = Counter(log.read_text(encoding="utf-8").splitlines())
    assert len(times) == 120
    assert sum(count > 1 for count in times.values()) < 100  # the unfinished units only

    build_corpus([path], tmp_path / "whole", replace(OPTIONS, unit_bytes=1000))
    assert (out / "trees-00000.trees").read_bytes() == (
        tmp_path / "whole" / "trees-00000.trees"
    ).read_bytes()


def test_a_finished_corpus_stays(tmp_path: Path) -> None:
    paths = write(tmp_path, a=TEXT)
    build_corpus(paths, tmp_path / "out", OPTIONS)
    before = contents(tmp_path / "out")
    modified = (tmp_path / "out" / "corpus.json").stat().st_mtime_ns
    build_corpus(paths, tmp_path / "out", OPTIONS)
    assert (tmp_path / "out" / "corpus.json").stat().st_mtime_ns == modified
    other = replace(OPTIONS, max_words=5)
    with pytest.raises(FolderError, match="holds a corpus of other text or options"):
        build_corpus(paths, tmp_path / "out", other)
    assert contents(tmp_path / "out") == before
    assert not (tmp_path / "out.partial").exists()
    card = build_corpus(paths, tmp_path / "out", other, overwrite=True)
    assert card["sentences"] == 2


def test_unfinished_work_of_other_text_is_not_thrown_away(tmp_path: Path) -> None:
    (path,) = write(tmp_path, a=numbered(40) + "DIE here.\n")
    options = replace(OPTIONS, unit_bytes=500, errors="raise")
    with pytest.raises(PushdownError, match="parser died"):
        build_corpus([path], tmp_path / "out", options)
    Path(path).write_text(numbered(41), encoding="utf-8")
    with pytest.raises(FolderError, match="an unfinished corpus of other text"):
        build_corpus([path], tmp_path / "out", options)
    assert build_corpus([path], tmp_path / "out", options, overwrite=True)["sentences"] == 41


def test_one_process_at_a_time(tmp_path: Path) -> None:
    (path,) = write(tmp_path, a=numbered(60))
    out = tmp_path / "out"
    parser = f"{TOY} --slow 0.05"
    process = run_command(
        "corpus", "build", path, "--parser", parser, "--unit-size", 1, "--out", out
    )
    try:
        wait_for(tmp_path / "out.partial", 1, process)
        with pytest.raises(FolderError, match="is writing this corpus"):
            build_corpus([path], out, OPTIONS)
    finally:
        process.kill()
        process.wait()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent.txt"], "absent.txt: no such file or directory"),
        (["."], ".: is a folder; give its files"),
        (["hf:one:two"], "hf:one:two: expected hf:REPOSITORY:CONFIGURATION:SPLIT"),
    ],
)
def test_bad_input_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: Sequence[str], message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    done = run_pushdown("corpus", "build", *arguments, "--parser", TOY, "--out", tmp_path / "out")
    assert done.exit_code == 2
    assert message in done.error
    assert os.listdir(tmp_path) == []


def test_show(tmp_path: Path) -> None:
    build_corpus(write(tmp_path, a=TEXT), tmp_path / "out", OPTIONS)
    shown = run_pushdown("corpus", "show", tmp_path / "out", "--verify")
    assert shown.exit_code == 0
    assert "words per sentence" in shown.output
    assert (
        json.loads(run_pushdown("corpus", "show", tmp_path / "out", "--json").output)["words"] == 22
    )
    with (tmp_path / "out" / "trees-00000.trees").open("a") as file:
        file.write("(X more)\n")
    assert "damaged" in run_pushdown("corpus", "show", tmp_path / "out", "--verify").error


def test_depth() -> None:
    assert depth(parse_tree("(S a (NP (NP b c) (PP d e)) (VP f g))")) == 3
    assert depth(parse_tree("(S a)")) == 0
