"""Ray Data as the engine: the units as a dataset, the parsers as a pool of actors.

An actor reads a unit from the text file by itself, so on a cluster the text must be readable under
the same path on every machine. Results come back to this process, which writes each unit once; a
unit whose actor dies is handed out again by Ray.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from dataclasses import asdict
from itertools import islice
from typing import Any

from pushdown_lm.corpora.parsers import ParserError, open_parser
from pushdown_lm.corpora.parsing_units import UnitOptions, UnitResult, parse_unit
from pushdown_lm.corpora.raw_text import Unit
from pushdown_lm.errors import PushdownError

UNITS_PER_ROUND = 10_000
"""Units that Ray gets to know of at once: memory is bounded, whatever the size of the text."""


class UnitActor:
    """A worker: opens its parser once, then parses one unit after the other."""

    def __init__(self, options: UnitOptions) -> None:
        self.options = options
        self.parser = open_parser(options.parser, options.parser_options)

    def __call__(self, row: dict[str, Any]) -> dict[str, Any]:
        return {
            "number": row["number"],
            "result": parse_unit(Unit(**row), self.parser, self.options).dumps(),
        }


def run_with_ray(
    units: Iterator[Unit], options: UnitOptions, workers: int, address: str | None
) -> Iterator[tuple[Unit, UnitResult]]:
    """The result of each unit, in the order in which they are finished."""
    if address is None:  # read when Ray is imported: listen on this machine only
        os.environ.setdefault("RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER", "0")
    try:
        import ray
        from ray.data import ActorPoolStrategy, DataContext
    except ImportError as error:
        raise PushdownError(
            f"Ray is not installed ({error}): pip install 'pushdown-lm[ray]'"
        ) from None
    was_running = ray.is_initialized()
    if not was_running:
        _connect(ray, workers, address)
    try:
        context = DataContext.get_current()
        context.enable_progress_bars = False
        context.print_on_execution_start = False
        context.execution_options.preserve_order = False
        logging.getLogger("ray.data").setLevel(logging.ERROR)
        while chosen := {unit.number: unit for unit in islice(units, UNITS_PER_ROUND)}:
            rows = ray.data.from_items(
                [asdict(unit) for unit in chosen.values()], override_num_blocks=len(chosen)
            )
            parsed = rows.map(
                UnitActor,
                fn_constructor_args=(options,),
                compute=ActorPoolStrategy(size=min(workers, len(chosen))),
            )
            for row in parsed.iter_rows():
                yield chosen.pop(row["number"]), UnitResult.loads(row["result"])
            assert not chosen, f"Ray left out {sorted(chosen)}"
    except ray.exceptions.RayError as error:
        cause = " ".join(str(error).split())[-300:]
        raise ParserError(
            f"Ray: {cause}; what is finished is kept, so the same command resumes"
        ) from error
    finally:
        if not was_running:
            ray.shutdown()


def _connect(ray: Any, workers: int, address: str | None) -> None:
    if address is None:
        ray.init(
            num_cpus=workers, include_dashboard=False, log_to_driver=False, logging_level="ERROR"
        )
        return
    try:
        ray.init(address=address, log_to_driver=False, logging_level="ERROR")
    except (ConnectionError, ValueError, RuntimeError) as error:
        raise PushdownError(f"{address}: no Ray cluster answers ({error})") from None
