"""`pushdown reproduce`: the paper's experiments, end to end."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pushdown_lm.cli.finetune import (
    Accumulation,
    BatchSize,
    CacheLower,
    ChosenPrecision,
    ChosenPreset,
    Epochs,
    Frozen,
    LearningRate,
    MaxEval,
    MaxTrain,
    Precision,
    Preset,
)
from pushdown_lm.errors import PushdownError

if TYPE_CHECKING:
    from pushdown_lm.experiments.english import EnglishOptions
    from pushdown_lm.experiments.sentence_tests import TestData

app = typer.Typer(help="Run an experiment of the paper and compare.", no_args_is_help=True)

Out = Annotated[Path, typer.Option(help="The folder for results.")]
Runs = Annotated[
    Path | None,
    typer.Option(help="The folder for data and models; by default runs/ and the name of --out."),
]
GoldTrees = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=FILE", help="Gold trees, for parsing and perplexity; may be repeated."
    ),
]
Suites = Annotated[
    Path | None, typer.Option(help="A folder of SG suites; for the attention test too.")
]
Paradigms = Annotated[Path | None, typer.Option(help="A folder of BLiMP paradigms.")]
Limit = Annotated[
    int | None, typer.Option(min=1, help="Items of each suite, pairs of each paradigm, trees.")
]
Seeds = Annotated[int, typer.Option(min=1, help="Seeds to run and average over.")]
FirstSeed = Annotated[int, typer.Option(min=0)]
Beam = Annotated[int, typer.Option(min=1, help="Parses that search keeps per sentence.")]
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
        Path | None,
        typer.Option(help="The folder for results; by default results/dyck or results/dyck-quick."),
    ] = None,
    runs: Runs = None,
    models: Annotated[
        str, typer.Option(help="Models, separated by commas; also: ablations, all.")
    ] = "base,paper,depths,open",
    seeds: Seeds = 1,
    first_seed: FirstSeed = 0,
    rows: Annotated[
        str | None, typer.Option(help="Rows, separated by commas, such as distance-300.")
    ] = None,
    items: Annotated[
        int | None, typer.Option(min=1, help="Test prefixes per row and seed.")
    ] = None,
    strings: Annotated[
        int | None, typer.Option(min=1, help="Training strings, of 48 symbols on average.")
    ] = None,
    steps: Annotated[
        int | None, typer.Option(min=1, help="Shorthand for --set training.steps=N.")
    ] = None,
    answer: Annotated[
        str, typer.Option(help="Which parses of the beam answer: mixture or best.")
    ] = "mixture",
    overrides: Overrides = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few minutes: less training, fewer prefixes.")
    ] = False,
) -> None:
    """Table 1: closing brackets over long distances and in deep nesting.

    The same command resumes where it left off; finished models and rows are kept, so further
    --models, --seeds or --rows add to the table.

    pushdown reproduce dyck --quick

    pushdown reproduce dyck --models open --seeds 3

    pushdown reproduce dyck --models base,paper --strings 660000 --steps 16000

    pushdown reproduce dyck --models ablations
    """
    from dataclasses import replace

    from pushdown_lm.experiments.dyck import (
        DyckOptions,
        choose_answer,
        choose_models,
        choose_rows,
        reproduce_dyck,
    )
    from pushdown_lm.experiments.dyck_report import markdown

    chosen = choose_models(models)
    options = DyckOptions.quick() if quick else DyckOptions()
    changes = [*(overrides or []), *([] if steps is None else [f"training.steps={steps}"])]
    options = replace(
        options,
        rows=options.rows if rows is None else choose_rows(rows),
        items=items or options.items,
        strings=strings or options.strings,
        answer=choose_answer(answer),
        overrides=(*options.overrides, *changes),
    )
    out = out or Path("results", "dyck-quick" if quick else "dyck")
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
def english(
    data: Annotated[
        Path | None, typer.Option(help="A dataset made by `pushdown data build`.")
    ] = None,
    trees: GoldTrees = None,
    sg: Suites = None,
    blimp: Paradigms = None,
    models: Annotated[
        str,
        typer.Option(
            help="Recipes, separated by commas, a column of the table each; or ablations, shares."
        ),
    ] = "english-base,english-paper,english",
    out: Out = Path("results", "english"),
    runs: Runs = None,
    seeds: Seeds = 1,
    first_seed: FirstSeed = 0,
    beam: Beam = 100,
    threshold: Threshold = 8.0,
    limit: Limit = None,
    check_beam: Annotated[
        bool,
        typer.Option(
            "--check-beam", help="SG and perplexity also with twice the beam and 2 nats more."
        ),
    ] = False,
    overrides: Overrides = None,
    installed: Annotated[
        bool,
        typer.Option("--installed", help="Test installed models of these names, train none."),
    ] = False,
) -> None:
    """Table 2: sentence-level models, trained alike: SG, BLiMP, perplexity, parsing, attention.

    Tests run for which there is data. The same command again resumes where it left off, and further
    models or seeds add to the table.

    pushdown reproduce english --data data/wsj --trees wsj=test.trees --sg sg_suites --blimp blimp

    pushdown reproduce english --models bllip-lg-base,bllip-lg --data data/wsj --beam 300

    pushdown reproduce english --models english-base,english --installed --sg sg_suites

    pushdown reproduce english --models english,ablations --data data/wsj --set training.steps=1200

    pushdown reproduce english --models shares --data data/wsj --out results/english-shares
    """
    from dataclasses import replace

    from pushdown_lm.experiments.english import EnglishOptions, markdown, reproduce_english
    from pushdown_lm.training.recipe import ABLATIONS, SHARES, recipe_names

    options = EnglishOptions(
        data="" if data is None else str(data),
        tests=replace(_tests(trees, sg, blimp, beam, threshold, limit), check_beam=check_beam),
        overrides=tuple(overrides or ()),
        installed=installed,
    )
    names = [
        recipe
        for name in _names(models)
        for recipe in (recipe_names(name) if name in (ABLATIONS, SHARES) else [name])
    ]
    _check_data(options, names, "--installed needs none")
    results = reproduce_english(
        out,
        runs or Path("runs", out.name),
        names,
        range(first_seed, first_seed + seeds),
        options,
        _command(),
    )
    typer.echo(markdown(results))


@app.command()
def code(
    files: Annotated[
        list[str] | None,
        typer.Argument(metavar="[FILES...]", help="Source files; Python's standard library."),
    ] = None,
    language: Annotated[str, typer.Option(help="Of the files, as in `corpus code`.")] = "python",
    models: Annotated[
        str, typer.Option(help="Recipes, separated by commas: a column of the table each.")
    ] = "code-base,code",
    out: Out = Path("results", "code"),
    runs: Runs = None,
    seeds: Seeds = 1,
    first_seed: FirstSeed = 0,
    max_nesting: Annotated[
        int, typer.Option(min=1, help="Hold units that are nested more deeply out of training.")
    ] = 4,
    units: Annotated[
        int, typer.Option(min=1, help="Units of each test set, for perplexity and parsing.")
    ] = 100,
    items: Annotated[int, typer.Option(min=1, help="Closing words of each kind and nesting.")] = 40,
    beam: Beam = 8,
    threshold: Threshold = 5.0,
    overrides: Overrides = None,
) -> None:
    """Source code: perplexity, parsing, and closing brackets and blocks in deep nesting.

    The same command again resumes where it left off, and further models or seeds add to the table.

    pushdown reproduce code

    pushdown reproduce code 'src/**/*.js' --language javascript --out results/javascript
    """
    from dataclasses import replace
    from itertools import chain

    from pushdown_lm.data.build import find_files
    from pushdown_lm.experiments.code_report import markdown
    from pushdown_lm.experiments.source_code import CodeExperiment, reproduce_code

    options = CodeExperiment(
        files=tuple(chain.from_iterable(map(find_files, files or []))),
        units=units,
        items=items,
        beam=beam,
        threshold=threshold,
        overrides=tuple(overrides or ()),
    )
    corpus = replace(options.corpus, language=language, max_nesting=max_nesting)
    results = reproduce_code(
        out,
        runs or Path("runs", out.name),
        _names(models),
        range(first_seed, first_seed + seeds),
        replace(options, corpus=corpus),
        _command(),
    )
    typer.echo(markdown(results))


@app.command()
def pretrained(
    data: Annotated[
        Path | None,
        typer.Option(help="Parsed text in the model's tokens, by `pushdown data build`."),
    ] = None,
    glue: Annotated[
        Path | None, typer.Option(help="The folder of the tasks' folders; without it, no tasks.")
    ] = None,
    tasks: Annotated[str, typer.Option(help="Tasks, separated by commas.")] = "rte,sst5,mrpc,stsb",
    models: Annotated[
        str, typer.Option(help="Recipes, separated by commas, the Base-LM's first.")
    ] = "gpt2-medium-base,gpt2-medium",
    pretrained: Annotated[
        list[str] | None,
        typer.Option(metavar="RECIPE=MODEL", help="Start a recipe from this converted model."),
    ] = None,
    adapter: Annotated[
        list[str] | None,
        typer.Option(
            metavar="RECIPE=ADAPTER",
            help="Put this adapter on the recipe's pretrained model, and do not train it.",
        ),
    ] = None,
    trees: GoldTrees = None,
    sg: Suites = None,
    blimp: Paradigms = None,
    out: Out = Path("results", "pretrained"),
    runs: Runs = None,
    seeds: Seeds = 3,
    beam: Beam = 10,
    threshold: Threshold = 6.0,
    limit: Limit = None,
    preset: ChosenPreset = Preset.quick,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    freeze: Frozen = "none",
    cache_lower: CacheLower = False,
    gradient_accumulation: Accumulation = 1,
    precision: ChosenPrecision = Precision.float32,
    task_beam: Annotated[
        int | None,
        typer.Option(min=1, help="Parses kept per sentence of a task; by default the preset's."),
    ] = None,
    max_train: MaxTrain = None,
    max_eval: MaxEval = None,
    overrides: Overrides = None,
) -> None:
    """Table 3: pretrained models, trained further on parsed text and fine-tuned to classify.

    The models are trained alike on the same text, tested as in `pushdown reproduce english` with
    what there is data for, and fine-tuned on the tasks with the paper's prompts. The same command
    again resumes where it left off.

    pushdown reproduce pretrained --data data/windows --glue glue --trees test=test.trees

    pushdown reproduce pretrained --models smollm2-base,smollm2 --data sentences
    --sg sg_suites --blimp blimp --trees test=test.trees --glue glue --tasks rte,sst5 --seeds 2
    """

    from pushdown_lm.corpora.glue import find_task
    from pushdown_lm.experiments.english import EnglishOptions
    from pushdown_lm.experiments.finetune import preset_options
    from pushdown_lm.experiments.pretrained import markdown, reproduce_pretrained

    options = EnglishOptions(
        data="" if data is None else str(data),
        tests=_tests(trees, sg, blimp, beam, threshold, limit),
        overrides=tuple(overrides or ()),
        pretrained=_read_pairs(pretrained, "--pretrained RECIPE=MODEL"),
        adapters=_read_pairs(adapter, "--adapter RECIPE=ADAPTER"),
    )
    _check_data(options, _names(models), "a model with an --adapter needs none")
    finetuning = preset_options(
        preset.value,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        beam=task_beam,
        threshold=threshold,
        max_train=max_train,
        max_eval=max_eval,
        freeze=freeze,
        cache_lower=cache_lower,
        gradient_accumulation=gradient_accumulation,
        precision=precision.value,
    )
    results = reproduce_pretrained(
        out,
        runs or Path("runs", out.name),
        _names(models),
        options,
        [] if glue is None else [find_task(name, preset.value) for name in _names(tasks)],
        glue or "",
        finetuning,
        seeds=seeds,
        command=_command(),
    )
    typer.echo(markdown(results))


def _tests(
    trees: list[str] | None,
    sg: Path | None,
    blimp: Path | None,
    beam: int,
    threshold: float,
    limit: int | None,
) -> TestData:
    from pushdown_lm.experiments.sentence_tests import TestData

    return TestData(
        trees=_read_pairs(trees, "--trees NAME=FILE"),
        sg=None if sg is None else str(sg),
        blimp=None if blimp is None else str(blimp),
        beam=beam,
        threshold=threshold,
        limit=limit,
    )


def _check_data(options: EnglishOptions, models: list[str], hint: str) -> None:
    if not options.data and any(options.trains(Path(model).stem) for model in models):
        raise PushdownError(f"--data: expected a dataset to train on; {hint}")


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _read_pairs(pairs: list[str] | None, usage: str) -> dict[str, str]:
    """Names and values of options such as ``gum=gum/test.trees``."""
    named = {}
    for pair in pairs or []:
        name, separator, value = pair.partition("=")
        if not (name and separator and value):
            raise PushdownError(f"expected {usage}, got {pair!r}")
        named[name] = value
    return named


def _command() -> str:
    return shlex.join(["pushdown", *sys.argv[1:]])
