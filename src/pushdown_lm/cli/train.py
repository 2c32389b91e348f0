"""`pushdown train`: from a recipe and a dataset to a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def train(
    recipe: Annotated[str, typer.Argument(help="The name of a recipe, or a YAML file.")],
    data: Annotated[Path, typer.Option(help="A dataset made by `pushdown data build`.")],
    out: Annotated[Path, typer.Option(help="The run folder; new, unless --resume.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key: training.lr=1e-3."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="Short for training.seed.")] = None,
) -> None:
    """Train a model as a recipe says.

    Ctrl-C and SIGTERM save a checkpoint first; the same command with --resume resumes from it.

    pushdown train demo --data runs/demo/seed0/data --out runs/mine --set training.lr=1e-3

    torchrun --nproc-per-node 8 --no-python pushdown train bllip-lg --data data/wsj
    --out runs/wsj
    """
    from accelerate import PartialState  # type: ignore[import-untyped]

    from pushdown_lm.console import error_console
    from pushdown_lm.data.dataset import load_data
    from pushdown_lm.training.recipe import load_recipe
    from pushdown_lm.training.run import Interrupted, run_recipe

    settings = list(overrides or [])
    if seed is not None:
        settings.append(f"training.seed={seed}")
    chosen = load_recipe(recipe, settings)
    try:
        metrics = run_recipe(chosen, load_data(data), out, resume=resume)
    except Interrupted as interruption:
        error_console().print(f"pushdown: {interruption}")
        raise typer.Exit(interruption.exit_code) from None
    if PartialState().is_main_process:
        for name, value in metrics.items():
            typer.echo(f"{name}\t{value:.6g}")
