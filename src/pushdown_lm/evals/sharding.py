"""Sentences shared out over the processes of `accelerate launch` or `torchrun`.

The main process runs the evaluation; the others only serve it:

    with sharded(scorer) as shared:
        if shared is not None:  # the main process
            report = evaluate_blimp(shared, pairs)

Every request of the main process is broadcast, each process scores every n-th sentence, and the
answers are gathered. What is remembered on disk is up to the main process alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from accelerate.utils import broadcast_object_list, gather_object  # type: ignore[import-untyped]

from pushdown_lm.errors import PushdownError
from pushdown_lm.search.scorer import Reading, Scorer, ScorerWrapper, Sentence, Token
from pushdown_lm.trees import Tree


def processes() -> PartialState:
    """This process's place among all; on machines without accelerator they talk through gloo."""
    return PartialState(cpu=not torch.accelerator.is_available())


@contextmanager
def sharded(scorer: Scorer) -> Iterator[Scorer | None]:
    """In the main process a scorer that all processes work for; in the others None, afterwards."""
    state = processes()
    if state.num_processes == 1:
        yield scorer
    elif state.is_main_process:
        try:
            yield ShardedScorer(scorer, state)
        finally:
            broadcast_object_list([None])
    else:
        _serve(scorer, state)
        yield None


class ShardedScorer(ScorerWrapper):
    """The main process's side of :func:`sharded`."""

    def __init__(self, scorer: Scorer, state: PartialState) -> None:
        super().__init__(scorer)
        self.state = state

    def log_probs(self, sentences: Sequence[Sentence]) -> list[float]:
        return self._ask("log_probs", sentences)

    def surprisals(self, sentences: Sequence[Sentence]) -> list[list[Token]]:
        return self._ask("surprisals", sentences)

    def parse(self, sentences: Sequence[Sequence[str]]) -> list[Tree | None]:
        return self._ask("parse", sentences)

    def parse_and_score(self, sentences: Sequence[Sequence[str]]) -> list[Reading]:
        return self._ask("parse_and_score", sentences)

    def _ask(self, method: str, sentences: Sequence[Any]) -> list[Any]:
        broadcast_object_list([(method, sentences)])
        answers = _answer(self.scorer, self.state, method, sentences)
        for answer in answers:
            if isinstance(answer, str):
                raise PushdownError(answer)
        results: list[Any] = [None] * len(sentences)
        for process, answer in enumerate(answers):
            results[process :: self.state.num_processes] = answer
        return results


def _serve(scorer: Scorer, state: PartialState) -> None:
    while (request := broadcast_object_list([None])[0]) is not None:
        _answer(scorer, state, *request)


def _answer(
    scorer: Scorer, state: PartialState, method: str, sentences: Sequence[Any]
) -> list[list[Any] | str]:
    """Score this process's share; everyone's results, or messages of what went wrong."""
    share = sentences[state.process_index :: state.num_processes]
    answer: list[Any] | str
    try:
        answer = getattr(scorer, method)(share) if share else []
    except PushdownError as error:
        answer = str(error)
    except Exception as error:
        answer = f"process {state.process_index}: {type(error).__name__}: {error}"
    return gather_object([answer])
