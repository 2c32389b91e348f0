"""Sentence-level language models (section 4.2): Base-LM and Pushdown-LM on the paper's tests.

    RUNS/seed0/base, RUNS/seed0/pushdown    training runs; with each, evals/SUITE.json
    OUT/results.json, table.md

What is finished in RUNS is not done again, and the results are of all that is finished there.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from statistics import mean
from typing import TYPE_CHECKING, Any

from pushdown_lm.console import error_console, sentence_progress
from pushdown_lm.data.dataset import load_data
from pushdown_lm.experiments.experiment import (
    ReproductionError,
    ensure_trained,
    how_made,
    markdown_table,
    provenance,
)
from pushdown_lm.files import atomic_write, write_json
from pushdown_lm.search.loading import EvaluationScorer, load_scorer
from pushdown_lm.search.scorer import ScoreCache
from pushdown_lm.training.recipe import Recipe, load_recipe
from pushdown_lm.training.run import METRICS, MODEL
from pushdown_lm.training.trainer import METRICS_LOG

if TYPE_CHECKING:
    from pushdown_lm.evals.blimp import MinimalPair
    from pushdown_lm.evals.sg import Suite
    from pushdown_lm.trees import Tree

TITLES = {"base": "Base-LM", "pushdown": "Pushdown-LM"}
CHANGES = {"base": ["model.pushdown_layers=none"], "pushdown": []}
"""What each model changes in the recipe."""
CHUNK = 128
"""Sentences that are scored before the results are remembered."""

Report = dict[str, Any]


@dataclass(frozen=True)
class SentenceOptions:
    """What the models are trained on and tested with."""

    data: str
    """A dataset made by `pushdown data build`."""
    trees: str | None = None
    """Gold trees, for parsing and perplexity."""
    sg: str | None = None
    """A folder of SG suites; also for the attention on distractors."""
    blimp: str | None = None
    """A folder of BLiMP paradigms."""
    recipe: str = "english-small"
    """Of the Pushdown-LM; the Base-LM is the same without pushdown layers."""
    overrides: tuple[str, ...] = ()
    """``key=value`` overrides of both recipes."""
    pretrained: dict[str, str] = field(default_factory=dict)
    """By model, what is trained further instead of the recipe's pretrained model."""
    beam: int = 100
    threshold: float | None = 6.0
    limit: int | None = None
    """Items of each suite, pairs of each paradigm, trees of each file."""

    def of_suite(self, suite: str) -> Report:
        """What the result of a suite depends on, besides the model."""
        names = (EVALUATIONS[suite][1], "beam", "threshold", "limit")
        return {name: getattr(self, name) for name in names}


Evaluation = Callable[[EvaluationScorer, Path, SentenceOptions], Report]


def reproduce_sentences(
    out: str | Path,
    runs: str | Path,
    models: Sequence[str],
    seeds: Sequence[int],
    options: SentenceOptions,
    command: str = "",
) -> Report:
    """Train and test every model with every seed; the results of all that ``runs`` holds.

    The results and the table are written to ``out`` after each model.
    """
    out, runs = Path(out), Path(runs)
    unknown = [model for model in models if model not in TITLES]
    if unknown:
        raise ReproductionError(f"model: expected one of {', '.join(TITLES)}, got {unknown[0]!r}")
    _check_sources(options)
    results: Report = {}
    for seed in seeds:
        for model in models:
            error_console().print(f"{TITLES[model]}, seed {seed}", highlight=False)
            run = runs / f"seed{seed}" / model
            ensure_trained(run, _recipe(options, model, seed), lambda: load_data(options.data))
            _test(run, options)
            results = _results(out, runs, options, command)
            write_json(out / "results.json", results)
            with atomic_write(out / "table.md") as file:
                file.write(markdown(results))
    return results


# ------------------------------------------------------------------ one model


def _recipe(options: SentenceOptions, model: str, seed: int) -> Recipe:
    changes = [*options.overrides, f"training.seed={seed}", *CHANGES[model]]
    if model in options.pretrained:
        changes.append(f"model.pretrained={options.pretrained[model]}")
    return load_recipe(options.recipe, changes)


def _test(run: Path, options: SentenceOptions) -> None:
    """Write the results of the suites that have none yet."""
    missing = [suite for suite in _chosen(options) if _suite_result(run, suite, options) is None]
    if not missing:
        return
    scorer = load_scorer(run / MODEL, beam=options.beam, threshold=options.threshold)
    for suite in missing:
        evaluate, _ = EVALUATIONS[suite]
        report = evaluate(scorer, run / "evals", options)
        write_json(_suite_file(run, suite), {**report, "options": options.of_suite(suite)})


def _chosen(options: SentenceOptions) -> list[str]:
    """The suites that there is data for."""
    return [suite for suite, (_, source) in EVALUATIONS.items() if getattr(options, source)]


