"""Models of source code: a Base-LM and a Pushdown-LM of Python's standard library.

    RUNS/trees, RUNS/data      the library's trees and the training data
    RUNS/samples               the units that models are tested with
    RUNS/seed0/RECIPE          a training run, with its tests
    OUT/results.json, table.md, closing.png

Units with deep nesting are held out of training (:mod:`pushdown_lm.corpora.code_corpus`), and models
are tested with both kinds. What is finished in RUNS is not done again.
"""

from __future__ import annotations

import sysconfig
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from pushdown_lm.corpora.code_corpus import DEEP, REPORT, CodeOptions, build_code_corpus
from pushdown_lm.data.build import DataOptions, build_data
from pushdown_lm.data.dataset import Data
from pushdown_lm.experiments.english import EnglishOptions, collect
from pushdown_lm.experiments.experiment import ensure_trained
from pushdown_lm.experiments.sentence_tests import Report, TestData, run_tests
from pushdown_lm.files import atomic_write
from pushdown_lm.training.run import MODEL
from pushdown_lm.trees import read_trees, to_brackets

DEFAULT_MODELS = ("code-base", "code")
SETS = ("test", DEEP)
"""What models are tested with: units of files that training has not seen, and those of them that
are nested more deeply than any in training."""

_LEFT_OUT = frozenset(
    {
        "test", "tests", "idle_test",                    # tests
        "site-packages", "dist-packages", "_vendor",     # not of the library
        "encodings", "pydoc_data",                       # tables
    }
)  # fmt: skip


def standard_library() -> list[Path]:
    """The files of the running Python's standard library, without its tests and tables."""
    root = Path(sysconfig.get_path("stdlib"))
    return [
        path
        for path in sorted(root.rglob("*.py"))
        if not _LEFT_OUT.intersection(path.relative_to(root).parts)
    ]


@dataclass(frozen=True)
class CodeExperiment:
    """What the models are trained on and tested with."""

    files: tuple[str, ...] = ()
    """Source files; the standard library if there are none."""
    corpus: CodeOptions = field(
        default_factory=lambda: CodeOptions(max_nesting=4, split=(0.8, 0.03, 0.17))
    )
    vocabulary: int = 4_000
    """Entries of the BPE."""
    max_length: int = 384
    """Longer units, in tokens, are left out of training."""
    units: int = 150
    """Of each set, for perplexity and parsing."""
    beam: int = 8
    threshold: float = 5.0
    overrides: tuple[str, ...] = ()
    """``key=value`` overrides of all recipes."""

    def english(self, runs: Path) -> EnglishOptions:
        """The same as the options of sentence-level models."""
        return EnglishOptions(
            data=str(runs / "data"),
            tests=TestData(
                trees={name: str(_sample(runs, name)) for name in SETS},
                beam=self.beam,
                threshold=self.threshold,
            ),
            overrides=self.overrides,
        )


def prepare(runs: Path, options: CodeExperiment) -> Data:
    """The training data and the samples for the tests, made once."""
    trees = runs / "trees"
    if not (trees / REPORT).exists():
        build_code_corpus(options.files or standard_library(), trees, options.corpus)
    for name in SETS:
        units = list(read_trees(trees / f"{name}.trees"))
        step = max(1, len(units) // options.units)
        with atomic_write(_sample(runs, name)) as file:
            file.writelines(f"{to_brackets(unit)}\n" for unit in units[::step][: options.units])
    return build_data(
        {"train": trees / "train.trees", "valid": trees / "valid.trees"},
        runs / "data",
        DataOptions(
            tokenizer=f"bpe:{options.vocabulary}",
            max_length=options.max_length,
            detokenize=False,
            errors="skip",
        ),
    )


def _sample(runs: Path, name: str) -> Path:
    return runs / "samples" / f"{name}.trees"


def reproduce_code(
    out: str | Path,
    runs: str | Path,
    models: Sequence[str],
    seeds: Sequence[int],
    options: CodeExperiment,
    command: str = "",
) -> Report:
    """Train and test the models of these recipes with every seed; the results of all in ``runs``."""
    out, runs = Path(out), Path(runs)
    shared = options.english(runs)
    recipes = [(seed, shared.recipe(name, seed)) for seed in seeds for name in models]
    data = prepare(runs, options)
    results: Report = {}
    for seed, recipe in recipes:
        run = runs / f"seed{seed}" / recipe.name
        ensure_trained(run, recipe, lambda: data)
        run_tests(run / MODEL, run / "tests", shared.tests)
        results = collect(out, runs, shared, command)
    return results
