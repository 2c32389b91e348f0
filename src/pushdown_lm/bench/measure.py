"""Measuring contenders fairly: time interleaved in one process, memory in a fresh one each."""

from __future__ import annotations

import json as json_module
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

Result = dict[str, Any]


def interleave(contenders: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
    """Seconds of each contender's fastest round, the one that other work on the machine disturbed
    least; they run in turns, after one warm-up."""
    seconds: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(repeats + 1):
        for name, run in contenders.items():
            began = time.perf_counter()
            run()
            if turn:
                seconds[name].append(time.perf_counter() - began)
    return {name: min(times) for name, times in seconds.items()}


def peak_memory(module: str, *arguments: str) -> float:
    """Peak megabytes of ``python -m module arguments``, in a process of its own."""
    done = subprocess.run(
        [sys.executable, "-m", module, *arguments], check=True, capture_output=True, text=True
    )
    return float(done.stdout.split()[-1])


def print_peak_memory() -> None:
    """Print this process's peak in megabytes, for :func:`peak_memory` to read."""
    status = Path("/proc/self/status")
    if status.exists():  # unlike getrusage, this does not remember the process that forked us
        line = next(line for line in status.read_text().splitlines() if line.startswith("VmHWM"))
        print(int(line.split()[1]) / 1024)
    else:
        import resource  # not on Windows

        print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)


def report(results: Iterable[Result], as_json: bool) -> None:
    """Print results as they come: one JSON object per line, or one table at the end if any."""
    if as_json:
        for result in results:
            print(json_module.dumps(result), flush=True)
        return
    if not (rows := list(results)):
        return
    measures = dict.fromkeys(key for row in rows for key in row if key not in ("bench", "case"))
    table = Table("", *(row["case"] for row in rows), title=rows[0]["bench"])
    for measure in measures:
        table.add_row(measure.replace("_", " "), *(_cell(row.get(measure)) for row in rows))
    Console().print(table)


def _cell(value: object) -> str:
    if value is None:
        return ""
    return f"{value:,.3g}" if isinstance(value, float) else str(value)
