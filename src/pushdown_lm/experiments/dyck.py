"""The Dyck experiment (section 4.1, Table 1): train on shallow strings, test on long and deep ones.

    RUNS/seed0/data                     training strings
    RUNS/seed0/MODEL                    a training run; with it, a file for each row of the test
    OUT/results.json, table.md, accuracy.png

What is finished in RUNS is not done again, and the results are of all that is finished there.
Models of an earlier results.json whose runs are elsewhere stay, with the rows tested alike.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, cast, get_args

import torch

from pushdown_lm.console import error_console, progress
from pushdown_lm.corpora.dyck import (
    FURTHER_ROWS,
    PAPER_ROWS,
    Dyck,
    Row,
    build_dyck_data,
    symbol_ids,
)
from pushdown_lm.evals.dyck import Answer, evaluate_dyck
from pushdown_lm.experiments.experiment import ReproductionError, ensure_trained, provenance
from pushdown_lm.files import atomic_write, write_json
from pushdown_lm.training.recipe import Recipe, load_recipe

ROPE_ON, ROPE_OFF = (f"model.decoder.no_rope_layers={[on] * 6}" for on in (1, 0))
PLAIN_HEAD = "model.attachment_head=mlp"
"""A head without positions."""


@dataclass(frozen=True)
class Variant:
    """One model of the experiment."""

    title: str
    recipe: str
    overrides: tuple[str, ...] = ()
    paper: Mapping[str, float] = field(default_factory=dict)
    """The paper's accuracies by row, in percent."""


MODELS = {
    "base": Variant(
        "Base-LM",
        "dyck-base",
        paper={
            "distance-50": 90.0,
            "distance-100": 81.0,
            "distance-200": 40.6,
            "distance-300": 14.1,
            "nesting-15-50": 40.6,
        },
    ),
    "paper": Variant(
        "Pushdown-LM",
        "dyck",
        paper={
            "distance-50": 96.5,
            "distance-100": 88.0,
            "distance-200": 61.2,
            "distance-300": 42.9,
            "nesting-15-50": 68.3,
        },
    ),
    "depths": Variant("Pushdown-LM, depths", "dyck-depths"),
    "open": Variant("Pushdown-LM, open distance", "dyck-open"),
}
ABLATIONS = {
    "published": Variant("Pushdown-LM, the authors' transformer", "dyck-published"),
    "plain-head": Variant("published, no positions in the head", "dyck", (PLAIN_HEAD,)),
    "base-nopos": Variant("Base-LM, no positions", "dyck-base", (ROPE_OFF, PLAIN_HEAD)),
    "constituents": Variant(
        "published, any constituent is legal", "dyck", ("model.legality=constituents",)
    ),
    "depth-nopos": Variant("depth, no positions", "dyck-depths", (ROPE_OFF, PLAIN_HEAD)),
    "closed-nopos": Variant("closed or open, no positions", "dyck", (ROPE_OFF, PLAIN_HEAD)),
    "open-alone": Variant("open tokens alone, no positions", "dyck-open", ("model.num_depths=0",)),
    "open-depth": Variant(
        "depth and open tokens, no positions", "dyck-open", ("model.num_depths=64",)
    ),
    "open-16": Variant(
        "closed or open and 16 distances in open tokens, no positions",
        "dyck-open",
        ("model.num_distances=16",),
    ),
    "open-rotary": Variant("closed or open and open tokens, rotary", "dyck-open", (ROPE_ON,)),
    "distance": Variant("closed or open and stack distance, no positions", "dyck-distance"),
}
"""What the parts of the tape and the positions are good for."""
VARIANTS = MODELS | ABLATIONS
ROWS = {row.name: row for row in (*PAPER_ROWS, *FURTHER_ROWS)}