def _check_sources(options: SentenceOptions) -> None:
    """Complain of missing or broken test data before hours of training, not after."""
    if options.sg is not None:
        _sg_suites(options)
    if options.trees is not None:
        _gold_trees(options)
    if options.blimp is not None:
        _pairs(options)


def _attention(scorer: EvaluationScorer, folder: Path, options: SentenceOptions) -> Report:
    from pushdown_lm.evals.attention import REGIONS, agreement_prefixes, evaluate_attention

    suites = _suites(options, tuple(REGIONS))
    total = sum(len(agreement_prefixes(suite, REGIONS[suite.name])) for suite in suites)
    with sentence_progress("Attention", total) as progress:
        return evaluate_attention(scorer, suites, progress=progress).to_json()


def _parsing(scorer: EvaluationScorer, folder: Path, options: SentenceOptions) -> Report:
    from pushdown_lm.evals.parsing import evaluate_parsing

    gold = _gold_trees(options)
    with sentence_progress("Parsing", len(gold)) as progress:
        return evaluate_parsing(
            _remembering(scorer, folder), gold, chunk_size=CHUNK, progress=progress
        ).to_json()


def _perplexity(scorer: EvaluationScorer, folder: Path, options: SentenceOptions) -> Report:
    from pushdown_lm.evals.tree_perplexity import evaluate_tree_perplexity

    gold = _gold_trees(options)
    with sentence_progress("Perplexity", len(gold)) as progress:
        return evaluate_tree_perplexity(
            scorer,
            gold,
            through=_remembering(scorer, folder),
            chunk_size=CHUNK,
            progress=progress,
        ).to_json()


def _blimp(scorer: EvaluationScorer, folder: Path, options: SentenceOptions) -> Report:
    from pushdown_lm.evals.blimp import evaluate_blimp

    pairs = _pairs(options)
    sentences = {sentence for pair in pairs for sentence in (pair.good, pair.bad)}
    with sentence_progress("BLiMP", len(sentences)) as progress:
        return evaluate_blimp(
            _remembering(scorer, folder), pairs, chunk_size=CHUNK, progress=progress
        ).to_json()


def _sg(scorer: EvaluationScorer, folder: Path, options: SentenceOptions) -> Report:
    from pushdown_lm.evals.sg import evaluate_sg

    suites = _sg_suites(options)
    total = sum(len(item.conditions) for suite in suites for item in suite.items)
    with sentence_progress("SG", total) as progress:
        return evaluate_sg(
            _remembering(scorer, folder), suites, chunk_size=CHUNK, progress=progress
        ).to_json()


EVALUATIONS: dict[str, tuple[Evaluation, str]] = {
    "attention": (_attention, "sg"),
    "parsing": (_parsing, "trees"),
    "perplexity": (_perplexity, "trees"),
    "blimp": (_blimp, "blimp"),
    "sg": (_sg, "sg"),
}
"""Each suite and the data that it needs, cheapest first."""


def _remembering(scorer: EvaluationScorer, folder: Path) -> ScoreCache:
    return ScoreCache(scorer, folder / "scores.jsonl")


def _pairs(options: SentenceOptions) -> list[MinimalPair]:
    from pushdown_lm.evals.blimp import load_blimp

    paradigms: dict[str, list[MinimalPair]] = {}
    for pair in load_blimp(Path(options.blimp or "")):
        paradigms.setdefault(pair.paradigm, []).append(pair)
    return [pair for members in paradigms.values() for pair in members[: options.limit]]


def _sg_suites(options: SentenceOptions) -> list[Suite]:
    from pushdown_lm.evals.sg import SUITE_SETS

    return _suites(options, tuple(SUITE_SETS["31"]))


def _suites(options: SentenceOptions, names: Sequence[str]) -> list[Suite]:
    from pushdown_lm.evals.sg import load_suites

    suites = load_suites(Path(options.sg or ""), names)
    return [replace(suite, items=suite.items[: options.limit]) for suite in suites]


def _gold_trees(options: SentenceOptions) -> list[Tree]:
    from pushdown_lm.trees import binarize, read_trees

    return [binarize(tree) for tree in list(read_trees(options.trees or ""))[: options.limit]]


def _suite_file(run: Path, suite: str) -> Path:
    return run / "evals" / f"{suite}.json"


def _suite_result(run: Path, suite: str, options: SentenceOptions) -> Report | None:
    """What an earlier test with the same settings has found."""
    path = _suite_file(run, suite)
    if not path.exists():
        return None
    report: Report = json.loads(path.read_text(encoding="utf-8"))
    return report if report["options"] == options.of_suite(suite) else None


# ------------------------------------------------------------------ results


