"""The paper's tests of one sentence-level model: SG, BLiMP, parsing, perplexity, attention.

The result of each test is a JSON file beside the model, kept as long as the test's data and
settings are the same; single scores are remembered too, so an interrupted test resumes.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from pushdown_lm.evals.evaluation import (
    Evaluation,
    attention_evaluation,
    blimp_evaluation,
    evaluate,
    parsing_evaluation,
    sg_evaluation,
    tree_perplexity_evaluation,
)
from pushdown_lm.evals.sg import SUITE_SETS
from pushdown_lm.files import write_json
from pushdown_lm.search.loading import load_scorer
from pushdown_lm.search.scorer import Scorer

WIDER = ", wider search"

Report = dict[str, Any]


@dataclass(frozen=True)
class TestData:
    """What models are tested with; tests without data are left out."""

    __test__ = False  # not a test of pytest

    trees: dict[str, str] = field(default_factory=dict)
    """Files of gold trees by name, for parsing and perplexity."""
    sg: str | None = None
    """A folder of SG suites; also for the attention on distractors."""
    blimp: str | None = None
    """A folder of BLiMP paradigms."""
    beam: int = 100
    threshold: float | None = 8.0
    limit: int | None = None
    """Items of each suite, pairs of each paradigm, trees of each file."""
    check_beam: bool = False
    """SG and perplexity again with a wider search, to see what pruning does to them."""

    @property
    def tests(self) -> dict[str, Test]:
        """The tests that there is data for, by name, cheapest first."""
        found: dict[str, Test] = {}
        if self.sg:
            found["attention"] = Test(attention_evaluation, self.sg)
        for name, path in self.trees.items():
            found[f"parsing {name}"] = Test(_parsing, path)
        for name, path in self.trees.items():
            found[f"perplexity {name}"] = Test(tree_perplexity_evaluation, path)
        if self.blimp:
            found["blimp"] = Test(blimp_evaluation, self.blimp)
        if self.sg:
            found["sg"] = Test(_sg, self.sg)
            found["sg, running text"] = Test(_running_sg, self.sg)
        if self.check_beam:
            found |= {
                f"{name}{WIDER}": replace(test, is_wider=True)
                for name, test in found.items()
                if name.startswith("perplexity") or name == "sg"
            }
        return found

    def width(self, *, is_wider: bool) -> tuple[int, float | None]:
        """Beam and threshold of the search."""
        if not is_wider:
            return self.beam, self.threshold
        return 2 * self.beam, None if self.threshold is None else self.threshold + 2

    def settings(self, test: str) -> Report:
        """What the result of a test depends on, besides the model."""
        chosen = self.tests[test]
        beam, threshold = self.width(is_wider=chosen.is_wider)
        return {"data": chosen.data, "beam": beam, "threshold": threshold, "limit": self.limit}

    def check(self) -> None:
        """Complain of missing or broken data before hours of training, not after."""
        for test in self.tests.values():
            test.read(test.data, limit=self.limit)


def _parsing(path: str, *, limit: int | None) -> Evaluation:
    return parsing_evaluation([path], limit=limit)


def _sg(path: str, *, limit: int | None) -> Evaluation:
    return sg_evaluation(path, SUITE_SETS["31"], limit=limit)


def _running_sg(path: str, *, limit: int | None) -> Evaluation:
    return sg_evaluation(path, SUITE_SETS["31"], running_text=True, limit=limit)


@dataclass(frozen=True)
class Test:
    """A test and the file or folder that it reads."""

    __test__ = False

    read: Callable[..., Evaluation]
    data: str
    is_wider: bool = False
    """Searches with twice the beam, and a threshold that is 2 nats higher."""


def run_tests(model: str | Path, folder: Path, data: TestData, known: Collection[str] = ()) -> None:
    """Write the results of the tests that have none yet, and are not ``known``, into ``folder``."""
    missing = {
        name: test
        for name, test in data.tests.items()
        if name not in known and test_result(folder, name, data) is None
    }
    for is_wider in (False, True):
        names = [name for name, test in missing.items() if test.is_wider == is_wider]
        if not names:
            continue
        beam, threshold = data.width(is_wider=is_wider)
        scorer = load_scorer(model, beam=beam, threshold=threshold)
        for name in names:
            report: Report = {}
            if _applies(name, scorer, is_wider):
                evaluation = missing[name].read(missing[name].data, limit=data.limit)
                outcome = evaluate(evaluation, scorer, cache=folder / "scores.jsonl")
                report = {} if outcome is None else outcome.report.to_json()
                if outcome is not None and outcome.sentences_per_second is not None:
                    report["sentences_per_second"] = outcome.sentences_per_second
            write_json(_file(folder, name), {**report, "settings": data.settings(name)})


def _applies(name: str, scorer: Scorer, is_wider: bool) -> bool:
    """Whether a model can take a test: parsing asks for parses, attention for attention on words,
    and a wider search for a search."""
    if is_wider:
        return not scorer.is_exact
    if name == "attention":
        return scorer.attends
    return scorer.parses or not name.startswith("parsing")


def test_result(folder: Path, name: str, data: TestData) -> Report | None:
    """What an earlier test with the same settings has found."""
    path = _file(folder, name)
    if not path.exists():
        return None
    report: Report = json.loads(path.read_text(encoding="utf-8"))
    return report if report["settings"] == data.settings(name) else None


test_result.__test__ = False  # type: ignore[attr-defined]


def _file(folder: Path, name: str) -> Path:
    return folder / f"{name.replace(',', '').replace(' ', '-')}.json"
