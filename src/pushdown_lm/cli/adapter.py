"""`pushdown adapter`: what was trained beside a pretrained model, in a folder of its own."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

app = typer.Typer(help=__doc__, no_args_is_help=True)

Adapter = Annotated[
    Path, typer.Argument(metavar="ADAPTER", help="The folder of an adapter, such as RUN/adapter.")
]
Out = Annotated[Path, typer.Option(help="The folder to write; new or empty.")]


class Precision(StrEnum):
    float16 = "float16"
    bfloat16 = "bfloat16"
    float32 = "float32"


@app.command()
def save(
    adapter: Adapter,
    out: Out,
    dtype: Annotated[Precision, typer.Option(help="Of the weights.")] = Precision.float16,
) -> None:
    """Copy an adapter for others, in half the room.

    Training with `training.lora` in a pretrained model leaves its adapter in RUN/adapter: tape
    embeddings, attachment head and low-rank adapters, with the name and the fingerprint of the base
    model. The copy also gets the recipe and the metrics of the run, if it is finished.

    pushdown adapter save adapter --out adapters/smollm2
    """
    import torch

    from pushdown_lm.search.packaged import PROVENANCE
    from pushdown_lm.training.adapters import copy_adapter
    from pushdown_lm.training.run import describe_training, is_finished

    run = adapter.resolve().parent
    further = {PROVENANCE: describe_training(run)} if is_finished(run) else None
    copy_adapter(adapter, out, getattr(torch, dtype.value), further)
    typer.echo(f"saved\t{out}, {_megabytes(out):.1f} MB")


@app.command()
def apply(
    adapter: Adapter,
    out: Out,
    base: Annotated[
        str | None,
        typer.Option(
            metavar="NAME_OR_FOLDER",
            help="Its base model: Hub name, folder, GGUF file; by default the name it was saved "
            "with.",
        ),
    ] = None,
    gguf_file: Annotated[
        str | None, typer.Option(help="A GGUF file of that name or folder.")
    ] = None,
    other_base: Annotated[
        bool,
        typer.Option("--other-base", help="Allow a base model with other weights of its shapes."),
    ] = False,
) -> None:
    """Put an adapter on its base model and write the whole model.

    A base model whose weights are not those that the adapter was trained on is an error, unless
    --other-base allows it: an adapter for a GGUF file also fits the model that it was made of.

    pushdown adapter apply adapters/smollm2 --base SmolLM2-135M-Instruct.Q4_1.gguf --out models/mine

    pushdown adapter apply adapters/smollm2 --base SmolLM2-135M-Instruct --other-base
    --out models/mine
    """
    from transformers.utils.logging import disable_progress_bar

    from pushdown_lm.training.adapters import apply_adapter

    disable_progress_bar()
    model = apply_adapter(adapter, out, base=base, gguf_file=gguf_file, allow_other_base=other_base)
    typer.echo(f"parameters\t{sum(weight.numel() for weight in model.parameters()):,}")
    typer.echo(f"saved\t{out}")


@app.command()
def show(adapter: Adapter) -> None:
    """Say what an adapter belongs to, after checking its files.

    pushdown adapter show adapters/smollm2
    """
    from pushdown_lm.training.adapters import read_info

    info = read_info(adapter)
    typer.echo(f"base model\t{info.base}")
    typer.echo(f"SHA-256 of its weights\t{info.fingerprint}")
    typer.echo(f"sentences\t{info.bos_token} ... {info.eos_token}")
    for name, value in info.config.items():
        typer.echo(f"{name.replace('_', ' ')}\t{value}")
    typer.echo(f"size\t{_megabytes(adapter):.1f} MB")


def _megabytes(folder: Path) -> float:
    return sum(path.stat().st_size for path in folder.iterdir() if path.is_file()) / 1e6
