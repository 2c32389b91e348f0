"""Sampling text together with its parse, from nothing or after a prompt.

A sample is drawn from p(x, r) token by token: x_t from the decoder, through Transformers' own
logits processors, then r_t from the attachment head. The parse of a prompt is drawn first, from
its posterior given the whole prompt (over a beam), and not left to right, where words would be
attached before the words after them are known.

Rows are independent. Prompts of any lengths share a batch without padding: a row that is still
inside its prompt reads the prompt's token instead of a drawn one. Finished rows leave the batch.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from pushdown_lm.model.cache import PushdownCache
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.search.beam import SearchError, check_sentence, search
from pushdown_lm.search.defaults import DEFAULT_BEAM


@dataclass(frozen=True, slots=True)
class Sample:
    """A sampled sentence and its parse."""

    tokens: list[int]
    """Prompt and continuation, without BOS and EOS."""
    history: list[int]
    """The attachment of each token."""
    finished: bool
    """Whether EOS was drawn; otherwise the length was reached."""


def logits_processors(
    *,
    temperature: float = 1.0,
    top_k: int | None = None,
    top_p: float | None = None,
) -> LogitsProcessorList:
    """Transformers' processors for these settings; without any, the model's distribution.

    A temperature of 0 always takes the likeliest token.
    """
    processors = LogitsProcessorList()
    if not math.isfinite(temperature) or temperature < 0:
        raise SearchError(f"temperature: expected a number of at least 0, got {temperature}")
    try:
        if temperature == 0:
            top_k = 1
        elif temperature != 1.0:
            processors.append(TemperatureLogitsWarper(float(temperature)))
        if top_k is not None:
            processors.append(TopKLogitsWarper(top_k))
        if top_p is not None:
            processors.append(TopPLogitsWarper(top_p))
    except ValueError as error:
        raise SearchError(str(error)) from None
    return processors


@torch.inference_mode()
def sample(
    model: PushdownForCausalLM,
    prompts: Sequence[Sequence[int]],
    *,
    max_tokens: int,
    processors: LogitsProcessorList | None = None,
    seed: int = 0,
    streams: Sequence[Hashable] | None = None,
    beam: int = DEFAULT_BEAM,
) -> list[Sample]:
    """Continue each prompt, token ids without BOS, up to EOS or ``max_tokens`` tokens in all.

    Args:
        prompts: may be empty; a prompt that is to be continued several times is given as often.
        processors: as :func:`logits_processors` makes them; by default the model's distribution.
        seed: of all random choices.
        streams: a name for each sample; the seed and the name decide its random choices, whatever
            the other samples are. By default the samples are numbered.
        beam: the width of the search for the prompts' parses.
    """
    if model.head is None:
        raise SearchError("expected a model with an attachment head; this one has none")
    if processors is None:
        processors = logits_processors()
    for number, prompt in enumerate(prompts, start=1):
        if prompt:
            check_sentence(prompt, model.config.max_positions, f"prompt {number}")
    limit = model.config.max_positions
    max_tokens = max_tokens if limit is None else min(max_tokens, limit - 1)
    if not 0 <= seed < 2**63:
        raise SearchError(f"seed: expected a number from 0 to 2^63 - 1, got {seed}")
    names = list(range(len(prompts)) if streams is None else streams)
    generators = [_generator(seed, name) for name in names]
    model.eval()
    tokens = [list(prompt) for prompt in prompts]
    histories = _prompt_histories(model, prompts, beam, generators)
    finished = [False] * len(prompts)

    rows = torch.arange(len(prompts), device=model.device)
    bos = torch.full_like(rows, model.config.bos_id)
    cache = PushdownCache(config=model.config.decoder)
    logits = model.advance(cache, bos, torch.zeros_like(rows))
    read = bos[:, None]
    for position in range(1, max_tokens + 1):
        scores = processors(read, logits)  # type: ignore[arg-type]
        numbers = rows.tolist()
        drawn = _draw(scores.softmax(-1), [generators[row] for row in numbers])
        for row, token in zip(numbers, drawn.tolist(), strict=True):
            if len(tokens[row]) < position:
                if token == model.config.eos_token_id:
                    finished[row] = True
                else:
                    tokens[row].append(token)
        living = [at for at, row in enumerate(numbers) if not finished[row]]
        if not living:
            break
        if len(living) < len(numbers):
            keep = torch.tensor(living, device=model.device)
            cache.select(keep)
            rows, read = rows[keep], read[keep]
            numbers = rows.tolist()
        current = torch.tensor([tokens[row][position - 1] for row in numbers], device=model.device)
        log_probs, index = model.attachment_scores(cache, current)
        slot = _draw(log_probs.exp(), [generators[row] for row in numbers])
        attachments = index.gather(1, slot[:, None])[:, 0].tolist()
        for row, attachment in zip(numbers, attachments, strict=True):
            if len(histories[row]) < position:
                histories[row].append(attachment)
        attached = [histories[row][position - 1] for row in numbers]
        logits = model.advance(cache, current, torch.tensor(attached, device=model.device))
        read = torch.cat([read, current[:, None]], 1)
    return [Sample(*parts) for parts in zip(tokens, histories, finished, strict=True)]


def _generator(seed: int, stream: Hashable) -> torch.Generator:
    """Random numbers that follow from the seed and the name of a sample alone."""
    digest = hashlib.blake2b(f"{seed} {stream}".encode(), digest_size=8).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest) >> 1)


def _draw(probabilities: Tensor, generators: Sequence[torch.Generator]) -> Tensor:
    """One index for each row ``(B, V)``, by inverting the cumulated probabilities."""
    uniform = [torch.rand((), generator=generator, dtype=torch.float64) for generator in generators]
    cumulated = probabilities.double().cumsum(-1)
    place = torch.stack(uniform).to(cumulated.device)[:, None] * cumulated[:, -1:]
    possible = probabilities.shape[-1] - 1 - (probabilities > 0).flip(-1).int().argmax(-1)
    drawn = torch.searchsorted(cumulated, place, right=True)[:, 0]
    return torch.minimum(drawn, possible)


def _prompt_histories(
    model: PushdownForCausalLM,
    prompts: Sequence[Sequence[int]],
    beam: int,
    generators: Sequence[torch.Generator],
) -> list[list[int]]:
    """A parse of each prompt, drawn from its posterior; prompts that repeat are searched once."""
    distinct = [prompt for prompt in dict.fromkeys(map(tuple, prompts)) if prompt]
    found = dict(zip(distinct, search(model, distinct, beam=beam), strict=True))
    histories: list[list[int]] = []
    for prompt, generator in zip(map(tuple, prompts), generators, strict=True):
        if not prompt:
            histories.append([])
            continue
        scores = torch.tensor(found[prompt].log_open_joints, device=model.device)
        chosen = int(_draw(scores.softmax(0)[None], [generator]))
        histories.append(found[prompt].histories[chosen].tolist())
    return histories
