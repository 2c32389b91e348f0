"""`pushdown finetune`: text classification with tapes from the model's own parses."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from pushdown_lm.cli.options import EXIT_SOME_FAILED
from pushdown_lm.console import show_loading

if TYPE_CHECKING:
    from pushdown_lm.experiments.finetune import Result

Epochs = Annotated[
    float | None, typer.Option(help="Passes over the training examples; by default the preset's.")
]
BatchSize = Annotated[
    int | None, typer.Option(min=1, help="Prompts per step; by default the preset's.")
]
LearningRate = Annotated[
    float | None,
    typer.Option(help="The highest learning rate of fine-tuning; by default the preset's."),
]
Frozen = Annotated[
    str, typer.Option(help="What is not fine-tuned: none, all-but-pushdown, lower or lower:N.")
]
CacheLower = Annotated[
    bool, typer.Option("--cache-lower", help="Compute what frozen lower layers give only once.")
]
Accumulation = Annotated[
    int,
    typer.Option(min=1, help="Cut each step into so many parts: less memory and padding."),
]
MaxTrain = Annotated[
    int | None, typer.Option(min=1, help="Train on this many examples, drawn at random.")
]
MaxEval = Annotated[
    int | None, typer.Option(min=1, help="Evaluate this many examples, drawn at random.")
]


class Preset(StrEnum):
    paper = "paper"
    quick = "quick"


ChosenPreset = Annotated[
    Preset,
    typer.Option(help="Prompts, labels and settings of the paper's appendix A, or cheaper ones."),
]


class Precision(StrEnum):
    float32 = "float32"
    bf16 = "bf16"
    auto = "auto"


ChosenPrecision = Annotated[
    Precision,
    typer.Option(help="Of products; auto is bf16 where the device has instructions for it."),
]


class Split(StrEnum):
    dev = "dev"
    test = "test"


def finetune(
    tasks: Annotated[
        list[str], typer.Argument(metavar="TASK...", help="rte, sst5, mrpc, stsb, or all.")
    ],
    model: Annotated[
        list[Path], typer.Option(help="The folder of a Pushdown model; repeat it to compare.")
    ],
    data: Annotated[
        Path, typer.Option(help="The folder of the task's files, or of the tasks' folders.")
    ],
    out: Annotated[Path, typer.Option(help="The folder for results and parses.")],
    seeds: Annotated[int, typer.Option(min=1, help="Number of runs, with the seeds 0, 1, ...")] = 3,
    preset: ChosenPreset = Preset.quick,
    epochs: Epochs = None,
    batch_size: BatchSize = None,
    lr: LearningRate = None,
    lm_weight: Annotated[
        float, typer.Option(min=0, help="Weight of the language-model loss on the prompts.")
    ] = 1.0,
    beam: Annotated[int, typer.Option(min=1, help="Entries of the search for parses.")] = 10,
    threshold: Annotated[
        float, typer.Option(metavar="NATS", help="Drop parses this far below the best one.")
    ] = 6.0,
    split: Annotated[
        Split | None,
        typer.Option(help="The split to evaluate; by default dev, or test where there is no dev."),
    ] = None,
    max_train: MaxTrain = None,
    max_eval: MaxEval = None,
    freeze: Frozen = "none",
    lora_rank: Annotated[
        int | None, typer.Option(min=1, help="Train low-rank adapters (peft) instead.")
    ] = None,
    cache_lower: CacheLower = False,
    gradient_accumulation: Accumulation = 1,
    gradient_checkpointing: Annotated[
        bool, typer.Option("--gradient-checkpointing", help="Less memory, more time.")
    ] = False,
    precision: ChosenPrecision = Precision.float32,
    save: Annotated[bool, typer.Option("--save", help="Keep the fine-tuned models.")] = False,
) -> None:
    """Fine-tune models on RTE, SST-5, MRPC and STS-B, and compare them.

    The model first parses every example; the parses are kept in OUT/parses.jsonl and fixed during
    training. Prints one table, with mean and standard deviation over the seeds, in percent.
    The same command resumes after an interruption: finished runs are kept, and a run that was
    interrupted continues from its last checkpoint. A model that fails does not end the others; the
    exit code is 1 then.

    Processes of `torchrun` share the work.

    pushdown finetune rte --model runs/demo/seed0/demo-base/model
    --model runs/demo/seed0/demo/model --data glue --out out

    pushdown finetune all --model runs/demo/seed0/demo/model --data glue --out out --preset paper
    """
    from pushdown_lm.corpora.glue import TASK_SETS, find_task

    names = [*TASK_SETS[preset.value]] if tasks == ["all"] else tasks
    chosen = [find_task(name, preset.value) for name in names]
    show_loading(", ".join(map(str, model)))
    from transformers.utils.logging import disable_progress_bar, set_verbosity_error

    from pushdown_lm.evals.sharding import processes
    from pushdown_lm.experiments import finetune as finetuning

    set_verbosity_error()
    disable_progress_bar()
    options = finetuning.preset_options(
        preset.value,
        epochs=epochs,
        batch_size=batch_size,
        lr=lr,
        lm_weight=lm_weight,
        beam=beam,
        threshold=threshold,
        split=None if split is None else split.value,
        max_train=max_train,
        max_eval=max_eval,
        freeze=freeze,
        lora_rank=lora_rank,
        cache_lower=cache_lower,
        gradient_accumulation=gradient_accumulation,
        gradient_checkpointing=gradient_checkpointing,
        precision=precision.value,
    )
    failures: list[str] = []

    def report(failure: str) -> None:
        failures.append(failure)
        print(f"pushdown: {failure}", file=sys.stderr)

    results = finetuning.finetune_all(
        chosen, model, data, out, options, seeds=seeds, save=save, report=report
    )
    if processes().is_main_process:
        _show(results)
    if failures:
        raise typer.Exit(EXIT_SOME_FAILED)


def _show(results: Sequence[Result]) -> None:
    from rich.console import Console
    from rich.table import Table

    from pushdown_lm.console import error_console
    from pushdown_lm.experiments.finetune import table

    for result in results:
        run = result.runs[-1]
        error_console().print(
            f"{result.task}, {result.model}: {result.num_train:,} examples, evaluated on "
            f"{result.num_eval:,} ({result.split}); {run.trainable_parameters:,} of "
            f"{run.parameters:,} parameters trained, {run.peak_memory_megabytes or 0:,.0f} MB"
        )
    header, *rows = table(results)
    console = Console()
    if console.is_terminal:
        shown = Table(*header)
        for row in rows:
            shown.add_row(*row)
        console.print(shown)
    else:
        for row in (header, *rows):
            typer.echo("\t".join(row))
