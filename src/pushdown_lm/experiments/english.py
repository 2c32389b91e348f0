"""Sentence-level language models (section 4.2): several recipes, trained alike, on one table.

    RUNS/seed0/RECIPE          the training run of a model, with its tests in RUNS/.../tests
    OUT/results.json           all that is finished
    OUT/table.md, curves.png

What is finished in RUNS is not done again, so further models and seeds add to the table. So do
models of an earlier results.json whose runs are elsewhere, with those of their tests that had the
same settings. Installed models, and adapters, can be tested in the place of trained ones.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from statistics import mean
from typing import Any

from pushdown_lm.console import error_console
from pushdown_lm.data.dataset import load_data
from pushdown_lm.experiments import plots
from pushdown_lm.experiments.experiment import (
    ReproductionError,
    ensure_trained,
    how_made,
    markdown_table,
    provenance,
)
from pushdown_lm.experiments.sentence_tests import WIDER, Report, TestData, run_tests, test_result
from pushdown_lm.files import atomic_write, write_json
from pushdown_lm.search.packaged import PROVENANCE, find_model
from pushdown_lm.training.adapters import apply_adapter
from pushdown_lm.training.recipe import Recipe, load_recipe
from pushdown_lm.training.run import METRICS, MODEL, RECIPE, is_finished
from pushdown_lm.training.trainer import METRICS_LOG

ORDER = (
    *("english-base-quarter", "english-quarter", "english-base-half", "english-half"),
    "english-base",
    "english-multitask",
    "english-plm",
    "english-plm-mask",
    "english-tg",
    "english-paper",
    "english",
    *("embedding", "depths", "upper-layers", "all-layers", "open-distance"),
    *("on-values", "small-init", "large-init", "half-weight", "double-weight", "adamw"),
    *(f"{name}{kind}" for name in ("gpt2-medium", "smollm2") for kind in ("-base", "-multitask")),
    *("gpt2-medium", "smollm2-paper", "smollm2"),
    *("code-base", "code"),
)
"""Of the models in the table."""
INSTALLED = "installed.json"
"""What is known of an installed model, in the folder of its run."""
RUN_PARTS = ("recipe", "training", "curve", "before")
"""What the results say of a model besides its tests."""


@dataclass(frozen=True)
class EnglishOptions:
    """What the models are trained on and tested with."""

    data: str
    """A dataset made by `pushdown data build`."""
    tests: TestData = field(default_factory=TestData)
    overrides: tuple[str, ...] = ()
    """``key=value`` overrides of all recipes."""
    pretrained: dict[str, str] = field(default_factory=dict)
    """By recipe, what is trained further instead of the recipe's pretrained model."""
    installed: bool = False
    """Whether installed models of the recipes' names are tested, and none is trained."""
    adapters: dict[str, str] = field(default_factory=dict)
    """By recipe, an adapter that is put on its pretrained model, in the place of training."""

    def trains(self, name: str) -> bool:
        """Whether the model of a recipe is trained here."""
        return not self.installed and name not in self.adapters

    def recipe(self, name: str, seed: int) -> Recipe:
        changes = [*self.overrides, f"training.seed={seed}"]
        if start := self.pretrained.get(Path(name).stem):
            changes.append(f"model.pretrained={start}")
        return load_recipe(name, changes)


def reproduce_english(
    out: str | Path,
    runs: str | Path,
    models: Sequence[str],
    seeds: Sequence[int],
    options: EnglishOptions,
    command: str = "",
) -> Report:
    """Train and test the models of these recipes with every seed; the results of all in ``runs``.

    The results and the table are written to ``out`` after each model.
    """
    out, runs = Path(out), Path(runs)
    recipes = [(seed, options.recipe(name, seed)) for seed in seeds for name in models]
    options.tests.check()
    results: Report = {}
    for seed, recipe in recipes:
        error_console().print(f"{recipe.title}, seed {seed}", highlight=False)
        run = runs / f"seed{seed}" / recipe.name
        known: Collection[str] = ()
        if options.trains(recipe.name):
            ensure_trained(run, recipe, lambda: load_data(options.data))
            model: str | Path = run / MODEL
        else:
            model = _find_trained(run, recipe, options)
            earlier, _ = _collect_earlier(out, options)
            known = earlier.get(str(seed), {}).get(recipe.name, ())
        run_tests(model, run / "tests", options.tests, known)
        results = collect(out, runs, options, command)
        write_report(out, results)
    return results


