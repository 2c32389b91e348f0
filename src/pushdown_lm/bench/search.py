"""Beam search: against the bare decoder on as many cells, and with threshold pruning.

A cell is one token of one beam entry. The bare decoder reads the same number of tokens in parallel,
with plain attention and all logits. The model is random; its attachment head is sharpened, so that
its decisions are about as certain as a trained parser's: without that, no parse could be dropped.

A trained model is measured on sentences of its own: sentences per second with a beam and a
threshold, what they lose, and how much longer the same beam takes without a threshold.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import mean

import torch
from transformers import AutoModelForCausalLM, GPT2Config, PreTrainedModel

from pushdown_lm.bench.measure import Result, interleave
from pushdown_lm.errors import PushdownError
from pushdown_lm.model.configuration import PushdownConfig
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.search.beam import SearchResult, search
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from pushdown_lm.search.sampling import sample


@dataclass(frozen=True, slots=True)
class Case:
    """A shape; all layers are pushdown layers unless told otherwise."""

    layers: int
    width: int
    heads: int
    vocabulary: int
    sentences: int
    length: int
    beam: int
    pushdown_layers: tuple[int, ...] | None = None
    sharpness: float = 60.0


CASES = {
    "6x256-beam300": Case(6, 256, 8, 10000, 4, 20, 300),
    "6x256-beam300-upper": Case(6, 256, 8, 10000, 4, 20, 300, pushdown_layers=(3, 4, 5)),
    "6x256-beam10": Case(6, 256, 8, 10000, 16, 20, 10),
}
SAMPLES, MAX_SAMPLES = 128, 2_048
"""Sentences drawn at once and in all, in search of some of the right length."""
LOST_NATS = 1e-3
"""How much pruning may lose a sentence, as `SearchResult.lost_nats` counts it."""


def run(cases: list[str], repeats: int) -> Iterator[Result]:
    """Seconds per sentence and ratios of each case."""
    for name in cases:
        if name not in CASES:
            raise PushdownError(f"no bench case {name!r}; there are {', '.join(CASES)}")
        yield {"bench": "search", "case": name, **measure(CASES[name], repeats)}


def measure(case: Case, repeats: int) -> Result:
    """Times of the three contenders, in turns."""
    model, decoder = models(case)
    sentences = torch.randint(2, case.vocabulary, (case.sentences, case.length)).tolist()
    full = search(model, sentences, beam=case.beam)
    threshold, pruned = least_threshold(model, sentences, case.beam, full)
    seconds = interleave(
        {
            "bare": lambda: read_cells(decoder, case, total_cells(full)),
            "search": lambda: search(model, sentences, beam=case.beam),
            "pruned": lambda: search(model, sentences, beam=case.beam, threshold=threshold),
        },
        repeats,
    )
    differences = [
        wide.log_prob - narrow.log_prob for wide, narrow in zip(full, pruned, strict=True)
    ]
    return {
        "time_ratio": round(seconds["search"] / seconds["bare"], 3),
        "pruning_speedup": round(seconds["search"] / seconds["pruned"], 2),
        "seconds_per_sentence": round(seconds["search"] / case.sentences, 4),
        "pruned_seconds_per_sentence": round(seconds["pruned"] / case.sentences, 4),
        "cells": total_cells(full),
        "pruned_cells": total_cells(pruned),
        "threshold_nats": threshold,
        "pruning_lost_nats": round(max(differences), 6),
        "threads": torch.get_num_threads(),
    }


def run_model(
    name: str,
    beam: int,
    threshold: float,
    repeats: int,
    *,
    sentences: int = 32,
    words: tuple[int, int] = (18, 22),
) -> Iterator[Result]:
    """Throughput of a trained model on sentences that it generates, and what pruning loses."""
    scorer = PushdownScorer.from_pretrained(name)
    texts = sampled_sentences(scorer, sentences, words)
    ids = [scorer.encode(text).ids for text in texts]
    results = search(scorer.model, ids, beam=beam, threshold=threshold)
    some = ids[: max(1, len(ids) // 4)]
    seconds = interleave(
        {
            "pruned": lambda: search(scorer.model, ids, beam=beam, threshold=threshold),
            "unpruned": lambda: search(scorer.model, some, beam=beam),
        },
        repeats,
    )
    yield {
        "bench": "search",
        "case": f"{name}, {words[0]} to {words[1]} words",
        "sentences": len(ids),
        "sentences_per_second": round(len(ids) / seconds["pruned"], 1),
        "pruning_speedup": round(seconds["unpruned"] / len(some) * len(ids) / seconds["pruned"], 2),
        "cells_per_sentence": round(total_cells(results) / len(ids)),
        "lost_nats": round(mean(result.lost_nats for result in results), 4),
        "largest_lost_nats": round(max(result.lost_nats for result in results), 4),
        "beam": beam,
        "threshold_nats": threshold,
        "threads": torch.get_num_threads(),
    }


def sampled_sentences(scorer: PushdownScorer, count: int, words: tuple[int, int]) -> list[str]:
    """The first sentences of a number of words that the model generates."""
    found: list[str] = []
    for start in range(0, MAX_SAMPLES, SAMPLES):
        streams = range(start, start + SAMPLES)
        drawn = sample(scorer.model, [()] * SAMPLES, max_tokens=2 * words[1], streams=streams)
        texts = [scorer.read_back(one.tokens, one.history)[0] for one in drawn if one.finished]
        found += [text for text in texts if words[0] <= len(text.split()) <= words[1]]
        if len(found) >= count:
            return found[:count]
    raise PushdownError(
        f"{scorer.name}: expected {count} sentences of {words[0]} to {words[1]} words among "
        f"{MAX_SAMPLES:,} samples, got {len(found)}"
    )


def models(case: Case) -> tuple[PushdownForCausalLM, PreTrainedModel]:
    """A Pushdown model, and its decoder with plain attention."""
    torch.manual_seed(0)
    decoder_config = GPT2Config(
        vocab_size=case.vocabulary,
        n_positions=case.length + 1,
        n_embd=case.width,
        n_layer=case.layers,
        n_head=case.heads,
        bos_token_id=0,
        eos_token_id=1,
    )
    layers = None if case.pushdown_layers is None else list(case.pushdown_layers)
    config = PushdownConfig(decoder_config=decoder_config, pushdown_layers=layers)
    model = PushdownForCausalLM(config).eval()
    assert model.head is not None
    model.head.scaling *= case.sharpness
    plain = AutoModelForCausalLM.from_config(decoder_config, attn_implementation="sdpa").eval()
    return model, plain


def least_threshold(
    model: PushdownForCausalLM, sentences: list[list[int]], beam: int, full: list[SearchResult]
) -> tuple[float, list[SearchResult]]:
    """The smallest whole threshold by which no sentence loses more than allowed."""
    threshold = 4.0
    while True:
        pruned = search(model, sentences, beam=beam, threshold=threshold)
        lost = max(
            narrow.lost_nats - wide.lost_nats for wide, narrow in zip(full, pruned, strict=True)
        )
        if lost <= LOST_NATS:
            return threshold, pruned
        threshold += 1.0


def total_cells(results: list[SearchResult]) -> int:
    return sum(result.num_cells for result in results)


@torch.inference_mode()
def read_cells(decoder: PreTrainedModel, case: Case, cells: int) -> None:
    """Read as many tokens as there are cells, one beam of sentences at a time."""
    rows = math.ceil(cells / (case.length + 1))
    batch = max(1, rows // case.sentences) if case.beam > case.sentences else rows
    for start in range(0, rows, batch):
        count = min(batch, rows - start)
        decoder(torch.full((count, case.length + 1), 2), use_cache=False)
