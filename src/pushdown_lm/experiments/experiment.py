"""What the experiments share: runs that are trained once, and where results come from."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from pushdown_lm.data.dataset import Data
from pushdown_lm.errors import PushdownError
from pushdown_lm.machine import software
from pushdown_lm.training.recipe import Recipe, load_recipe
from pushdown_lm.training.run import RECIPE, is_finished, run_recipe

SETTINGS = {"model", "training", "data"}
"""Of a recipe, what decides how a model is trained."""


class ReproductionError(PushdownError):
    """An experiment that cannot be run as asked."""


def ensure_trained(run: Path, recipe: Recipe, data: Callable[[], Data]) -> None:
    """Train a model, unless its run is finished; an unfinished run is continued."""
    started = (run / RECIPE).exists()
    if started:
        earlier = load_recipe(run / RECIPE)
        if earlier.model_dump(include=SETTINGS) != recipe.model_dump(include=SETTINGS):
            raise ReproductionError(
                f"{run}: was trained with other settings; choose another --runs folder or delete it"
            )
    if not is_finished(run):
        run_recipe(recipe, data(), run, resume=started)


def provenance(out: Path, command: str) -> dict[str, Any]:
    """The commands that ``out/results.json`` comes from, this one last, and what they ran on."""
    earlier: list[str] = []
    if (out / "results.json").exists():
        earlier = json.loads((out / "results.json").read_text(encoding="utf-8"))["commands"]
    return {
        "commands": [*(line for line in earlier if line != command), *([command] * bool(command))],
        "versions": software(),
        "machine": {"processor": platform.machine(), "threads": torch.get_num_threads()},
    }


def how_made(results: Mapping[str, Any]) -> str:
    """The last section of a report: what :func:`provenance` has noted."""
    commands = "\n".join(f"    {command}" for command in results["commands"])
    versions = ", ".join(f"{name} {number}" for name, number in results["versions"].items())
    threads = results["machine"]["threads"]
    return f"## How to make this page\n\n{commands}\n\n{versions}; {threads} threads.\n"


def markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table whose first column holds names, the others figures."""
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *rows]
    return "\n".join("| " + " | ".join(line) + " |" for line in lines) + "\n"