def _find_trained(run: Path, recipe: Recipe, options: EnglishOptions) -> str | Path:
    """A model that others have trained: installed, or an adapter put on its pretrained model."""
    adapter = options.adapters.get(recipe.name)
    folder = find_model(recipe.name) if adapter is None else Path(adapter)
    described = describe_installed(folder, recipe.training.seed)
    if (run / MODEL).exists() and _read_json(run / INSTALLED) != described:
        raise ReproductionError(
            f"{run}: has the model of another training; choose another --runs folder or delete it"
        )
    write_json(run / INSTALLED, described)
    if adapter is None:
        return recipe.name
    if not (run / MODEL).exists():
        apply_adapter(adapter, run / MODEL, base=options.pretrained.get(recipe.name))
    return run / MODEL


def _read_json(path: Path) -> Report:
    """The content of a file; nothing where there is none."""
    report: Report = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return report


def write_report(out: Path, results: Report) -> None:
    """The results as JSON, as a table and as a plot of the training curves."""
    write_json(out / "results.json", results)
    with atomic_write(out / "table.md") as file:
        file.write(markdown(results))
    first = next(iter(results["seeds"].values()))
    curves = {results["titles"][model]: found["curve"] for model, found in first.items()}
    if any(curves.values()):
        with atomic_write(out / "curves.png", "wb") as file:
            plots.training_curves(file, curves)


# ------------------------------------------------------------------ results


def collect(out: Path, runs: Path, options: EnglishOptions, command: str) -> Report:
    """Everything that is finished and was tested with these options.

    What experiments that build on this one have added to an earlier ``results.json`` stays.
    """
    seeds, titles = _collect_earlier(out, options)
    for folder in sorted(runs.glob("seed*"), key=_seed):
        for run in sorted(folder.iterdir()):
            found = {
                name: report
                for name in options.tests.tests
                if (report := test_result(run / "tests", name, options.tests)) is not None
            }
            of_seed = seeds.setdefault(str(_seed(folder)), {})
            if is_finished(run):
                titles[run.name] = load_recipe(run / RECIPE).title
                of_seed[run.name] = {**describe_run(run), **found}
            elif (run / INSTALLED).exists():
                described = json.loads((run / INSTALLED).read_text(encoding="utf-8"))
                titles[run.name] = described.pop("title")
                of_seed[run.name] = {**described, **of_seed.get(run.name, {}), **found}
    return {
        **_read_json(out / "results.json"),
        **provenance(out, command),
        "options": asdict(options),
        "titles": {name: titles[name] for name in sorted(titles, key=_place)},
        "seeds": {
            seed: {name: seeds[seed][name] for name in sorted(seeds[seed], key=_place)}
            for seed in sorted(seeds, key=int)
        },
    }


def _collect_earlier(out: Path, options: EnglishOptions) -> tuple[Report, dict[str, str]]:
    """The models of an earlier ``results.json``, and their titles."""
    earlier = _read_json(out / "results.json")
    if not earlier:
        return {}, {}
    wanted = options.tests.tests
    seeds = {
        seed: {
            model: {
                name: part
                for name, part in found.items()
                if name in RUN_PARTS
                or (name in wanted and part["settings"] == options.tests.settings(name))
            }
            for model, found in models.items()
        }
        for seed, models in earlier["seeds"].items()
    }
    return seeds, earlier["titles"]


def _place(model: str) -> tuple[int, str]:
    """Where a model stands in the table: known ones in their order, then others by name."""
    return (ORDER.index(model) if model in ORDER else len(ORDER)), model


def _seed(folder: Path) -> int:
    return int(folder.name.removeprefix("seed"))


def describe_installed(model: Path, seed: int) -> Report:
    """How an installed model or an adapter was trained, by what its folder says."""
    if not (model / PROVENANCE).is_file():
        raise ReproductionError(
            f"{model}: found no {PROVENANCE}, which `pushdown adapter save` adds to an adapter"
        )
    said = json.loads((model / PROVENANCE).read_text(encoding="utf-8"))
    recipe = said["recipe"]
    if recipe["training"]["seed"] != seed:
        raise ReproductionError(
            f"{model}: was trained with seed {recipe['training']['seed']}, expected {seed}"
        )
    return {
        "title": recipe["title"],
        "recipe": {name: recipe[name] for name in ("model", "training")},
        "training": _add_tokens(said["metrics"], recipe["training"]["tokens_per_batch"]),
        "curve": [],
    }


