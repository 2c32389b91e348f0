"""`pushdown reproduce`: the paper's experiments, end to end."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help="Run an experiment of the paper and compare.", no_args_is_help=True)


@app.callback()
def _group() -> None:
    """So that experiments stay subcommands while there is only one."""


@app.command()
def dyck(
    out: Annotated[
        Path | None, typer.Option(help="Results; results/dyck, or dyck-quick, if left out.")
    ] = None,
    runs: Annotated[
        Path | None, typer.Option(help="Data and models; runs/ and the name of --out.")
    ] = None,
    models: Annotated[
        str, typer.Option(help="Models, separated by commas; also: ablations, all.")
    ] = "base,paper,distance",
    seeds: Annotated[int, typer.Option(min=1, help="Seeds to run and average over.")] = 1,
    first_seed: Annotated[int, typer.Option(min=0)] = 0,
    rows: Annotated[
        str | None, typer.Option(help="Rows, separated by commas, as distance-300.")
    ] = None,
    items: Annotated[int | None, typer.Option(min=1, help="Prefixes a row and seed.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Short for training.steps.")] = None,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key of all recipes."),
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few minutes: less training, fewer prefixes.")
    ] = False,
) -> None:
    """Table 1: closing brackets over long distances and in deep nesting.

    The same command again goes on where it was interrupted; models and rows that are finished are
    kept, so further --models, --seeds or --rows add to the table.

    pushdown reproduce dyck --quick

    pushdown reproduce dyck --seeds 3

    pushdown reproduce dyck --models ablations
    """
    from dataclasses import replace

    from pushdown_lm.reproduce.dyck import (
        DyckOptions,
        choose_models,
        choose_rows,
        reproduce_dyck,
    )
    from pushdown_lm.reproduce.dyck_report import markdown
    from pushdown_lm.run import Interrupted

    chosen = choose_models(models)
    options = DyckOptions.quick() if quick else DyckOptions()
    changes = [*(overrides or []), *([] if steps is None else [f"training.steps={steps}"])]
    options = replace(
        options,
        rows=options.rows if rows is None else choose_rows(rows),
        items=items or options.items,
        overrides=(*options.overrides, *changes),
    )
    out = out or Path("results", "dyck-quick" if quick else "dyck")
    command = shlex.join(["pushdown", *sys.argv[1:]])
    try:
        results = reproduce_dyck(
            out,
            runs or Path("runs", out.name),
            chosen,
            range(first_seed, first_seed + seeds),
            options,
            command,
        )
    except Interrupted as interruption:
        typer.echo(f"pushdown: {interruption}", err=True)
        raise typer.Exit(interruption.exit_code) from None
    typer.echo(markdown(results))