@dataclass(frozen=True)
class DyckOptions:
    """How large the experiment is."""

    strings: int = 250_000
    """Training strings: 12 million symbols, so that the recipes' steps read each about once."""
    held_out: int = 1_000
    rows: tuple[str, ...] = tuple(ROWS)
    items: int = 500
    """Prefixes of each row and seed."""
    beam: int = 8
    threshold: float = 4.0
    """Nats below the best entry at which search drops an entry."""
    answer: Answer = "mixture"
    """Whether all parses of the beam answer together, or the best alone."""
    overrides: tuple[str, ...] = ()
    """``key=value`` overrides of all recipes."""

    @classmethod
    def quick(cls) -> DyckOptions:
        """A few minutes: less training, and the rows of the paper only."""
        return cls(
            strings=20_000,
            held_out=200,
            rows=tuple(row.name for row in PAPER_ROWS),
            items=60,
            beam=2,
            threshold=2.0,
            overrides=(
                "training.steps=250",
                "training.lr=3e-3",
                "training.warmup_steps=50",
                "training.tokens_per_batch=1_500",
            ),
        )

    @property
    def evaluation(self) -> dict[str, Any]:
        """What the result of a row depends on, besides the model."""
        names = ("items", "beam", "threshold", "answer")
        return {name: getattr(self, name) for name in names}


def choose_models(names: str) -> list[str]:
    """Names of variants, separated by commas; ``all`` and ``ablations`` stand for several.

    >>> choose_models("base,distance")
    ['base', 'distance']
    """
    groups = {"all": [*VARIANTS], "ablations": [*ABLATIONS]}
    chosen = [model for name in names.split(",") for model in groups.get(name.strip(), [name])]
    return _check_known("model", chosen, (*VARIANTS, *groups))


def choose_rows(names: str) -> tuple[str, ...]:
    """Names of rows, separated by commas."""
    return tuple(_check_known("row", names.split(","), ROWS))


def choose_answer(name: str) -> Answer:
    """An :data:`~pushdown_lm.evals.dyck.Answer` by its name."""
    return cast(Answer, _check_known("answer", [name], get_args(Answer))[0])


def _check_known(
    kind: str, names: Sequence[str], known: Sequence[str] | Mapping[str, Any]
) -> list[str]:
    names = [name.strip() for name in names]
    for name in names:
        if name not in known:
            raise ReproductionError(f"{kind}: expected one of {', '.join(known)}, got {name!r}")
    return list(dict.fromkeys(names))


def reproduce_dyck(
    out: str | Path,
    runs: str | Path,
    models: Sequence[str],
    seeds: Sequence[int],
    options: DyckOptions,
    command: str = "",
) -> dict[str, Any]:
    """Train and test every model with every seed; the results of all that ``runs`` holds.

    The results, the table and the plot are written to ``out`` after each model, so that an
    interrupted experiment leaves those of its finished part.
    """
    from pushdown_lm.experiments.dyck_report import markdown, write_plot

    out, runs = Path(out), Path(runs)
    results: dict[str, Any] = {}
    for number, (seed, model) in enumerate((s, m) for s in seeds for m in models):
        title = VARIANTS[model].title
        error_console().print(
            f"[{number + 1}/{len(seeds) * len(models)}] {title}, seed {seed}", highlight=False
        )
        run = _train(runs / f"seed{seed}", model, seed, options)
        _test(run, seed, options)
        results = _results(out, runs, options, command)
        write_json(out / "results.json", results)
        with atomic_write(out / "table.md") as file:
            file.write(markdown(results))
        write_plot(out / "accuracy.png", results)
    return results


# ------------------------------------------------------------------ one model


def _recipe(model: str, seed: int, options: DyckOptions) -> Recipe:
    variant = VARIANTS[model]
    settings = [*variant.overrides, *options.overrides, f"training.seed={seed}"]
    return load_recipe(variant.recipe, settings)


def _train(folder: Path, model: str, seed: int, options: DyckOptions) -> Path:
    """The run folder of a trained model."""
    ensure_trained(
        folder / model,
        _recipe(model, seed, options),
        lambda: build_dyck_data(
            folder / "data", train=options.strings, valid=options.held_out, seed=seed
        ),
    )
    return folder / model


def _test(run: Path, seed: int, options: DyckOptions) -> None:
    """Write the results of the rows that have none yet."""
    from pushdown_lm.training.checkpoint import load_model
    from pushdown_lm.training.run import MODEL

    missing = [ROWS[name] for name in options.rows if _row_result(run, name, options) is None]
    if not missing:
        return
    model, tokenizer = load_model(run / MODEL, dtype=torch.float32)
    ids = symbol_ids(tokenizer, Dyck())
    for row in missing:
        write_json(_row_file(run, row.name), _test_row(model, ids, row, seed, options))