def _add_tokens(training: Report, tokens_per_batch: int | None) -> Report:
    """The metrics of a training with how many tokens it read, and how fast."""
    if tokens_per_batch:
        training["tokens"] = training["steps"] * tokens_per_batch
        training["tokens_per_second"] = training["tokens"] / training["training_seconds"]
    return training


def describe_run(run: Path) -> Report:
    """How training went: the final metrics, and the validation losses on the way."""
    with (run / METRICS_LOG).open(encoding="utf-8") as lines:
        records = [json.loads(line) for line in lines]
    evaluations = [record for record in records if record["kind"] == "eval"]
    recipe = load_recipe(run / RECIPE)
    found: Report = {
        "recipe": recipe.model_dump(include={"model", "training"}),
        "training": json.loads((run / METRICS).read_text(encoding="utf-8")),
        "curve": [
            {"step": record["step"], "lm_loss": record["lm_loss"]}
            | ({"attachment_loss": value} if (value := record.get("attachment_loss")) else {})
            for record in evaluations
        ],
    }
    training = _add_tokens(found["training"], recipe.training.tokens_per_batch)
    if recipe.model.kind != "pushdown":  # losses are over brackets, too
        found["curve"] = []
        training["symbol_perplexity"] = training.pop("perplexity", None)
    if evaluations and evaluations[0]["step"] == 0:
        found["before"] = evaluations[0]
    return found


# ------------------------------------------------------------------ the table


@dataclass(frozen=True)
class Figure:
    """A line of the table: its title, its place in the results, a factor and a format."""

    title: str
    path: tuple[str, ...]
    factor: float = 1
    pattern: str = ".1f"


def figures(results: Report) -> list[Figure]:
    """The lines of the table, for the tests that were run."""
    named = results["options"]["tests"]["trees"]
    lines = [
        Figure("SG suites (31), accuracy, %", ("sg", "accuracy"), 100),
        Figure("SG suites (31), wider search, %", (f"sg{WIDER}", "accuracy"), 100),
        Figure("SG suites (31) as running text, %", ("sg, running text", "accuracy"), 100),
        Figure("BLiMP, accuracy, %", ("blimp", "accuracy"), 100),
    ]
    for name in named:
        place = (f"perplexity {name}", "perplexities")
        lines += [
            Figure(f"word perplexity, {name}", (*place, "marginal", "word_perplexity")),
            Figure(f"token perplexity, {name}", (*place, "marginal", "token_perplexity")),
            Figure(
                f"token perplexity, wider search, {name}",
                (f"perplexity {name}{WIDER}", "perplexities", "marginal", "token_perplexity"),
            ),
            Figure(
                f"token perplexity given the gold parse, {name}",
                (*place, "conditional", "token_perplexity"),
            ),
        ]
    for name in named:
        parsing = (f"parsing {name}",)
        lines += [
            Figure(f"parsing F1, {name}", (*parsing, "model", "f1"), 100),
            Figure(
                f"parsing F1 without punctuation, {name}",
                (*parsing, "punctuation", "deleted", "model", "f1"),
                100,
            ),
            Figure(
                f"parsing F1 of right-branching trees, {name}",
                (*parsing, "baselines", "right-branching", "f1"),
                100,
            ),
        ]
    return [
        *lines,
        Figure("attention on the head noun, %", ("attention", "head"), 100),
        Figure("attention on the distractor, %", ("attention", "distractor"), 100),
        Figure("validation perplexity before training", ("before", "perplexity"), 1, ".2f"),
        Figure("validation perplexity after training", ("training", "perplexity"), 1, ".2f"),
        Figure(
            "validation perplexity of words and brackets",
            ("training", "symbol_perplexity"),
            1,
            ".2f",
        ),
        Figure(
            "attachment accuracy given the gold parse so far, %",
            ("training", "attachment_accuracy"),
            100,
        ),
        Figure("training tokens", ("training", "tokens"), 1, ",.0f"),
        Figure("training seconds", ("training", "training_seconds"), 1, ",.0f"),
        Figure("training tokens per second", ("training", "tokens_per_second"), 1, ",.0f"),
        Figure("training memory, MB", ("training", "peak_memory_megabytes"), 1, ",.0f"),
        Figure("sentences scored per second, SG", ("sg", "sentences_per_second")),
        Figure("sentences scored per second, BLiMP", ("blimp", "sentences_per_second")),
        Figure("parameters", ("training", "parameters"), 1, ",.0f"),
    ]


