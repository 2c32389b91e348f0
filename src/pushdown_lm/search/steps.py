"""Search of one sentence, token by token: what the model expects, keeps and drops.

The search is that of :mod:`pushdown_lm.search.beam`, and its result the same; here it stops after
every token, for those who watch. A plain language model has nothing to search, and its steps are
known from one parallel pass.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.search.beam import (
    Moment,
    SearchError,
    SearchResult,
    check_finite,
    check_search,
    search_moments,
)
from pushdown_lm.search.defaults import DEFAULT_BEAM


@dataclass(frozen=True, slots=True)
class Step:
    """What is known once x_t is read and, unless it is EOS, attached. Logarithms are natural."""

    position: int
    """t, from 1; n + 1 for EOS."""
    log_prefix: float
    """log Z_t = log p(x_<=t), summed over the beam."""
    entropy: float
    """Of p(x_t | x_<t), before x_t is read: its expected surprisal, in nats."""
    expected: tuple[tuple[int, float], ...]
    """The tokens that are most probable in the place of x_t, with their probabilities."""
    histories: tuple[tuple[int, ...], ...]
    """r_<=t of the best entries, best first; r_<=n for EOS."""
    shares: tuple[float, ...]
    """The probability of each of them, given x_<=t and that its parse is in the beam."""
    num_entries: int
    """How many entries the beam keeps."""
    dropped: tuple[tuple[int, ...], ...]
    """r_<=t of the best expansions that were dropped, best first."""
    dropped_shares: tuple[float, ...]
    """The share of Z_t of each of them."""
    num_dropped: int
    dropped_share: float
    """The share of Z_t of all that was dropped."""


def search_steps(
    model: PushdownForCausalLM,
    sentence: Sequence[int],
    *,
    beam: int = DEFAULT_BEAM,
    threshold: float | None = None,
    shown: int = 10,
) -> Generator[Step, None, SearchResult]:
    """Search the parses of one sentence of token ids; yields each step, returns the result.

    The model serves this search only until the generator is exhausted or closed.

    Args:
        beam, threshold: as for :func:`pushdown_lm.search.beam.search`.
        shown: how many entries, dropped expansions and expected tokens a step tells.
    """
    check_search(model, [sentence], beam, threshold)
    model.eval()
    moments = search_moments(model, [sentence], beam, threshold, keep_predictions=True)
    try:
        while True:
            try:
                moment = next(moments)
            except StopIteration as end:
                return end.value[0]
            yield _step(moment, shown)
    finally:
        moments.close()


@torch.inference_mode()
def plain_steps(
    model: PushdownForCausalLM, sentence: Sequence[int], *, shown: int = 10
) -> list[Step]:
    """The steps of one sentence of token ids under a model in which nothing looks at the parse;
    they have no histories."""
    if model.config.uses_tape:
        raise SearchError("expected a model without pushdown layers and attachment head")
    ids = torch.tensor([model.config.bos_id, *sentence, model.config.eos_token_id])
    ids = ids.to(model.device)
    logits = model.eval()(ids[None, :-1]).logits[0]
    logs = logits.to(torch.promote_types(logits.dtype, torch.float32)).log_softmax(-1)
    log_prefixes = logs.gather(1, ids[1:, None])[:, 0].double().cumsum(0)
    check_finite(log_prefixes)
    return [
        Step(
            position=position,
            log_prefix=float(log_prefix),
            **_expectation(prediction, shown),
            histories=(),
            shares=(),
            num_entries=0,
            dropped=(),
            dropped_shares=(),
            num_dropped=0,
            dropped_share=0.0,
        )
        for position, (log_prefix, prediction) in enumerate(
            zip(log_prefixes, logs.exp(), strict=True), start=1
        )
    ]


@torch.inference_mode()
def _step(moment: Moment, shown: int) -> Step:
    check_finite(moment.log_prefix)
    log_prefix, expansions = moment.log_prefix[0], moment.expansions
    prediction = moment.decoder.prediction(moment.log_before.softmax(0))  # (V,)
    if expansions is None:
        score, kept = moment.score, moment.score.argsort(descending=True, stable=True)
        histories, dropped = moment.histories, kept[:0]
    else:
        score, kept = expansions.score, expansions.kept
        order = score.argsort(descending=True, stable=True)
        dropped = order[~torch.isin(order, kept)]
        past = moment.histories[expansions.parent]
        histories = torch.cat([past, expansions.attachment[:, None]], 1)
    share_of_dropped = (score[dropped] - log_prefix).exp()
    return Step(
        position=moment.position,
        log_prefix=float(log_prefix),
        **_expectation(prediction, shown),
        histories=_rows(histories[kept[:shown]]),
        shares=tuple(score[kept].softmax(0)[:shown].tolist()),
        num_entries=len(kept),
        dropped=_rows(histories[dropped[:shown]]),
        dropped_shares=tuple(share_of_dropped[:shown].tolist()),
        num_dropped=len(dropped),
        dropped_share=float(share_of_dropped.sum()),
    )


def _expectation(prediction: Tensor, shown: int) -> dict[str, Any]:
    """Entropy and most probable tokens of a prediction ``(V,)``."""
    most = prediction.topk(min(shown, len(prediction)))
    return {
        "entropy": float(-torch.xlogy(prediction, prediction).sum()),
        "expected": tuple(zip(most.indices.tolist(), most.values.tolist(), strict=True)),
    }


def _rows(histories: Tensor) -> tuple[tuple[int, ...], ...]:
    return tuple(tuple(history) for history in histories.tolist())
