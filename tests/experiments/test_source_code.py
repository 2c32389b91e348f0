"""The experiment on source code at a tiny size."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

pytest.importorskip("tree_sitter_python")

from pushdown_lm.cli.app import app
from pushdown_lm.corpora.code_corpus import CodeOptions
from pushdown_lm.experiments.code_report import comparison, markdown
from pushdown_lm.experiments.experiment import ReproductionError
from pushdown_lm.experiments.results_page import TABLES
from pushdown_lm.experiments.source_code import CodeExperiment, reproduce_code, standard_library
from tests.experiments.test_english import save_recipes


def module(number: int) -> str:
    """A file with functions, some of them with brackets and blocks four deep."""
    return "".join(
        f"def f{name}(a, b):\n    if a[b]:\n        return {name}\n    for c in a:\n"
        f"        if c:\n            print(f(a[{number}]), {{b: c}})\n\n"
        f"x{name} = [{name}, {{{number}: b}}]\n"
        for name in range(8)
    )


def experiment(folder: Path) -> CodeExperiment:
    return CodeExperiment(
        files=tuple(str(folder / f"{number}.py") for number in range(12)),
        corpus=CodeOptions(max_words=30, max_nesting=2, split=(0.4, 0.3, 0.3)),
        vocabulary=400,
        units=3,
        items=2,
        beam=2,
        threshold=2.0,
    )


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("code")
    save_recipes(folder)
    for number in range(12):
        (folder / f"{number}.py").write_text(module(number))
    models = [str(folder / "base.yaml"), str(folder / "pushdown.yaml")]
    options = experiment(folder)
    reproduce_code(folder / "out", folder / "runs", models, [0], options, "pushdown x")
    return folder


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "out" / "results.json").read_text())


def test_results_of_both_models(finished: Path) -> None:
    found = results(finished)
    base, pushdown = found["seeds"]["0"].values()
    trees = found["corpus"]["trees"]
    assert max(map(int, trees["train"]["nesting"])) <= 2 < min(map(int, trees["deep"]["nesting"]))
    assert "gold" not in base["closing"]
    assert base["closing"]["own"].keys() == pushdown["closing"]["gold"].keys()
    for parse in ("own", "gold"):
        for rows in pushdown["closing"][parse].values():
            assert {row["items"] for row in rows.values()} <= {1, 2}
    for name in ("test", "deep"):
        assert pushdown[f"perplexity {name}"]["items"] == 3
        assert pushdown[f"parsing {name}"]["model"]["sentences_with_brackets"] == 3
        assert set(base[f"perplexity {name}"]["perplexities"]) == {"marginal"}


def test_report(finished: Path) -> None:
    found = results(finished)
    table = comparison(found)
    assert TABLES["code"](found) == table
    assert "token perplexity given the gold parse, deep" in table
    assert "closing brackets, nesting over 2: the most probable token, %" in table
    brackets = found["seeds"]["0"]["pushdown"]["closing"]["own"]["brackets"]
    rows = [row for depth, row in brackets.items() if int(depth) > 2]
    bits = sum(row["surprisal"] * row["items"] for row in rows) / sum(row["items"] for row in rows)
    line = next(line for line in table.splitlines() if "brackets, nesting over 2: surp" in line)
    assert line.endswith(f"| {bits:.2f} |")
    text = (finished / "out" / "table.md").read_text()
    assert text == markdown(found)
    assert "Pushdown-LM, gold parse" in text
    assert (finished / "out" / "closing.png").read_bytes().startswith(b"\x89PNG")


def test_nothing_is_done_twice(finished: Path) -> None:
    runs = finished / "runs"
    before = {path: path.stat().st_mtime_ns for path in runs.rglob("*") if path.is_file()}
    models = [str(finished / "base.yaml"), str(finished / "pushdown.yaml")]
    reproduce_code(finished / "out", runs, models, [0], experiment(finished), "pushdown x")
    after = {path: path.stat().st_mtime_ns for path in runs.rglob("*") if path.is_file()}
    changed = {path.parent.name for path in before if before[path] != after[path]}
    assert before.keys() == after.keys()
    assert changed <= {"samples"}
    assert results(finished)["commands"] == ["pushdown x"]


def test_other_sources_need_another_folder(finished: Path) -> None:
    options = CodeExperiment(files=experiment(finished).files)
    with pytest.raises(ReproductionError, match="runs: holds trees of other"):
        reproduce_code(finished / "out2", finished / "runs", [], [0], options)


def test_command(tmp_path: Path) -> None:
    outcome = CliRunner().invoke(app, ["reproduce", "code", str(tmp_path / "none.py")])
    assert "no such file" in str(outcome.exception)


def test_standard_library() -> None:
    files = standard_library()
    names = {path.name for path in files}
    assert {"argparse.py", "ast.py"} <= names
    assert not any("site-packages" in path.parts or "test" in path.parts for path in files)
