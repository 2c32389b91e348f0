"""Tables of a Markdown file, from the results that experiments have written.

    <!-- table: results/dyck -->
    ... replaced by the table of results/dyck/results.json ...
    <!-- end -->

``python -m pushdown_lm.experiments.results_page docs/results.md`` brings all of a file's tables up
to date.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from pushdown_lm.experiments import code_report, demo, dyck_report, english, pretrained
from pushdown_lm.experiments.experiment import ReproductionError
from pushdown_lm.files import atomic_write

TABLES: dict[str, Callable[[dict[str, Any]], str]] = {
    "code": code_report.comparison,
    "demo": demo.markdown,
    "dyck": dyck_report.paper_table,
    "dyck-quick": dyck_report.accuracy_table,
    "english": english.comparison,
    "english-ablations": english.ablation_table,
    "english-baselines": english.comparison,
    "english-shares": english.share_table,
    "pretrained": pretrained.comparison,
    "pretrained-tenth": english.ablation_table,
}
"""The table of each experiment, by the name of its folder."""
_PLACE = re.compile(r"(<!-- table: (\S+) -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def read_table(folder: Path) -> str:
    """The table of the experiment whose results are in a folder."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    return TABLES[folder.name](results)


def with_tables(page: Path) -> str:
    """The text of a page with its tables made anew; their folders are relative to the page."""

    def table(place: re.Match[str]) -> str:
        folder = page.parent / place[2]
        if folder.name not in TABLES:
            raise ReproductionError(f"{page}: no experiment writes a table to {place[2]}")
        return f"{place[1]}\n{read_table(folder)}\n{place[4]}"

    return _PLACE.sub(table, page.read_text(encoding="utf-8"))


if __name__ == "__main__":
    for name in sys.argv[1:]:
        text = with_tables(Path(name))
        with atomic_write(Path(name)) as file:
            file.write(text)
