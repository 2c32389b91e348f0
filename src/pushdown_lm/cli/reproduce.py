"""`pushdown reproduce`: the paper's experiments, end to end."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from pushdown_lm.cli.finetune import BatchSize, Epochs, Frozen, LearningRate, MaxEval, MaxTrain

app = typer.Typer(help="Run an experiment of the paper and compare.", no_args_is_help=True)

Out = Annotated[Path, typer.Option(help="Results.")]
Runs = Annotated[Path | None, typer.Option(help="Data and models; runs/ and the name of --out.")]
Recipe = Annotated[str, typer.Option(help="Of the Pushdown-LM; the Base-LM lacks the layers.")]
GoldTrees = Annotated[Path | None, typer.Option(help="Gold trees, for parsing and perplexity.")]
Seeds = Annotated[int, typer.Option(min=1, help="Seeds to run and average over.")]
FirstSeed = Annotated[int, typer.Option(min=0)]
Beam = Annotated[int, typer.Option(min=1, help="Parses kept for a sentence.")]
Threshold = Annotated[
    float, typer.Option(metavar="NATS", help="Drop parses this far below the best one.")
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a key of all recipes."),
]


@app.command()
def dyck(
    out: Annotated[
        Path | None, typer.Option(help="Results; results/dyck, or dyck-quick, if left out.")
    ] = None,
    runs: Runs = None,
    models: Annotated[
        str, typer.Option(help="Models, separated by commas; also: ablations, all.")
    ] = "base,paper,open",
    seeds: Seeds = 1,
    first_seed: FirstSeed = 0,
    rows: Annotated[
        str | None, typer.Option(help="Rows, separated by commas, as distance-300.")
    ] = None,
    items: Annotated[int | None, typer.Option(min=1, help="Prefixes a row and seed.")] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Short for training.steps.")] = None,
    overrides: Overrides = None,
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

    from pushdown_lm.experiments.dyck import DyckOptions, choose_models, choose_rows, reproduce_dyck
    from pushdown_lm.experiments.dyck_report import markdown

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
    with _interruptible():
        results = reproduce_dyck(
            out,
            runs or Path("runs", out.name),
            chosen,
            range(first_seed, first_seed + seeds),
            options,
            _command(),
        )
    typer.echo(markdown(results))


@app.command()
def sentences(
    data: Annotated[Path, typer.Option(help="A dataset made by `pushdown data build`.")],
    trees: GoldTrees = None,
    sg: Annotated[
        Path | None, typer.Option(help="A folder of SG suites; for the attention test too.")
    ] = None,
    blimp: Annotated[Path | None, typer.Option(help="A folder of BLiMP paradigms.")] = None,
    recipe: Recipe = "english-small",
    models: Annotated[str, typer.Option(help="Models, separated by commas.")] = "base,pushdown",
    out: Out = Path("results", "sentences"),
    runs: Runs = None,
    seeds: Seeds = 1,
    first_seed: FirstSeed = 0,
    beam: Beam = 100,
    threshold: Threshold = 6.0,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Items of each suite, pairs of each paradigm, trees.")
    ] = None,
    overrides: Overrides = None,
) -> None:
    """Base-LM and Pushdown-LM, alike in all else: SG, BLiMP, perplexity, parsing, attention.

    Tests run for which there is data. The same command again goes on where it was interrupted.

    pushdown reproduce sentences --data data/bllip --recipe bllip-lg --trees test.trees
    --sg sg_suites --blimp blimp --beam 300
    """
    from pushdown_lm.experiments.sentences import SentenceOptions, markdown, reproduce_sentences

    options = SentenceOptions(
        data=str(data),
        trees=_text(trees),
        sg=_text(sg),
        blimp=_text(blimp),
        recipe=recipe,
        overrides=tuple(overrides or ()),
        beam=beam,
        threshold=threshold,
        limit=limit,
    )
    with _interruptible():
        results = reproduce_sentences(
            out,
            runs or Path("runs", out.name),
            [name.strip() for name in models.split(",")],
            range(first_seed, first_seed + seeds),
            options,
            _command(),
        )
    typer.echo(markdown(results))


@app.command()
def pretrained(
    data: Annotated[
        Path, typer.Option(help="Windows of parsed text, made by `pushdown data build`.")
    ],
    glue: Annotated[Path, typer.Option(help="The folder of the tasks' folders.")],
    tasks: Annotated[str, typer.Option(help="Tasks, separated by commas.")] = "rte,sst5,mrpc,stsb",
    base: Annotated[
        Path | None,
        typer.Option(help="A converted model, no pushdown layers; or the recipe's."),
    ] = None,
    pushdown: Annotated[
        Path | None, typer.Option(help="A converted model with pushdown layers; or the recipe's.")
    ] = None,
    trees: GoldTrees = None,
    recipe: Recipe = "gpt2-medium",
    out: Out = Path("results", "pretrained"),
    runs: Runs = None,
    seeds: Seeds = 3,
    beam: Beam = 10,
    threshold: Threshold = 6.0,
    limit: Annotated[int | None, typer.Option(min=1, help="Gold trees to test with.")] = None,
    epochs: Epochs = 3.0,
    batch_size: BatchSize = 16,
    lr: LearningRate = 2e-5,
    freeze: Frozen = "none",
    max_train: MaxTrain = None,
    max_eval: MaxEval = None,
    overrides: Overrides = None,
) -> None:
    """Table 3: pretrained models, trained further on parsed text and fine-tuned to classify.

    The same command again goes on where it was interrupted.

    pushdown reproduce pretrained --data data/wikitrees --glue glue --trees test.trees
    """
    from pushdown_lm.corpora.glue import find_task
    from pushdown_lm.experiments.finetune import FinetuneOptions
    from pushdown_lm.experiments.pretrained import markdown, reproduce_pretrained
    from pushdown_lm.experiments.sentences import SentenceOptions

    start = {"base": _text(base), "pushdown": _text(pushdown)}
    options = SentenceOptions(
        data=str(data),
        trees=_text(trees),
        recipe=recipe,
        overrides=tuple(overrides or ()),
        pretrained={name: folder for name, folder in start.items() if folder is not None},
        beam=beam,
        threshold=threshold,
        limit=limit,
    )
    finetuning = FinetuneOptions(
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        beam=beam,
        max_train=max_train,
        max_eval=max_eval,
        freeze=freeze,
    )
    with _interruptible():
        results = reproduce_pretrained(
            out,
            runs or Path("runs", out.name),
            options,
            [find_task(name.strip()) for name in tasks.split(",")],
            glue,
            finetuning,
            seeds=seeds,
            command=_command(),
        )
    typer.echo(markdown(results))


def _text(path: Path | None) -> str | None:
    return None if path is None else str(path)


def _command() -> str:
    return shlex.join(["pushdown", *sys.argv[1:]])


@contextmanager
def _interruptible() -> Iterator[None]:
    """A training that a signal ends says where it can go on, and exits with the signal's code."""
    from pushdown_lm.training.run import Interrupted

    try:
        yield
    except Interrupted as interruption:
        typer.echo(f"pushdown: {interruption}", err=True)
        raise typer.Exit(interruption.exit_code) from None
