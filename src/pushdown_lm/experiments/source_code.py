"""Models of source code: a Base-LM and a Pushdown-LM of Python's standard library.

    RUNS/trees, RUNS/data      the library's trees and the training data
    RUNS/samples               the units that models are tested with
    RUNS/seed0/RECIPE          a training run, with its tests
    OUT/results.json, table.md, closing.png

Units with deep nesting are held out of training (:mod:`pushdown_lm.corpora.code_corpus`), and
models are tested with both kinds. What is finished in RUNS is not done again.
"""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pushdown_lm.console import error_console, progress
from pushdown_lm.corpora.code_corpus import DEEP, REPORT, CodeOptions, build_code_corpus
from pushdown_lm.data.build import DataOptions, build_data
from pushdown_lm.data.dataset import Data
from pushdown_lm.evals.closing import by_nesting, draw_prefixes, evaluate_closing
from pushdown_lm.experiments.english import EnglishOptions, collect
from pushdown_lm.experiments.experiment import ReproductionError, ensure_trained
from pushdown_lm.experiments.sentence_tests import Report, TestData, run_tests
from pushdown_lm.files import atomic_write, write_json
from pushdown_lm.search.beam import SearchError
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from pushdown_lm.training.run import MODEL
from pushdown_lm.trees import Tree, read_trees, to_brackets

DEFAULT_MODELS = ("code-base", "code")
SETS = ("test", DEEP)
"""What models are tested with: units of files that training has not seen, and those of them that
are nested more deeply than any in training."""

CLOSING_FILE = Path("tests", "closing.json")

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
    units: int = 100
    """Of each set, for perplexity and parsing."""
    items: int = 40
    """Closing words of each kind and nesting, of all units of both sets."""
    beam: int = 8
    threshold: float = 5.0
    overrides: tuple[str, ...] = ()
    """``key=value`` overrides of all recipes."""

    @property
    def closing_settings(self) -> Report:
        """What the test of closing words depends on, besides the model and the trees."""
        return {name: getattr(self, name) for name in ("items", "beam", "threshold")}

    def sample(self, runs: Path, name: str) -> Path:
        """The units of a set that perplexity and parsing are tested with."""
        return runs / "samples" / f"{name}-{self.units}.trees"

    def english(self, runs: Path) -> EnglishOptions:
        """The same as the options of sentence-level models."""
        return EnglishOptions(
            data=str(runs / "data"),
            tests=TestData(
                trees={name: str(self.sample(runs, name)) for name in SETS},
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
    made_with = json.loads((trees / REPORT).read_text(encoding="utf-8"))["options"]
    if made_with != json.loads(json.dumps(asdict(options.corpus))):
        raise ReproductionError(
            f"{runs}: holds trees of other options; choose another --runs folder or delete it"
        )
    for name in SETS:
        units = list(read_trees(trees / f"{name}.trees"))
        step = max(1, len(units) // options.units)
        with atomic_write(options.sample(runs, name)) as file:
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


def reproduce_code(
    out: str | Path,
    runs: str | Path,
    models: Sequence[str],
    seeds: Sequence[int],
    options: CodeExperiment,
    command: str = "",
) -> Report:
    """Train and test the models of these recipes with every seed; the results of all in ``runs``.

    Results, table and plot are written to ``out`` after each model.
    """
    from pushdown_lm.experiments.code_report import write_report

    out, runs = Path(out), Path(runs)
    shared = options.english(runs)
    recipes = [(seed, shared.recipe(name, seed)) for seed in seeds for name in models]
    data = prepare(runs, options)
    results: Report = {}
    for seed, recipe in recipes:
        error_console().print(f"{recipe.title}, seed {seed}", highlight=False)
        run = runs / f"seed{seed}" / recipe.name
        ensure_trained(run, recipe, lambda: data)
        run_tests(run / MODEL, run / "tests", shared.tests)
        test_closing(run, runs, options)
        results = collect_code(out, runs, options, command)
        write_report(out, results)
    return results


# ------------------------------------------------------------------ closing brackets and blocks


def test_closing(run: Path, runs: Path, options: CodeExperiment) -> None:
    """Write how a model closes brackets and blocks, unless it is written."""
    if _closing_result(run, options) is not None:
        return
    units = read_trees([runs / "trees" / f"{name}.trees" for name in SETS])
    scorer = PushdownScorer.from_pretrained(
        run / MODEL, beam=options.beam, threshold=options.threshold
    )
    prefixes = draw_prefixes(_readable(scorer, units), options.items)
    with progress("Closing", len(prefixes), "prefixes") as advance:
        scores = evaluate_closing(scorer, prefixes, advance=advance)
    write_json(
        run / CLOSING_FILE,
        {
            "settings": options.closing_settings,
            "own": by_nesting(prefixes, scores.own),
            **({} if scores.gold is None else {"gold": by_nesting(prefixes, scores.gold)}),
        },
    )


test_closing.__test__ = False  # type: ignore[attr-defined]


def _readable(scorer: PushdownScorer, units: Iterable[Tree]) -> Iterator[Tree]:
    """Those that the model has the positions for."""
    for unit in units:
        with suppress(SearchError):
            scorer.encode(unit.words)
            yield unit


def _closing_result(run: Path, options: CodeExperiment) -> Report | None:
    """What an earlier test with the same settings has found."""
    path = run / CLOSING_FILE
    if not path.exists():
        return None
    found: Report = json.loads(path.read_text(encoding="utf-8"))
    return found if found["settings"] == options.closing_settings else None


# ------------------------------------------------------------------ results


def collect_code(out: Path, runs: Path, options: CodeExperiment, command: str) -> Report:
    """Everything that is finished in ``runs`` and was tested with these options."""
    shared = options.english(Path())
    results = collect(out, runs, options.english(runs), command)
    for seed, of_seed in results["seeds"].items():
        for name, found in of_seed.items():
            closing = _closing_result(runs / f"seed{seed}" / name, options)
            if closing is not None:
                found["closing"] = closing
    corpus = json.loads((runs / "trees" / REPORT).read_text(encoding="utf-8"))
    return {
        **results,
        "options": {**asdict(shared), **asdict(options)},
        "corpus": {
            **corpus,
            "skipped_files": {r: len(f) for r, f in corpus["skipped_files"].items()},
        },
    }
