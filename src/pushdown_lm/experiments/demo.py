"""The main job end to end on the built-in corpus: train shallow, test deeper.

A Base-LM (with attachments as a second task, so that it parses too) and a Pushdown-LM learn from
generated sentences of little nesting. Both are then asked about minimal pairs nested as deep as
those sentences and deeper: a counterpart of the Dyck experiment in an English-like language.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import platform
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import mean
from typing import Any

import torch
from rich.console import Console, Group
from rich.table import Column, Table

from pushdown_lm.console import progress
from pushdown_lm.corpora.grammar import generate, vocabulary
from pushdown_lm.corpora.grammar_suites import write_suites
from pushdown_lm.data.build import DataOptions, build_data
from pushdown_lm.data.tokenization import train_word_vocabulary
from pushdown_lm.evals.parsing import evaluate_parsing
from pushdown_lm.evals.perplexity import evaluate_perplexity
from pushdown_lm.evals.sg import Suite, evaluate_sg, load_suite
from pushdown_lm.experiments import plots
from pushdown_lm.experiments.side_by_side import train_side_by_side
from pushdown_lm.files import atomic_write, write_json
from pushdown_lm.machine import software
from pushdown_lm.search.loading import load_scorer
from pushdown_lm.search.packaged import DEFAULT_MODEL, installed_models
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from pushdown_lm.search.scorer import Scorer
from pushdown_lm.training.run import METRICS, MODEL
from pushdown_lm.trees import Tree, binarize, draw

MODELS = {"Base-LM": "demo-multitask", "Pushdown-LM": "demo"}
"""The recipe of each model."""
PHENOMENA = {
    "number": "agreement",
    "center": "centre embedding",
    "reflexive": "reflexives",
    "npi": "polarity items",
    "fgd": "filler-gap",
}
"""What the suites test, by the first part of their names."""
ENGLISH_EXAMPLE = "The keys to the old wooden cabinet are on the table."
EXAMPLE = "the boys that the dog near the cats likes are happy ."


@dataclass(frozen=True, slots=True)
class DemoOptions:
    """How large the job is."""

    sentences: int = 30_000
    """Training sentences."""
    trained_nesting: int = 2
    """The deepest nesting of the training sentences."""
    depths: tuple[int, ...] = (1, 2, 3, 4, 5)
    """Nesting of the test items; those above ``trained_nesting`` are never seen in training."""
    items: int = 20
    """Items of a suite at each depth."""
    held_out: int = 100
    """Held-out sentences, shallow and deep each, for perplexity and parsing."""
    beam: int = 50
    threshold: float = 8.0
    """Nats below the best entry at which search drops an entry."""
    overrides: tuple[str, ...] = ()
    """``key=value`` overrides of both recipes."""


def run_demo(out: Path, seeds: Sequence[int], options: DemoOptions) -> dict[str, Any]:
    """Train and test both models for every seed; results, plots and models are left in ``out``.

    A model that is already trained in ``out`` is not trained again.
    """
    began = time.monotonic()
    for depth in options.depths:
        write_suites(suites_folder(out, depth), depth=depth, items=options.items, seed=depth)
    results: dict[str, Any] = {
        "options": asdict(options),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "versions": software(),
        "seeds": {},
    }
    for seed in seeds:
        folder = out / f"seed{seed}"
        build_corpus(folder / "data", seed, options)
        runs = {folder / recipe: recipe for recipe in MODELS.values()}
        settings = [*options.overrides, f"training.seed={seed}"]
        train_side_by_side(runs, folder / "data", settings)
        results["seeds"][str(seed)] = _test_models(out, folder, options)
    results["seconds"] = round(time.monotonic() - began, 1)
    write_json(out / "results.json", results)
    with atomic_write(out / "table.md") as file:
        file.write(markdown(results))
    _write_plots(out, results, options)
    return results


def suites_folder(out: Path, depth: int) -> Path:
    """Where the suites of a depth are."""
    return out / "suites" / f"depth{depth}"


def build_corpus(folder: Path, seed: int, options: DemoOptions) -> None:
    """Generate sentences of little nesting, and make the dataset of them."""

    def trees(count: int, part: int) -> Iterator[Tree]:
        return generate(count, seed=10 * seed + part, max_nesting=options.trained_nesting)

    splits = {"train": list(trees(options.sentences, 0)), "valid": list(trees(500, 1))}
    words = folder.with_name("vocabulary")
    train_word_vocabulary([vocabulary()]).save_pretrained(words)
    build_data(splits, folder, DataOptions(tokenizer=str(words)))


def _test_models(out: Path, folder: Path, options: DemoOptions) -> dict[str, dict[str, Any]]:
    """All figures of both models, part by part, on as many cores as there are models."""
    figures: dict[str, dict[str, Any]] = {}
    for name, recipe in MODELS.items():
        training = json.loads((folder / recipe / METRICS).read_text(encoding="utf-8"))
        figures[name] = {
            "accuracy": {},
            "perplexity": {},
            "parsing_f1": {},
            "training": training,
            "model": str((folder / recipe / MODEL).relative_to(out)),
        }
    parts: list[int | str] = [*options.depths, "shallow", "deep"]
    with (
        progress("Testing", len(MODELS) * len(parts), "parts") as advance,
        ProcessPoolExecutor(
            len(MODELS),
            mp_context=multiprocessing.get_context("spawn"),
            initializer=torch.set_num_threads,
            initargs=(1,),
        ) as pool,
    ):
        jobs = {
            pool.submit(_test_part, out / figures[name]["model"], part, out, options): (name, part)
            for part in reversed(parts)  # the long ones first
            for name in MODELS
        }
        for job in as_completed(jobs):
            name, part = jobs[job]
            for figure, value in job.result().items():
                figures[name][figure][str(part)] = value
            advance(note=f"{name}, {part}")
    return figures


def _test_part(model: Path, part: int | str, out: Path, options: DemoOptions) -> dict[str, Any]:
    """Accuracy on the suites of a depth, or perplexity and parsing of held-out sentences."""
    scorer = load_scorer(model, beam=options.beam, threshold=options.threshold)
    if isinstance(part, int):
        suites = [load_suite(path) for path in sorted(suites_folder(out, part).glob("*.json"))]
        return {"accuracy": _accuracy(scorer, suites)}
    shallow, deepest = options.trained_nesting, max(options.depths)
    least, most = (0, shallow) if part == "shallow" else (shallow + 1, deepest)
    trees = list(generate(options.held_out, seed=990 + most, max_nesting=most, min_nesting=least))
    sentences = [" ".join(tree.words) for tree in trees]
    return {
        "perplexity": evaluate_perplexity(scorer, sentences).token_perplexity,
        "parsing_f1": evaluate_parsing(scorer, [binarize(tree) for tree in trees]).model.f1,
    }


def _accuracy(scorer: Scorer, suites: list[Suite]) -> dict[str, float]:
    """Accuracy by phenomenon, the mean over its suites, and over all suites."""
    report = evaluate_sg(scorer, suites, trailing_period=False)
    by_phenomenon: dict[str, list[float]] = {}
    for result in report.results:
        phenomenon = PHENOMENA[result.name.split("_")[0]]
        by_phenomenon.setdefault(phenomenon, []).append(result.accuracy)
    return {**{name: mean(parts) for name, parts in by_phenomenon.items()}, "all": report.accuracy}


# ------------------------------------------------------------------ what a person sees


def _values(results: dict[str, Any], model: str, *path: str) -> list[float]:
    """A figure of one model, one value a seed."""
    values = []
    for by_model in results["seeds"].values():
        value = by_model[model]
        for key in path:
            value = value[key]
        values.append(float(value))
    return values


def result_table(results: dict[str, Any]) -> Group:
    """Accuracies by phenomenon and depth, and the other figures, both models side by side.

    Several seeds are shown as their mean with the range in brackets.
    """
    depths = [str(depth) for depth in results["options"]["depths"]]
    trained = results["options"]["trained_nesting"]
    seeds = ", ".join(results["seeds"])
    accuracy = Table(title=f"Accuracy on minimal pairs by depth of nesting, % (seeds {seeds})")
    accuracy.add_column("phenomenon")
    accuracy.add_column("model")
    for depth in depths:
        mark = "" if int(depth) <= trained else " *"
        accuracy.add_column(f"{depth}{mark}", justify="right")
    for phenomenon in (*PHENOMENA.values(), "all"):
        for number, model in enumerate(MODELS):
            cells = [
                _cell([100 * x for x in _values(results, model, "accuracy", depth, phenomenon)], 0)
                for depth in depths
            ]
            accuracy.add_row("" if number else phenomenon, model.removesuffix("-LM"), *cells)
        accuracy.add_section()
    accuracy.caption = f"* deeper than any training sentence (nesting at most {trained})"

    others = Table(title="Held-out sentences and training")
    others.add_column("")
    for model in MODELS:
        others.add_column(model, justify="right")
    rows: list[tuple[str, float, tuple[str, ...]]] = [
        ("perplexity, shallow", 1, ("perplexity", "shallow")),
        ("perplexity, deep *", 1, ("perplexity", "deep")),
        ("parsing F1, shallow, %", 100, ("parsing_f1", "shallow")),
        ("parsing F1, deep *, %", 100, ("parsing_f1", "deep")),
        ("attachment accuracy, %", 100, ("training", "attachment_accuracy")),
        ("training, seconds", 1, ("training", "training_seconds")),
    ]
    for label, factor, path in rows:
        cells = [_cell([factor * x for x in _values(results, m, *path)], 2) for m in MODELS]
        others.add_row(label, *cells)
    base, pushdown = (
        sum(_values(results, model, "training", "training_seconds")) for model in MODELS
    )
    others.add_row("training time ratio", "1", f"{pushdown / base:.2f}")
    return Group(accuracy, others)


def _cell(values: list[float], digits: int) -> str:
    text = f"{mean(values):.{digits}f}"
    if len(values) > 1:
        text += f" [{min(values):.{digits}f}-{max(values):.{digits}f}]"
    return text


def markdown(results: dict[str, Any]) -> str:
    """Accuracy over all suites by depth, for documents."""
    depths = [str(depth) for depth in results["options"]["depths"]]
    trained = results["options"]["trained_nesting"]
    lines = [
        f"Accuracy on minimal pairs by depth of nesting, %, seeds {', '.join(results['seeds'])}; "
        f"trained on nesting of at most {trained}",
        "",
        "| | " + " | ".join(f"depth {depth}" for depth in depths) + " | parsing F1, deep |",
        "|---" * (len(depths) + 2) + "|",
    ]
    for phenomenon in ("agreement", "all"):
        for model in MODELS:
            by_depth = [_values(results, model, "accuracy", depth, phenomenon) for depth in depths]
            cells = [_cell([100 * value for value in values], 0) for values in by_depth]
            f1 = _cell([100 * value for value in _values(results, model, "parsing_f1", "deep")], 1)
            lines.append(f"| {model}, {phenomenon} | {' | '.join(cells)} | {f1} |")
    return "\n".join(lines) + "\n"


def show(out: Path, results: dict[str, Any], console: Console) -> None:
    """The result table, and what the Pushdown-LM makes of one sentence."""
    console.print(result_table(results))
    _show_sentence("the Pushdown-LM", _example_scorer(out, results), EXAMPLE, console)


def show_english(console: Console) -> None:
    """What the model in the box makes of an English sentence, if it is installed."""
    if DEFAULT_MODEL in installed_models():
        scorer = PushdownScorer.from_pretrained(DEFAULT_MODEL)
        _show_sentence(f"the model {DEFAULT_MODEL!r}", scorer, ENGLISH_EXAMPLE, console)


def _show_sentence(name: str, scorer: PushdownScorer, sentence: str, console: Console) -> None:
    """The tree of a sentence, and the surprisals of its words."""
    analysis = scorer.analyse([sentence])[0]
    console.print(f"Parse and surprisals by {name}:\n", highlight=False)
    console.print(draw(analysis.trees()[0].tree), highlight=False)
    table = Table("word", Column("bits", justify="right"), title="Surprisals")
    for word, bits in analysis.words:
        table.add_row(word, f"{bits:.2f}")
    console.print(table)


def _example_scorer(out: Path, results: dict[str, Any]) -> PushdownScorer:
    first = next(iter(results["seeds"].values()))
    return PushdownScorer.from_pretrained(out / first["Pushdown-LM"]["model"])


def _write_plots(out: Path, results: dict[str, Any], options: DemoOptions) -> None:
    curves = {
        model: [
            mean(_values(results, model, "accuracy", str(depth), "all")) for depth in options.depths
        ]
        for model in MODELS
    }
    with atomic_write(out / "accuracy.png", "wb") as file:
        plots.accuracy_by_depth(file, options.depths, curves, options.trained_nesting)
    words = _example_scorer(out, results).analyse([EXAMPLE])[0].words
    with atomic_write(out / "surprisals.png", "wb") as file:
        plots.surprisals(file, words)
