"""Pretrained models (section 4.3): trained further on parsed text, then fine-tuned to classify.

RUNS/seed0/RECIPE       training runs, and their tests
RUNS/tasks              fine-tuned models' results, and the parses
OUT/results.json, table.md
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from pushdown_lm.corpora.glue import Split, Task, evaluation_split, load_examples
from pushdown_lm.experiments.english import (
    EnglishOptions,
    by_circuit_and_field,
    comparison_rows,
    reproduce_english,
)
from pushdown_lm.experiments.experiment import how_made, markdown_table
from pushdown_lm.experiments.finetune import FinetuneOptions, Result, finetune_all, percentages
from pushdown_lm.files import atomic_write, write_json
from pushdown_lm.training.run import MODEL

Report = dict[str, Any]


def reproduce_pretrained(
    out: str | Path,
    runs: str | Path,
    models: Sequence[str],
    options: EnglishOptions,
    tasks: Sequence[Task] = (),
    glue: str | Path = "",
    finetuning: FinetuneOptions | None = None,
    *,
    seeds: int = 3,
    command: str = "",
) -> Report:
    """Train Base-LM and Pushdown-LM further, test them, and fine-tune them on tasks.

    Args:
        models: recipes, the Base-LM's first.
        glue: the folder of the tasks' folders.
        seeds: of fine-tuning; the models are trained further once.
    """
    out, runs, finetuning = Path(out), Path(runs), finetuning or FinetuneOptions()
    for task in tasks:  # broken task files are found before hours of training
        splits: list[Split] = ["train", finetuning.split or evaluation_split(task, glue)]
        for split in splits:
            load_examples(task, glue, split)
    results = reproduce_english(out, runs, models, [0], options, command)
    results.setdefault("tasks", [])
    if tasks:
        folders = [runs / "seed0" / Path(model).stem / MODEL for model in models]
        found = finetune_all(tasks, folders, glue, runs / "tasks", finetuning, seeds=seeds)
        results["tasks"] = _add_tasks(results, found, finetuning)
        results["finetuning"] = asdict(finetuning)
    write_json(out / "results.json", results)
    with atomic_write(out / "table.md") as file:
        file.write(markdown(results))
    return results


def _add_tasks(
    results: Report, found: Sequence[Result], finetuning: FinetuneOptions
) -> list[Report]:
    """The tasks of the results that were found with the same settings, and new ones."""
    is_same = results.get("finetuning") == asdict(finetuning)
    reports = [*(results["tasks"] if is_same else []), *(result.to_json() for result in found)]
    return [*{(report["task"], report["model"]): report for report in reports}.values()]


def comparison(results: Report) -> str:
    """The models beside each other; of the tasks, mean and deviation over the seeds."""
    lines: dict[str, dict[str, str]] = {}
    for result in results.get("tasks", []):
        model, title = result["model"], f"{result['task']}, {{}}, %"
        for metric, value in result["summary"].items():
            lines.setdefault(title.format(metric), {})[model] = percentages(*value)
        for metric, value in result["majority"].items():
            row = title.format(f"{metric} of the most frequent class")
            lines.setdefault(row, {})[model] = percentages(value, None)
    titles = results["titles"]
    tasks = [[title, *(cells.get(model, "") for model in titles)] for title, cells in lines.items()]
    return markdown_table(["", *titles.values()], [*comparison_rows(results), *tasks])


def markdown(results: Report) -> str:
    """The whole report."""
    tests = results["options"]["tests"]
    tasks = [
        f"{result['task']}: {result['num_train']:,} examples to train, {result['num_eval']:,} "
        f"({result['split']}) to test, {len(result['runs'])} seeds"
        for result in results["tasks"]
        if result["model"] == list(results["titles"])[-1]
    ]
    parts = [
        "# Pretrained models\n",
        f"Beam {tests['beam']}, threshold {tests['threshold']} nats.\n",
        *([f"{'; '.join(tasks)}.\n"] if tasks else []),
        comparison(results),
        *by_circuit_and_field(results),
        how_made(results),
    ]
    return "\n".join(parts)
