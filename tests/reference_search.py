"""What search must compute, written to be read: enumeration, and a beam of Python objects.

Everything here is one sentence at a time, token ids without BOS and EOS, natural logarithms.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pushdown_lm.model.cache import PushdownCache
from pushdown_lm.model.modeling import PushdownForCausalLM
from tests.models import BOS


def all_histories(length: int, legality: str = "constituents") -> Iterator[list[int]]:
    """Every legal sequence of attachments r_1 .. r_n: Catalan(n) of them for constituents.

    The stack holds (start, right end); a constituent of one token is open.
    """

    def extend(history: list[int], stack: list[tuple[int, int]]) -> Iterator[list[int]]:
        position = len(history) + 1
        if position > length:
            yield history
            return
        yield from extend([*history, position], [*stack, (position, position)])
        for below, (start, right_end) in enumerate(stack):
            if legality == "constituents" or start == right_end:
                yield from extend([*history, right_end], [*stack[:below], (start, position)])

    return extend([], [])


def legal_histories(model: PushdownForCausalLM, length: int) -> list[list[int]]:
    """Every sequence of attachments that the model's legality allows."""
    return list(all_histories(length, model.config.legality))


@torch.no_grad()
def log_joints(
    model: PushdownForCausalLM, tokens: Sequence[int], histories: Sequence[Sequence[int]]
) -> Tensor:
    """log p(x_1 .. x_{n+1}, r_1 .. r_n) for tokens x_1 .. x_{n+1}, by the parallel forward pass."""
    input_ids = torch.tensor([[BOS, *tokens]] * len(histories))
    input_ids[:, 0] = model.config.bos_token_id or 0
    last = 0 if tokens[-1] == model.config.eos_token_id else len(tokens)
    attachments = torch.tensor([[0, *history, last] for history in histories])
    output = model(input_ids, attachments=attachments)
    token = output.logits[:, :-1].log_softmax(-1).gather(-1, input_ids[:, 1:, None]).sum((1, 2))
    targets = output.attachment_targets[:, : len(tokens) - 1]
    scores = output.attachment_logits[:, : len(tokens) - 1].log_softmax(-1)
    attachment = scores.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    return token + attachment.masked_fill(targets < 0, 0.0).sum(-1)


def exact_log_prefixes(model: PushdownForCausalLM, sentence: Sequence[int]) -> list[float]:
    """log Z_t, t = 1 .. n + 1, each summed over all histories of the tokens before x_t."""
    tokens = [*sentence, model.config.eos_token_id or 0]
    return [
        float(log_joints(model, tokens[:t], legal_histories(model, t - 1)).logsumexp(0))
        for t in range(1, len(tokens) + 1)
    ]


@dataclass
class Entry:
    """One parse of the beam."""

    score: float
    history: list[int]
    cache: PushdownCache
    next_token: Tensor
    """Log-probabilities of the next token ``(V,)``."""


@dataclass
class ReferenceResult:
    log_prefixes: list[float]
    entries: list[Entry]
    """Best first."""
    dropped: float
    """The probability of all that was dropped."""


@torch.no_grad()
def reference_search(
    model: PushdownForCausalLM,
    sentence: Sequence[int],
    beam: int,
    threshold: float = math.inf,
) -> ReferenceResult:
    """Beam search with one decoder state for each entry, deep-copied at every branch."""
    root = _read(model, PushdownCache(), 0.0, [], model.config.bos_token_id or 0, 0)
    entries, log_prefixes, dropped = [root], [], 0.0
    for position, token in enumerate(sentence, start=1):
        for entry in entries:
            entry.score += float(entry.next_token[token])
        log_prefixes.append(_log_sum([entry.score for entry in entries]))
        expansions = []
        for entry in entries:
            scores, positions = model.attachment_scores(entry.cache, torch.tensor([token]))
            for score, attachment in zip(scores[0].tolist(), positions[0].tolist(), strict=True):
                if score > -math.inf:
                    expansions.append((entry.score + score, attachment, entry))
        expansions.sort(key=lambda expansion: -expansion[0])
        best = expansions[0][0]
        kept = [item for item in expansions[:beam] if item[0] >= best - threshold]
        dropped += sum(math.exp(score) for score, _, _ in expansions[len(kept) :])
        assert position == len(entries[0].history) + 1
        entries = [
            _read(
                model,
                copy.deepcopy(entry.cache),
                score,
                [*entry.history, attachment],
                token,
                attachment,
            )
            for score, attachment, entry in kept
        ]
    for entry in entries:
        entry.score += float(entry.next_token[model.config.eos_token_id or 0])
    entries.sort(key=lambda entry: -entry.score)
    log_prefixes.append(_log_sum([entry.score for entry in entries]))
    return ReferenceResult(log_prefixes, entries, dropped)


def _read(
    model: PushdownForCausalLM,
    cache: PushdownCache,
    score: float,
    history: list[int],
    token: int,
    attachment: int,
) -> Entry:
    logits = model.advance(cache, torch.tensor([token]), torch.tensor([attachment]))
    return Entry(score, history, cache, logits[0].log_softmax(-1))


def _log_sum(values: Sequence[float]) -> float:
    return float(torch.tensor(values, dtype=torch.float64).logsumexp(0))
