"""The documentation: its code runs, and its examples name what exists."""

from __future__ import annotations

import ast
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

import pushdown_lm
from tests.command_line import parse_command
from tests.demo_layout import DEMO, FILES, FOLDERS, build_tiny_demo
from tests.pages import fill_outputs, read_blocks, run_page, shell_commands

ROOT = Path(__file__).parents[1]
PACKAGE = Path(pushdown_lm.__file__).parent
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


@pytest.fixture(scope="session")
def tiny_demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("demo")
    build_tiny_demo(folder)
    return folder


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if any(block.kind != "text" for block in read_blocks(page))],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_code_of_a_page_runs(
    page: Path, tiny_demo: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    DEMO.parent.mkdir()
    shutil.copytree(tiny_demo, DEMO)
    for block, output in run_page(page).items():
        assert output.strip(), f"{block.place}: nothing is printed"
        assert block.text.strip(), f"{block.place}: no output is shown; see tests/pages.py"


def test_what_a_page_prints_is_written_into_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "```python\nx = 6\n```\n```python\nprint(x * 7)\n```\n<!-- output -->\n```text\nold\n```\n"
    )
    fill_outputs(page)
    assert page.read_text().endswith("<!-- output -->\n```text\n42\n```\n")


def test_wrong_code_on_a_page_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text("```pycon\n>>> 6 * 7\n43\n```\n")
    with pytest.raises(AssertionError, match="Expected:\n    43\nGot:\n    42"):
        run_page(page)
    page.write_text("<!-- test: parse -->\n```sh\npushdown parse model --beams 3\n```\n")
    with pytest.raises(Exception, match="No such option: --beams"):
        run_page(page)


# ------------------------------------------------------------------ examples in the source


def strings(path: Path) -> Iterator[tuple[str, str]]:
    """The docstrings and other long strings of a module, each with its place."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and "\n" in node.value:
            yield f"{path.relative_to(PACKAGE)}:{node.lineno}", node.value


def examples() -> list[tuple[str, list[str]]]:
    """The commands that help texts and docstrings show: a place and the arguments of each.

    An example is a paragraph that begins with the command, or with what starts it.
    """
    found = []
    for path in sorted(PACKAGE.rglob("*.py")):
        for place, text in strings(path):
            for paragraph in re.split(r"\n\s*\n", text):
                line = " ".join(paragraph.split())
                if re.match(r"(torchrun .*|echo .*\| )?pushdown \w", line):
                    command, _, _ = line.partition(" > ")
                    found += [(place, words) for _, words in shell_commands(command)]
    return found


EXAMPLES = examples()
LAYOUT = {str(DEMO / name) for name in (*FILES, *FOLDERS)}
WRITTEN = {
    words[at + 1] for _, words in EXAMPLES for at, word in enumerate(words) if word == "--out"
}
"""What one of the examples writes, and another may read."""
ON_THE_HUB = {"smurty/pushdown-bllip"}
REPRODUCED = {"runs/english/seed0", "runs/english/seed0/english"}
"""What `pushdown reproduce` writes."""


def test_examples_are_found() -> None:
    assert len(EXAMPLES) > 25


@pytest.mark.parametrize(("place", "words"), EXAMPLES)
def test_examples_in_help_are_commands(place: str, words: list[str]) -> None:
    parse_command(words)


@pytest.mark.parametrize(("place", "words"), EXAMPLES)
def test_examples_in_help_name_what_exists(place: str, words: list[str]) -> None:
    """A path is one of the demo's or one that an example writes; names of the user's own files and
    folders are single names, or patterns."""
    for word in words:
        if "/" in word and not any(mark in word for mark in "*(=<") and not word.endswith("/"):
            assert word in LAYOUT | WRITTEN | ON_THE_HUB, (
                f"{place}: {word} does not exist after `make demo`"
            )


def test_docstrings_name_what_exists() -> None:
    for path in sorted(PACKAGE.rglob("*.py")):
        for place, text in strings(path):
            for name in re.findall(r"\bruns/[\w/-]+", text):
                known = name in LAYOUT | WRITTEN | REPRODUCED
                assert known, f"{place}: {name} does not exist after `make demo`"


# ------------------------------------------------------------------ the site


def test_every_package_has_its_page() -> None:
    packages = {path.parent.name for path in PACKAGE.glob("*/__init__.py")} - {"cli"}
    assert {path.stem for path in (ROOT / "docs" / "api").glob("*.md")} - {"index"} == packages


def test_the_design_page_lists_the_layers() -> None:
    """In the order of tests/test_imports.py."""
    from tests.test_imports import FLOORS

    table = (
        (ROOT / "docs" / "design.md").read_text(encoding="utf-8").split("| package | holds |")[1]
    )
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    listed = [set(re.findall(r"`(\w+)`", row)) for row in rows]
    assert listed[: len(FLOORS) - 1] == FLOORS[:-1]
