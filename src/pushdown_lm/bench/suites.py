"""The whole SG set with threshold pruning, and whether pruning changes any decision.

Under `accelerate launch` or `torchrun` the whole set is shared out over the processes.

Without a model of one's own, the model is random, 6 layers of width 256 over the suites' words, its
attachment head sharpened as in :mod:`pushdown_lm.bench.search`.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from pushdown_lm.bench.measure import Result
from pushdown_lm.bench.search import Case, models
from pushdown_lm.data.tokenization import train_word_vocabulary
from pushdown_lm.errors import PushdownError
from pushdown_lm.evals.sg import SUITES_33, SGReport, Suite, evaluate_sg, load_suites
from pushdown_lm.evals.sharding import processes, sharded
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from pushdown_lm.search.scorer import Scorer

COMPARED = ("number_prep", "npi_src_any", "mvrr")
"""Suites that are scored with and without pruning."""


def run(
    folder: Path,
    model: Path | None,
    beam: int,
    threshold: float,
    limit: int | None,
    compared: Sequence[str] = COMPARED,
) -> Iterator[Result]:
    """Throughput over the set of 33 suites, then the decisions of some of them.

    `limit` takes the first items of each suite only; the time of the whole set is then estimated
    from the share of its sentences.
    """
    suites = load_suites(folder, SUITES_33)
    scorer = random_scorer(suites) if model is None else PushdownScorer.from_pretrained(model)
    scorer.beam, scorer.threshold = beam, threshold
    some = [replace(suite, items=suite.items[:limit]) for suite in suites]
    setting = {
        "beam": beam,
        "threshold_nats": threshold,
        "processes": processes().num_processes,
        "threads": torch.get_num_threads(),
    }
    with sharded(scorer) as shared:
        if shared is None:
            return
        figures = throughput(shared, some, suites)
    yield {"bench": "suites", "case": "whole set", **figures, **setting}
    chosen = [suite for suite in some if suite.name in compared]
    if len(chosen) < len(compared):
        raise PushdownError(f"expected suites of the set of 33, got {', '.join(compared)}")
    yield {"bench": "suites", "case": "pruned or not", **decisions(scorer, chosen), **setting}


def throughput(scorer: Scorer, suites: Sequence[Suite], whole: Sequence[Suite]) -> Result:
    """Sentences a second, and minutes for all sentences of the whole set."""
    _, seconds = _run_timed(scorer, suites)
    count, total = len(_sentences(suites)), len(_sentences(whole))
    return {
        "sentences": count,
        "sentences_per_second": round(count / seconds, 1),
        "whole_set_sentences": total,
        "whole_set_minutes": round(seconds / count * total / 60, 2),
    }


def decisions(scorer: PushdownScorer, suites: Sequence[Suite]) -> Result:
    """How many item decisions pruning changes, and what it saves."""
    pruned, pruned_seconds = _run_timed(scorer, suites)
    threshold, scorer.threshold = scorer.threshold, None
    full, full_seconds = _run_timed(scorer, suites)
    scorer.threshold = threshold
    agreements = [
        ours == theirs
        for result, other in zip(pruned.results, full.results, strict=True)
        for ours, theirs in zip(result.outcomes[0], other.outcomes[0], strict=True)
    ]
    return {
        "suites": ", ".join(suite.name for suite in suites),
        "items": len(agreements),
        "changed_decisions": agreements.count(False),
        "pruning_speedup": round(full_seconds / pruned_seconds, 2),
    }


def random_scorer(suites: Sequence[Suite]) -> PushdownScorer:
    """A random model that knows all words of the suites."""
    words = [[*sentence.split(), "."] for sentence in _sentences(suites)]
    tokenizer = train_word_vocabulary(words)
    longest = max(map(len, words))
    case = Case(6, 256, 8, len(tokenizer), sentences=0, length=longest, beam=0)
    model, _ = models(case)
    return PushdownScorer(model, tokenizer, name="random 6x256")


def _sentences(suites: Sequence[Suite]) -> list[str]:
    """The distinct sentences of suites."""
    return list(
        dict.fromkeys(
            condition.sentence
            for suite in suites
            for item in suite.items
            for condition in item.conditions.values()
        )
    )


def _run_timed(scorer: Scorer, suites: Sequence[Suite]) -> tuple[SGReport, float]:
    began = time.perf_counter()
    report = evaluate_sg(scorer, suites)
    return report, time.perf_counter() - began
