"""The memory of `corpus build` does not grow with the text."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.corpora.parsers.test_command import TOY

STATUS = Path("/proc/self/status")
MEASURED = f"""
import atexit, re
atexit.register(lambda: print("peak", re.search(r"VmHWM:\\s+(\\d+)", open("{STATUS}").read())[1]))
from pushdown_lm.cli.app import main
main()
"""
"""The command, which prints the peak of its resident memory, in kB, at its end.

It is read from /proc since `getrusage` counts what the process that started this one held, too.
"""
KILOBYTE = " ".join(["x" * 200] * 5) + "\n"
"""A sentence of five words."""


def peak_megabytes(folder: Path, megabytes: int, *arguments: str) -> float:
    """Of a build of so much text from standard input."""
    text = folder / f"{megabytes}.txt"
    text.write_text(KILOBYTE * 1000 * megabytes, encoding="utf-8")
    command = ["corpus", "build", "-", "--layout", "sentences", "--parser", TOY, "--persistent"]
    with text.open("rb") as stdin:
        done = subprocess.run(
            [
                sys.executable,
                "-c",
                MEASURED,
                *command,
                "--out",
                folder / f"{megabytes}",
                *arguments,
            ],
            stdin=stdin,
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr
    assert f"{1000 * megabytes:,}" in done.stdout
    return int(done.stdout.split()[-1]) / 1000


@pytest.mark.skipif(not STATUS.exists(), reason="needs /proc")
def test_memory_does_not_grow_with_the_text(tmp_path: Path) -> None:
    """Ten times the text, 9 MB more, of which not even a third may stay."""
    small, large = (peak_megabytes(tmp_path, megabytes) for megabytes in (1, 10))
    assert large < small + 3
