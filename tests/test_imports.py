"""Imports go down one list of packages, lazy and typing imports included."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import pushdown_lm

PACKAGE = Path(pushdown_lm.__file__).parent
FLOORS = [
    {"errors", "registration"},
    {"console", "files", "machine", "svg"},
    {"trees"},
    {"viz"},
    {"data"},
    {"model"},
    {"training"},
    {"search"},
    {"corpora"},
    {"evals"},
    {"explorer"},
    {"experiments"},
    {"bench", "integrations"},
    {"cli"},
    {"__main__"},
]
"""From the ground up; a module may import what lies below, and its own package."""
LEVEL = {name: level for level, floor in enumerate(FLOORS) for name in floor}


def imported(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of each of our modules that a file imports, anywhere in it."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield node.lineno, f"{node.module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name


def package_of(name: str) -> str | None:
    """The package, or the module of the ground floor, that a full name belongs to."""
    parts = name.split(".")
    return parts[1] if parts[0] == "pushdown_lm" and len(parts) > 1 and parts[1] in LEVEL else None


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(PACKAGE.rglob("*.py")) if path != PACKAGE / "__init__.py"],
    ids=lambda path: str(path.relative_to(PACKAGE)),
)
def test_imports_go_down(path: Path) -> None:
    own = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    assert own in LEVEL, f"{own}: give it a floor in this test and in docs/design.md"
    for line, name in imported(path):
        package = package_of(name)
        if package is not None and package != own:
            assert LEVEL[package] < LEVEL[own], f"{path}:{line} imports {name} from above"


def test_no_module_is_longer_than_600_lines() -> None:
    sizes = {path: len(path.read_text().splitlines()) for path in PACKAGE.rglob("*.py")}
    assert [path for path, lines in sizes.items() if lines > 600] == []


@pytest.mark.parametrize("package", ["evals", "experiments", "integrations", "cli"])
def test_no_caller_asks_for_the_class_of_a_scorer(package: str) -> None:
    """What a model can do, its scorer tells."""
    for path in (PACKAGE / package).rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Call) and ast.unparse(node.func) in ("isinstance", "type"):
                assert "Scorer" not in ast.unparse(node), f"{path}:{node.lineno}"


@pytest.mark.parametrize(
    "module", ["model.decoder_model", "model.relative_decoder", "evals.tree_perplexity"]
)
def test_a_module_imported_first_leaves_the_auto_classes_complete(module: str) -> None:
    """Also one that our models need themselves, and that is what imports Transformers."""
    code = (
        f"import pushdown_lm.{module}\n"
        "from transformers import AutoModelForCausalLM\n"
        "from pushdown_lm.model.configuration import PushdownConfig\n"
        "print(PushdownConfig in AutoModelForCausalLM._model_mapping)\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (0, "True\n"), done.stderr


def test_modules_that_windows_lacks_are_imported_where_they_are_used() -> None:
    unix_only = {"resource", "fcntl", "pwd", "grp", "termios"}
    for path in sorted(PACKAGE.rglob("*.py")):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            names = {alias.name for alias in getattr(node, "names", ())}
            names.add(getattr(node, "module", None) or "")
            assert not names & unix_only, f"{path}:{node.lineno}"