def comparison(results: Report) -> str:
    """The models beside each other."""
    return markdown_table(["", *results["titles"].values()], comparison_rows(results))


ABLATION_FIGURES = ("token perplexity, .*", "parsing F1, .*", "validation.*", "attachment acc.*")
"""Patterns of the titles of figures by which variants of a model are chosen."""
SHARE_FIGURES = (
    "training tokens",
    "SG suites.*",
    "BLiMP.*",
    "token perplexity, .*",
    "parsing F1, .*",
    "validation perplexity after.*",
)
"""Patterns of the titles of figures by which models that read a share of the data are compared."""


def ablation_table(results: Report) -> str:
    """A line for each model with the figures by which variants are chosen."""
    return _line_table(results, ABLATION_FIGURES)


def share_table(results: Report) -> str:
    """A line for each model with the figures that show how much it learns from how much data."""
    return _line_table(results, SHARE_FIGURES)


def _line_table(results: Report, patterns: tuple[str, ...]) -> str:
    """A line for each model, a column for each figure whose title matches, in their order."""
    rows = comparison_rows(results)
    figures = [row for pattern in patterns for row in rows if re.fullmatch(pattern, row[0])]
    titles, *lines = zip(*figures, strict=True)
    models = results["titles"].values()
    table = [[model, *line] for model, line in zip(models, lines, strict=True)]
    return markdown_table(["", *titles], table)


def comparison_rows(results: Report) -> list[list[str]]:
    """A line for each figure: means over seeds, with the range where there are several."""
    rows = []
    for figure in figures(results):
        cells = [_cell(results, model, figure) for model in results["titles"]]
        if any(cells):
            rows.append([figure.title, *cells])
    return rows


def _cell(results: Report, model: str, figure: Figure) -> str:
    values = _values(results, model, figure.path)
    if not values:
        return ""
    average = format(figure.factor * mean(values), figure.pattern)
    if len(values) == 1:
        return average
    low, high = (format(figure.factor * end, figure.pattern) for end in (min(values), max(values)))
    return f"{average} [{low} to {high}]"


def _values(results: Report, model: str, path: Sequence[str]) -> list[float]:
    """A figure of a model, from each seed that has it."""
    values = []
    for of_seed in results["seeds"].values():
        value: Any = of_seed.get(model, {})
        for key in path:
            value = value.get(key, {})
        if value not in ({}, None):
            values.append(float(value))
    return values


def _by_part(results: Report, title: str, test: str, parts: str) -> list[str]:
    """A section of accuracies by circuit or field, if there are any."""
    names: dict[str, None] = {}
    for of_seed in results["seeds"].values():
        for found in of_seed.values():
            names |= dict.fromkeys(found.get(test, {}).get(parts, {}))
    lines = [Figure(name, (test, parts, name), 100) for name in names]
    rows = [[line.title, *(_cell(results, m, line) for m in results["titles"])] for line in lines]
    header = ["accuracy, %", *results["titles"].values()]
    return [f"## {title}\n", markdown_table(header, rows)] if rows else []


def by_circuit_and_field(results: Report) -> list[str]:
    """The sections of SG circuits and of BLiMP fields, where these were tested."""
    return [
        *_by_part(results, "SG circuits", "sg", "circuits"),
        *_by_part(results, "SG circuits as running text", "sg, running text", "circuits"),
        *_by_part(results, "BLiMP fields", "blimp", "fields"),
    ]


def markdown(results: Report) -> str:
    """The whole report."""
    tests = results["options"]["tests"]
    parts = [
        "# Sentence-level language models\n",
        f"Seeds {', '.join(results['seeds'])}. Models with pushdown layers, and those that read "
        f"brackets, are scored with beam {tests['beam']} and threshold {tests['threshold']} nats, "
        "others exactly; a wider search has twice the beam and 2 nats more.\n",
        comparison(results),
        *by_circuit_and_field(results),
        how_made(results),
    ]
    return "\n".join(parts)