def _test_row(model: Any, ids: Any, row: Row, seed: int, options: DyckOptions) -> dict[str, Any]:
    prefixes = row.prefixes(options.items, [seed, 2, *row.name.encode()])
    began = time.monotonic()
    with progress(f"Testing {row.title}", options.items, "prefixes") as advance:
        scores = evaluate_dyck(
            model,
            prefixes,
            ids,
            beam=options.beam,
            threshold=options.threshold,
            answer=options.answer,
            advance=advance,
        )
    return {
        **options.evaluation,
        "seconds": round(time.monotonic() - began, 1),
        "correct": int(scores.correct.sum()),
        "correct_with_gold": int(scores.correct_with_gold.sum()),
        "attachment_accuracy": scores.attachment_accuracy,
        "whole_parses": scores.whole_parses,
        "searched": int(scores.searched.sum()),
        "first_wrong_nesting": [n for n in scores.first_wrong_nesting.tolist() if n >= 0],
        "mean_length": sum(len(prefix.symbols) for prefix in prefixes) / len(prefixes),
        "difficulty": " ".join(str(prefix.difficulty) for prefix in prefixes),
        "answers": "".join("01"[right] for right in scores.correct.tolist()),
    }


def _row_file(run: Path, name: str) -> Path:
    return run / "dyck" / f"{name}.json"


def _row_result(run: Path, name: str, options: DyckOptions) -> dict[str, Any] | None:
    """What an earlier test with the same settings has found."""
    path = _row_file(run, name)
    if not path.exists():
        return None
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return result if _is_alike(result, options) else None


# ------------------------------------------------------------------ results


def _results(out: Path, runs: Path, options: DyckOptions, command: str) -> dict[str, Any]:
    """Everything that is finished in ``runs`` and was tested with these options."""
    seeds = _earlier_results(out, options)
    for folder in sorted(runs.glob("seed*"), key=_seed_number):
        of_seed = {
            model: found
            for model in VARIANTS
            if (found := _model_result(folder / model, options)) is not None
        }
        if of_seed:
            seeds.setdefault(str(_seed_number(folder)), {}).update(of_seed)
    models = {name for of_seed in seeds.values() for name in of_seed}
    rows = {
        row for of_seed in seeds.values() for result in of_seed.values() for row in result["rows"]
    }
    return {
        **provenance(out, command),
        "options": asdict(options),
        "rows": {name: row.title for name, row in ROWS.items() if name in rows},
        "models": {
            name: {**asdict(variant), "is_ablation": name in ABLATIONS}
            for name, variant in VARIANTS.items()
            if name in models
        },
        "seeds": {seed: seeds[seed] for seed in sorted(seeds, key=int)},
    }


def _earlier_results(out: Path, options: DyckOptions) -> dict[str, Any]:
    """By seed and model, what ``results.json`` has of rows that were tested alike."""
    path = out / "results.json"
    if not path.exists():
        return {}
    seeds: dict[str, Any] = {}
    for seed, models in json.loads(path.read_text(encoding="utf-8"))["seeds"].items():
        for model, found in models.items():
            alike = {name: row for name, row in found["rows"].items() if _is_alike(row, options)}
            if alike:
                seeds.setdefault(seed, {})[model] = {**found, "rows": alike}
    return seeds


def _is_alike(row: dict[str, Any], options: DyckOptions) -> bool:
    return all(row.get(key) == value for key, value in options.evaluation.items())


def _seed_number(folder: Path) -> int:
    digits = re.fullmatch(r"seed(\d+)", folder.name)
    return int(digits[1]) if digits else -1


def _model_result(run: Path, options: DyckOptions) -> dict[str, Any] | None:
    from pushdown_lm.training.run import METRICS, RECIPE

    found = {name: _row_result(run, name, options) for name in ROWS}
    rows = {name: row for name, row in found.items() if row is not None}
    if not rows:
        return None
    training = json.loads((run / METRICS).read_text(encoding="utf-8"))
    if budget := load_recipe(run / RECIPE).training.tokens_per_batch:
        training["tokens"] = training["steps"] * budget
    return {"training": training, "rows": rows}
