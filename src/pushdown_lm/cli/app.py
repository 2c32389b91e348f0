"""The `pushdown` command."""

from __future__ import annotations

import os
import sys

import typer

from pushdown_lm.cli import bench, convert, data, demo, finetune, reproduce, search, train
from pushdown_lm.cli import eval as evaluate
from pushdown_lm.errors import PushdownError

app = typer.Typer(
    name="pushdown",
    help="Transformer language models with Pushdown Layers.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(bench.app, name="bench")
app.add_typer(data.app, name="data")
app.add_typer(evaluate.app, name="eval")
app.add_typer(reproduce.app, name="reproduce")
app.command()(train.train)
app.command()(convert.convert)
app.command()(finetune.finetune)
app.command()(demo.demo)
for command in (search.score, search.surprisal, search.parse, search.generate):
    app.command()(command)


def main() -> None:
    """Run the command; bad input is one line on standard error and exit code 2."""
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # there is our own
    try:
        app()
    except PushdownError as error:
        print(f"pushdown: {error}", file=sys.stderr)
        sys.exit(2)
    except OSError as error:
        place = f"{error.filename}: " if error.filename else ""
        print(f"pushdown: {place}{error.strerror or error}", file=sys.stderr)
        sys.exit(2)
    except KeyboardInterrupt:
        print("pushdown: interrupted", file=sys.stderr)
        sys.exit(130)
    finally:
        _leave_process_group()


def _leave_process_group() -> None:
    """End what `torchrun` began; its threads would otherwise abort the exiting process."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