def _results(out: Path, runs: Path, options: SentenceOptions, command: str) -> Report:
    """Everything that is finished in ``runs`` and was tested with these options."""
    seeds: Report = {}
    for folder in sorted(runs.glob("seed*"), key=lambda folder: int(folder.name[len("seed") :])):
        for model in TITLES:
            found = {
                suite: report
                for suite in _chosen(options)
                if (report := _suite_result(folder / model, suite, options)) is not None
            }
            if found:
                of_seed = seeds.setdefault(folder.name[len("seed") :], {})
                of_seed[model] = {**_training(folder / model), **found}
    return {**provenance(out, command), "options": asdict(options), "seeds": seeds}


def _training(run: Path) -> Report:
    """How training went and, of a pretrained model, how good it was before."""
    found = {"training": json.loads((run / METRICS).read_text(encoding="utf-8"))}
    with (run / METRICS_LOG).open(encoding="utf-8") as lines:
        first = json.loads(next(lines))
    if first["step"] == 0:
        found["before"] = first
    return found


FIGURES: dict[str, tuple[tuple[str, ...], float, str]] = {
    "SG suites (31), accuracy, %": (("sg", "accuracy"), 100, ".1f"),
    "BLiMP, accuracy, %": (("blimp", "accuracy"), 100, ".1f"),
    "perplexity of a word": (
        ("perplexity", "perplexities", "marginal", "word_perplexity"),
        1,
        ".1f",
    ),
    "perplexity of a token": (
        ("perplexity", "perplexities", "marginal", "token_perplexity"),
        1,
        ".1f",
    ),
    "perplexity of a token, given the gold parse": (
        ("perplexity", "perplexities", "conditional", "token_perplexity"),
        1,
        ".1f",
    ),
    "validation perplexity before training": (("before", "perplexity"), 1, ".2f"),
    "validation perplexity after training": (("training", "perplexity"), 1, ".2f"),
    "attachment accuracy, given the gold parse so far, %": (
        ("training", "attachment_accuracy"),
        100,
        ".1f",
    ),
    "parsing F1": (("parsing", "model", "f1"), 100, ".1f"),
    "parsing F1, right-branching trees": (
        ("parsing", "baselines", "right-branching", "f1"),
        100,
        ".1f",
    ),
    "attention on the head noun, %": (("attention", "head"), 100, ".2f"),
    "attention on the distractor, %": (("attention", "distractor"), 100, ".2f"),
    "training, seconds": (("training", "training_seconds"), 1, ",.0f"),
    "parameters": (("training", "parameters"), 1, ",.0f"),
}
"""Title, place in the results, factor and format of each line of the table."""


def comparison(results: Report) -> str:
    """The models beside each other."""
    return markdown_table(["", *TITLES.values()], comparison_rows(results))


def comparison_rows(results: Report) -> list[list[str]]:
    """A line for each figure: means over seeds, with the range where there are several."""
    rows = []
    for title, (path, factor, pattern) in FIGURES.items():
        cells = [_cell(_values(results, model, path), factor, pattern) for model in TITLES]
        if any(cells):
            rows.append([title, *cells])
    return rows


def _values(results: Report, model: str, path: Sequence[str]) -> list[float]:
    """A figure of a model, from each seed that has it."""
    values = []
    for of_seed in results["seeds"].values():
        value: Any = of_seed.get(model, {})
        for key in path:
            value = value.get(key, {})
        if value != {}:
            values.append(float(value))
    return values


def _cell(values: Sequence[float], factor: float, pattern: str) -> str:
    if not values:
        return ""
    average = format(factor * mean(values), pattern)
    if len(values) == 1:
        return average
    low, high = (format(factor * bound, pattern) for bound in (min(values), max(values)))
    return f"{average} [{low} to {high}]"


def _by_part(results: Report, title: str, suite: str, parts: str) -> list[str]:
    """A section of accuracies by circuit or field, if there are any."""
    names: dict[str, None] = {}
    for of_seed in results["seeds"].values():
        for found in of_seed.values():
            names |= dict.fromkeys(found.get(suite, {}).get(parts, {}))
    rows = [
        [
            name,
            *(_cell(_values(results, model, (suite, parts, name)), 100, ".1f") for model in TITLES),
        ]
        for name in names
    ]
    return (
        [f"## {title}\n", markdown_table(["accuracy, %", *TITLES.values()], rows)] if rows else []
    )


def markdown(results: Report) -> str:
    """The whole report."""
    options = results["options"]
    parts = [
        "# Sentence-level language models\n",
        f"Recipe {options['recipe']}, seeds {', '.join(results['seeds'])}; Pushdown-LM scored with "
        f"beam {options['beam']} and threshold {options['threshold']} nats, Base-LM exactly; both "
        "parse by beam search.\n",
        comparison(results),
        *_by_part(results, "SG circuits", "sg", "circuits"),
        *_by_part(results, "BLiMP fields", "blimp", "fields"),
        how_made(results),
    ]
    return "\n".join(parts)
