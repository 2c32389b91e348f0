"""`pushdown train`: from a recipe and a dataset to a trained model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pushdown_lm.errors import PushdownError


def train(
    out: Annotated[Path, typer.Option(help="The run folder; new, unless --resume.")],
    recipe: Annotated[
        str | None,
        typer.Argument(help="The name of a recipe, or a YAML file; with --resume, the run's own."),
    ] = None,
    data: Annotated[
        Path | None,
        typer.Option(help="A dataset made by `pushdown data build`; with --resume, the run's own."),
    ] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key: training.lr=1e-3."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue an interrupted run.")] = False,
    seed: Annotated[int | None, typer.Option(min=0, help="Short for training.seed.")] = None,
) -> None:
    """Train a model as a recipe says.

    Ctrl-C and SIGTERM save a checkpoint first. With --resume a run goes on by its own recipe and
    data, which need not be given again; what is given again must agree.

    pushdown train demo --data runs/demo/seed0/data --out runs/mine --set training.lr=1e-3

    pushdown train --out runs/mine --resume

    torchrun --nproc-per-node 8 --no-python pushdown train bllip-lg --data data/wsj
    --out runs/wsj
    """
    if not resume and (recipe is None or data is None):
        missing = "the name of a recipe" if recipe is None else "--data"
        raise PushdownError(f"expected {missing}; only --resume finds it in the run folder")

    from pushdown_lm.data.dataset import load_data
    from pushdown_lm.training.recipe import load_recipe
    from pushdown_lm.training.run import (
        is_main_process,
        run_recipe,
        started_data,
        started_recipe,
    )

    settings = list(overrides or [])
    if seed is not None:
        settings.append(f"training.seed={seed}")
    if resume:
        chosen = started_recipe(out, recipe, settings)
        data = data or started_data(out)
    else:
        assert recipe is not None
        chosen = load_recipe(recipe, settings)
    assert data is not None
    metrics = run_recipe(chosen, load_data(data), out, resume=resume)
    if is_main_process():
        for name, value in metrics.items():
            typer.echo(f"{name}\t{value:.6g}")
