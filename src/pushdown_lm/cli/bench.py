"""`pushdown bench`: speed and memory as ratios, contenders side by side in one process."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from pushdown_lm.cli.options import Beam, Threshold
from pushdown_lm.search.defaults import DEFAULT_BEAM, DEFAULT_THRESHOLD

app = typer.Typer(help=__doc__, no_args_is_help=True)

Json = Annotated[bool, typer.Option("--json", help="One JSON object per line, no table.")]


@app.command()
def trees(
    paths: Annotated[
        list[Path] | None, typer.Argument(help="Files of trees; by default generated ones.")
    ] = None,
    json: Json = False,
) -> None:
    """Read, binarize and attach trees on one core; build the tapes of a batch."""
    from pushdown_lm.bench import trees as bench_trees
    from pushdown_lm.bench.measure import report

    report(bench_trees.run(paths or []), json)


@app.command()
def train(
    cases: Annotated[
        list[str] | None, typer.Argument(help="Cases to run; by default all of them.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed steps of each contender.")] = 5,
    json: Json = False,
) -> None:
    """One training step of a Pushdown model against the same decoder with plain attention."""
    from pushdown_lm.bench import train as bench_train
    from pushdown_lm.bench.measure import report

    report(bench_train.run(cases or list(bench_train.CASES), repeats), json)


@app.command()
def kernels(
    repeats: Annotated[int, typer.Option(min=1, help="Timed passes of each contender.")] = 5,
    json: Json = False,
) -> None:
    """The loss and the attention of a training step in bfloat16 against PyTorch's own."""
    from pushdown_lm.bench import kernels as bench_kernels
    from pushdown_lm.bench.measure import report

    report(bench_kernels.run(repeats), json)


@app.command()
def adapt(
    cases: Annotated[
        list[str] | None, typer.Argument(help="Cases to run; by default all of them.")
    ] = None,
    repeats: Annotated[int, typer.Option(min=1, help="Timed steps of each contender.")] = 3,
    json: Json = False,
) -> None:
    """Adapting a pretrained model with the kept output of its lower layers, and without."""
    from pushdown_lm.bench import adapt as bench_adapt
    from pushdown_lm.bench.measure import report

    report(bench_adapt.run(cases or list(bench_adapt.CASES), repeats), json)


@app.command()
def search(
    cases: Annotated[
        list[str] | None, typer.Argument(help="Cases to run; by default all of them.")
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(help="Instead, a trained model on sentences that it generates itself."),
    ] = None,
    beam: Beam = DEFAULT_BEAM,
    threshold: Threshold = DEFAULT_THRESHOLD,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of each contender.")] = 3,
    json: Json = False,
) -> None:
    """Beam search against the bare decoder on as many cells, whole and with pruning.

    --beam and --threshold are those of a trained model:

    pushdown bench search --model english
    """
    from pushdown_lm.bench import search as bench_search
    from pushdown_lm.bench.measure import report

    if model is not None:
        report(bench_search.run_model(model, beam, threshold, repeats), json)
        return
    report(bench_search.run(cases or list(bench_search.CASES), repeats), json)


@app.command()
def pipeline(
    steps: Annotated[int, typer.Option(min=10, help="Timed training steps.")] = 60,
    json: Json = False,
) -> None:
    """The input pipeline against training, and the Trainer against a bare training loop."""
    from pushdown_lm.bench import pipeline as bench_pipeline
    from pushdown_lm.bench.measure import report

    report(bench_pipeline.run(steps), json)


@app.command()
def corpus(
    text: Annotated[
        Path | None, typer.Argument(help="A text file; by default generated sentences.")
    ] = None,
    parser: Annotated[
        str | None,
        typer.Option(
            metavar="KIND:WHAT",
            help="As in `pushdown corpus build`, commands persistent; by default a random model.",
        ),
    ] = None,
    sentences: Annotated[int, typer.Option(min=1, help="Generated sentences.")] = 1000,
    json: Json = False,
) -> None:
    """Building a corpus against its parser alone, and each of the other parts."""
    from pushdown_lm.bench import corpus as bench_corpus
    from pushdown_lm.bench.measure import report

    report(bench_corpus.run(text, parser, sentences), json)


@app.command()
def suites(
    data: Annotated[Path, typer.Argument(help="The folder of the SG suites.")],
    model: Annotated[
        Path | None, typer.Option(help="A Pushdown model; by default a random one, 6 x 256.")
    ] = None,
    beam: Annotated[int, typer.Option(min=1)] = 300,
    threshold: Annotated[float, typer.Option(metavar="NATS", help="Of the pruned runs.")] = 5.0,
    limit: Annotated[int | None, typer.Option(min=1, help="Items of each suite.")] = None,
    json: Json = False,
) -> None:
    """The whole SG set with threshold pruning, and the decisions that pruning changes.

    torchrun --nproc-per-node 2 --no-python pushdown bench suites sg_suites
    --model runs/demo/seed0/demo/model
    """
    from pushdown_lm.bench import suites as bench_suites
    from pushdown_lm.bench.measure import report

    report(bench_suites.run(data, model, beam, threshold, limit), json)


@app.command()
def explore(
    model: Annotated[
        str | None,
        typer.Option(help="A folder or the name of an installed model; by default a random one."),
    ] = None,
    requests: Annotated[int, typer.Option(min=1, help="Sentences that are asked at once.")] = 20,
    beam: Annotated[int, typer.Option(min=1)] = 50,
    threshold: Annotated[float, typer.Option(metavar="NATS")] = 10.0,
    json: Json = False,
) -> None:
    """The explorer: seconds until a parse shows, and until the page answers under load.

    pushdown bench explore --model runs/demo/seed0/demo/model
    """
    from pushdown_lm.bench import explore as bench_explore
    from pushdown_lm.bench.measure import report

    found = bench_explore.run(model, requests=requests, beam=beam, threshold=threshold)
    report(found, json)
