"""The `pushdown` command."""

from __future__ import annotations

import os
import shlex
import sys
import tempfile
import traceback
from importlib import metadata
from typing import Annotated

import typer

from pushdown_lm.cli import (
    adapter,
    bench,
    convert,
    corpus,
    data,
    demo,
    explore,
    finetune,
    reproduce,
    search,
    train,
)
from pushdown_lm.cli import eval as evaluate
from pushdown_lm.cli.options import EXIT_BAD_INPUT, EXIT_INTERNAL, EXIT_INTERRUPTED
from pushdown_lm.errors import Interrupted, PushdownError
from pushdown_lm.machine import versions


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"pushdown-lm {metadata.version('pushdown-lm')}")
        raise typer.Exit


app = typer.Typer(
    name="pushdown",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(adapter.app, name="adapter")
app.add_typer(bench.app, name="bench")
app.add_typer(corpus.app, name="corpus")
app.add_typer(data.app, name="data")
app.add_typer(evaluate.app, name="eval")
app.add_typer(reproduce.app, name="reproduce")
app.command()(train.train)
app.command()(convert.convert)
app.command()(convert.import_published)
app.command()(finetune.finetune)
app.command()(demo.demo)
app.command()(explore.explore)
for command in (search.score, search.surprisal, search.parse, search.generate):
    app.command()(command)


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", is_eager=True, callback=_show_version, help="Show the version and exit."
        ),
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the traceback of an error.")] = False,
) -> None:
    """Transformer language models with Pushdown Layers."""


def main() -> None:
    """Run the command; bad input is one line on standard error and exit code 2.

    An unexpected error is one line too, with exit code 70; its traceback is written to a file.
    `--debug`, before or after the command's name, shows the traceback of either.
    """
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")  # there is our own
    arguments = sys.argv[1:]
    debug = "--debug" in arguments
    try:
        app([argument for argument in arguments if argument != "--debug"])
    except BaseException as error:
        code = _exit_code(error, debug)
        if code is None:
            raise
        sys.exit(code)
    finally:
        _leave_process_group()


def _exit_code(error: BaseException, debug: bool) -> int | None:
    """Say what went wrong, and the exit code; None for an exit that was asked for."""
    was_interrupted = isinstance(error, SystemExit) and error.code == EXIT_INTERRUPTED  # by typer
    if isinstance(error, SystemExit | GeneratorExit) and not was_interrupted:
        return None
    if isinstance(error, KeyboardInterrupt) or was_interrupted:
        print("pushdown: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
    if isinstance(error, Interrupted):
        print(f"pushdown: {error}", file=sys.stderr)
        return error.exit_code
    if debug:
        traceback.print_exception(error)
    if isinstance(error, PushdownError):
        print(f"pushdown: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    if isinstance(error, BrokenPipeError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # nobody reads the rest
        return EXIT_BAD_INPUT
    if isinstance(error, OSError):
        place = f"{error.filename}: " if error.filename else ""
        print(f"pushdown: {place}{error.strerror or error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    if type(error).__name__ == "SafetensorError":  # of the disk, where a file is written
        print(f"pushdown: {error}", file=sys.stderr)
        return EXIT_BAD_INPUT
    if _is_out_of_memory(error):
        first_line = str(error).strip().partition("\n")[0] or "out of memory"
        print(f"pushdown: not enough memory: {first_line}", file=sys.stderr)
        return EXIT_BAD_INPUT
    path = _write_report(error)
    message = " ".join(str(error).split())[:200]
    print(
        f"pushdown: internal error: {type(error).__name__}: {message}; "
        f"{f'please report it with {path}' if path else '--debug shows where'}",
        file=sys.stderr,
    )
    return EXIT_INTERNAL


def _is_out_of_memory(error: BaseException) -> bool:
    kind = type(error).__name__
    return isinstance(error, MemoryError) or (
        kind in ("OutOfMemoryError", "RuntimeError")
        and any(hint in str(error) for hint in ("out of memory", "can't allocate memory"))
    )


def _write_report(error: BaseException) -> str | None:
    """The name of a new file with the traceback, the command and the versions."""
    lines = [
        f"command: {shlex.join(sys.argv)}",
        *(f"{name} {value}" for name, value in versions().items()),
        "",
        *traceback.format_exception(error),
    ]
    try:
        handle, name = tempfile.mkstemp(prefix="pushdown-error-", suffix=".txt")
        with os.fdopen(handle, "w", encoding="utf-8", errors="backslashreplace") as file:
            file.write("\n".join(lines))
    except OSError:
        return None
    return name


def _leave_process_group() -> None:
    """End what `torchrun` began; its threads would otherwise abort the exiting process."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        distributed.destroy_process_group()
