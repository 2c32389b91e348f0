"""Corpora of source code: splits, reports, and what is left out."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

pytest.importorskip("tree_sitter_python")

from pushdown_lm.corpora.code_corpus import CodeOptions, build_code_corpus
from pushdown_lm.corpora.code_trees import CodeError, read_code
from pushdown_lm.corpora.code_units import cut, nesting
from pushdown_lm.data.encoding import DataError
from pushdown_lm.errors import TreeError
from pushdown_lm.files import FolderError, verify_manifest
from pushdown_lm.trees import read_trees
from tests.command_line import run_pushdown


def source(number: int) -> str:
    return (
        f"def f{number}(a):\n    if a:\n        return (a, [{number}])\n    return {number}\n"
        f"x{number} = [(a, {number}), {{{number}, a}}]\n"
    )


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    folder = tmp_path / "src"
    folder.mkdir()
    paths = [folder / f"{number}.py" for number in range(40)]
    for number, path in enumerate(paths):
        path.write_text(source(number))
    return paths


def test_splits_hold_every_unit_once(tmp_path: Path, files: list[Path]) -> None:
    options = CodeOptions(max_words=10, split=(0.5, 0.2, 0.3))
    report = build_code_corpus(files, tmp_path / "out", options)
    verify_manifest(tmp_path / "out")
    assert json.loads((tmp_path / "out" / "corpus.json").read_text())["files"] == 40
    found = {
        split: [tuple(tree.words) for tree in read_trees(tmp_path / "out" / f"{split}.trees")]
        for split in ("train", "valid", "test")
    }
    for split, units in found.items():
        expected = [
            tuple(unit.words)
            for path in files
            if options.split_of(path.read_bytes()) == split
            for unit in cut(read_code(path.read_text()), 10)
        ]
        assert units == expected
        assert report["trees"][split]["units"] == len(units)
        assert report["trees"][split]["words"] == sum(map(len, units))
        assert report["trees"][split]["files"] > 0


def test_the_split_follows_from_content_and_seed(files: list[Path]) -> None:
    first, second = CodeOptions(), CodeOptions(seed=1)
    splits = [first.split_of(path.read_bytes()) for path in files]
    assert splits == [first.split_of(source(number).encode()) for number in range(40)]
    assert splits != [second.split_of(path.read_bytes()) for path in files]


def test_deep_units_are_held_out(tmp_path: Path, files: list[Path]) -> None:
    options = CodeOptions(max_nesting=2, max_words=30, split=(0.4, 0.3, 0.3))
    report = build_code_corpus(files, tmp_path / "out", options)
    trees = {name: list(read_trees(tmp_path / "out" / f"{name}.trees")) for name in report["trees"]}
    assert min(map(nesting, trees["deep"])) == 4
    assert max(nesting(unit) for name in ("train", "valid", "test") for unit in trees[name]) == 2
    assert report["train_units_nested_too_deeply"] == report["trees"]["train"]["files"]
    held_out = report["trees"]["valid"]["files"] + report["trees"]["test"]["files"]
    assert len(trees["deep"]) == held_out


def test_files_with_errors_are_counted_or_raised(tmp_path: Path, files: list[Path]) -> None:
    (tmp_path / "bad.py").write_text("def f(:\n")
    (tmp_path / "latin.py").write_bytes(b"# \xe9\n")
    files = [*files, tmp_path / "bad.py", tmp_path / "latin.py"]
    report = build_code_corpus(files, tmp_path / "out")
    assert {reason: len(places) for reason, places in report["skipped_files"].items()} == {
        "syntax error": 1,
        "not UTF-8": 1,
    }
    assert report["skipped_files"]["syntax error"][0].startswith(f"{tmp_path}/bad.py:1:")
    with pytest.raises(TreeError, match=r"bad\.py:1:"):
        build_code_corpus(files, tmp_path / "out2", CodeOptions(errors="raise"))
    assert not (tmp_path / "out2").exists()


def test_bad_options(tmp_path: Path, files: list[Path]) -> None:
    with pytest.raises(CodeError, match="max_words: expected at least 1, got 0"):
        CodeOptions(max_words=0)
    with pytest.raises(DataError, match="split: expected the shares"):
        CodeOptions(split=(0.5, 0.5, 0.5))
    with pytest.raises(FolderError, match="expected a new or empty folder"):
        build_code_corpus(files, tmp_path)
    (tmp_path / "empty.py").write_text("# nothing\n")
    with pytest.raises(CodeError, match="expected code to train on, found none in 1 files"):
        build_code_corpus([tmp_path / "empty.py"], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_command(tmp_path: Path, files: list[Path]) -> None:
    (tmp_path / "src" / "bad.py").write_text("def f(:\n")
    out = tmp_path / "out"
    done = run_pushdown("corpus", "code", f"{tmp_path}/src/*.py", "--max-words", 30, "--out", out)
    assert done.exit_code == 0
    assert "skipped 1 files: syntax error" in done.output
    assert f"skipped {tmp_path}/src/bad.py:1:" in done.error
    data = run_pushdown(
        "data", "build", out / "train.trees", "--valid", out / "valid.trees",
        "--tokenizer", "bpe:300", "--keep-tokenised", "--out", tmp_path / "data",
    )  # fmt: skip
    assert data.exit_code == 0, data.error
    again = run_pushdown("corpus", "code", f"{tmp_path}/src/*.py", "--out", out)
    assert again.exit_code == 2
    assert "expected a new or empty folder" in again.error
    missing = run_pushdown(
        "corpus", "code", files[0], "--language", "nosuch", "--out", tmp_path / "x"
    )
    assert missing.exit_code == 2
    assert "pip install tree-sitter-nosuch" in missing.error
