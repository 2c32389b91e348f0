"""Who parses the units: this process, several, or Ray. Results come with their units.

Units are handed out as they are asked for, so no more
than a few of them are in memory.
"""

from __future__ import annotations

import multiprocessing
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import islice
from typing import Literal

from pushdown_lm.corpora.parsers import Parser, ParserError, open_parser
from pushdown_lm.corpora.parsing_units import UnitOptions, UnitResult, parse_unit
from pushdown_lm.corpora.raw_text import Unit
from pushdown_lm.errors import PushdownError

Engine = Literal["local", "ray"]
Results = Iterator[tuple[Unit, UnitResult]]


def run_units(
    units: Iterator[Unit],
    options: UnitOptions,
    parser: Parser,
    engine: Engine,
    workers: int,
    address: str | None,
) -> Results:
    """The result of each unit; in any order where there are several workers.

    `parser` serves this process; other workers open parsers of their own.
    """
    if workers < 1:
        raise PushdownError(f"workers: expected at least 1, got {workers}")
    if engine == "ray":
        from pushdown_lm.corpora.ray_engine import run_with_ray

        return run_with_ray(units, options, workers, address)
    if workers > 1:
        return _run_processes(units, options, workers)
    return ((unit, parse_unit(unit, parser, options)) for unit in units)


_parser: Parser | None = None
"""The parser of a worker process."""


def _open(options: UnitOptions) -> None:
    global _parser
    _parser = open_parser(options.parser, options.parser_options)


def _work(unit: Unit, options: UnitOptions) -> UnitResult:
    assert _parser is not None
    return parse_unit(unit, _parser, options)


def _run_processes(units: Iterator[Unit], options: UnitOptions, workers: int) -> Results:
    context = multiprocessing.get_context("spawn")
    pending: deque[tuple[Unit, Future[UnitResult]]] = deque()
    with ProcessPoolExecutor(workers, context, initializer=_open, initargs=(options,)) as pool:
        try:
            for unit in islice(units, 2 * workers):
                pending.append((unit, pool.submit(_work, unit, options)))
            while pending:
                unit, future = pending.popleft()
                result = future.result()
                for following in islice(units, 1):
                    pending.append((following, pool.submit(_work, following, options)))
                yield unit, result
        except BrokenProcessPool:
            raise ParserError(
                "a worker process died; what it had finished is kept, so the same command resumes"
            ) from None
        finally:
            pool.shutdown(wait=True, cancel_futures=True)
