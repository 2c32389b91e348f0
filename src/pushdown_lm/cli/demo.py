"""`pushdown demo`: the main job end to end on the built-in corpus."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    out: Annotated[Path, typer.Option(help="Folder for data, models, results and plots.")],
    seeds: Annotated[int, typer.Option(min=1, help="Seeds to run and average over.")] = 1,
    first_seed: Annotated[int, typer.Option(min=0)] = 0,
    sentences: Annotated[int, typer.Option(min=100, help="Training sentences.")] = 30_000,
    items: Annotated[int, typer.Option(min=1, help="Items a suite and depth.")] = 20,
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key of both recipes."),
    ] = None,
) -> None:
    """Train a Base-LM and a Pushdown-LM on generated sentences; test both on deeper ones.

    Before that, the model in the box (english) parses a sentence, if it is installed.

    pushdown demo --out runs/demo

    pushdown demo --out runs/demo3 --seeds 3
    """
    from rich.console import Console

    from pushdown_lm.experiments.demo import DemoOptions, run_demo, show, show_english

    console = Console()
    show_english(console)
    options = DemoOptions(sentences=sentences, items=items, overrides=tuple(overrides or ()))
    results = run_demo(out, range(first_seed, first_seed + seeds), options)
    show(out, results, console)
    typer.echo(f"Everything is in {out}: results.json, table.md, plots as PNG, and the models.")
