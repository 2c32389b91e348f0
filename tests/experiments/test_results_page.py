"""Tables of documents are those of the results beside them."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from pushdown_lm.experiments.experiment import ReproductionError
from pushdown_lm.experiments.results_page import with_tables

ROOT = Path(__file__).parents[2]


def test_the_results_page_is_up_to_date() -> None:
    """If not: `make results`."""
    page = ROOT / "docs" / "results.md"
    assert with_tables(page) == page.read_text(encoding="utf-8")


def test_tables_are_replaced(tmp_path: Path) -> None:
    shutil.copytree(ROOT / "results" / "demo", tmp_path / "results" / "demo")
    page = tmp_path / "page.md"
    page.write_text("before\n<!-- table: results/demo -->\nold\n<!-- end -->\nafter\n")
    table = (tmp_path / "results" / "demo" / "table.md").read_text()
    expected = f"before\n<!-- table: results/demo -->\n\n{table}\n<!-- end -->\nafter\n"
    assert with_tables(page) == expected


def test_a_folder_that_no_experiment_writes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("<!-- table: results/other -->\n<!-- end -->\n")
    with pytest.raises(ReproductionError, match="no experiment writes a table to results/other"):
        with_tables(page)
