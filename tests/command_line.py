"""The `pushdown` command, run in this process."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass

import pytest
import typer
from typer.testing import CliRunner

from pushdown_lm.cli.app import app, main

COLUMNS = "200"
"""The width of the terminal, so that tables are not cut."""


@dataclass(frozen=True)
class Done:
    """What a command left behind."""

    exit_code: int
    output: str
    """Standard output."""
    error: str
    """Standard error."""


def run_pushdown(*arguments: object, stdin: str | bytes = "") -> Done:
    """Run the command with all that its entry point does: bad input is exit code 2 and one line."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", ["pushdown", *map(str, arguments)])
        with CliRunner().isolation(input=stdin, env={"COLUMNS": COLUMNS}) as streams:
            with pytest.raises(SystemExit) as stopped:
                main()
            sys.stdout.flush()
            sys.stderr.flush()
            output, error = (stream.getvalue().decode() for stream in streams[:2])
    code = stopped.value.code
    return Done(code if isinstance(code, int) else int(code is not None), output, error)


def launch_pushdown(processes: int, *arguments: object) -> str:
    """Run the command in several processes that work together; their standard output.

    The processes take turns on whatever cores there are.
    """
    launch = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={processes}"]
    call = ["--no-python", sys.executable, "-c", "from pushdown_lm.cli.app import main; main()"]
    done = subprocess.run(
        [sys.executable, *launch, *call, *map(str, arguments)],
        env={**os.environ, "OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def parse_command(arguments: list[str]) -> None:
    """Raise an error unless the arguments are ones that a command accepts; nothing is run."""
    command = typer.main.get_command(app)
    rest = list(arguments)
    while hasattr(command, "commands"):
        command = command.commands[rest.pop(0)]
    command.make_context("pushdown", rest)
