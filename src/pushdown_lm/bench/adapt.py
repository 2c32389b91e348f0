"""Adapting a pretrained model: the kept output of its lower layers against running them.

One training step, forward, backward and optimizer, of a random Llama in which the upper layers are
pushdown layers and the attachment head sees the next token in context:

    whole     all layers run, the upper ones and the head are trained whole, in float32
    full      all layers run, adapters and the head are trained, in bfloat16 where that is fast
    cached    the same, the lower layers' output being there already

Computing that output, once for all epochs and models, is timed beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig

from pushdown_lm.bench.measure import Result, interleave
from pushdown_lm.bench.train import random_attachments
from pushdown_lm.errors import PushdownError
from pushdown_lm.model.configuration import PushdownConfig
from pushdown_lm.model.layers import lower_output
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.training.arguments import uses_bf16
from pushdown_lm.training.lora import choose_trainable
from pushdown_lm.training.lower_output import LOWER_OUTPUT, LowerOutput
from pushdown_lm.training.recipe import LoraSection

Step = Callable[[], object]


@dataclass(frozen=True, slots=True)
class Case:
    """A shape: the decoder's, how many of its layers are pushdown layers, and the batch's."""

    layers: int
    width: int
    inner_width: int
    heads: int
    key_heads: int
    vocabulary: int
    pushdown_layers: int
    batch: int
    length: int


CASES = {"smollm2-135m": Case(30, 576, 1536, 9, 3, 49152, 10, 32, 32)}
TARGETS = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]


def run(cases: list[str], repeats: int) -> Iterator[Result]:
    """Tokens per second of each contender, and the two ratios."""
    for name in cases:
        if name not in CASES:
            raise PushdownError(f"no bench case {name!r}; there are {', '.join(CASES)}")
        case = CASES[name]
        seconds = interleave(contenders(case), repeats)
        rates = {who: case.batch * case.length / taken for who, taken in seconds.items()}
        yield {
            "bench": "adapt",
            "case": name,
            "cached_to_whole": round(rates["cached"] / rates["whole"], 2),
            "target": ">= 2.5",
            "cached_to_full": round(rates["cached"] / rates["full"], 2),
            **{f"{who}_tokens_per_second": round(rate, 1) for who, rate in rates.items()},
            "precision": "bf16" if uses_bf16("auto") else "float32",
            "threads": torch.get_num_threads(),
        }


def contenders(case: Case) -> dict[str, Step]:
    """A function for each, which takes one step."""
    batch = random_batch(case)
    bf16 = uses_bf16("auto")
    whole, adapted = (build(case, lora) for lora in (None, LoraSection(rank=16, targets=TARGETS)))
    layers = case.layers - case.pushdown_layers
    kept = LowerOutput(Path(), layers)

    @torch.no_grad()
    def compute() -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            ids = batch["input_ids"]
            return lower_output(adapted.decoder, layers, input_ids=ids, use_cache=False).half()

    rows = compute()
    take_whole, take_adapted = stepper(whole, bf16=False), stepper(adapted, bf16=bf16)

    def take_cached() -> None:
        given = {**batch, LOWER_OUTPUT: rows.float()}
        with kept.used(adapted, given):
            take_adapted(given)

    return {
        "whole": lambda: take_whole(batch),
        "full": lambda: take_adapted(batch),
        "cached": take_cached,
        "lower_layers": compute,
    }


def build(case: Case, lora: LoraSection | None) -> PushdownForCausalLM:
    """The same random model for every contender, its lower layers frozen."""
    torch.manual_seed(0)
    decoder = LlamaConfig(
        vocab_size=case.vocabulary,
        hidden_size=case.width,
        intermediate_size=case.inner_width,
        num_hidden_layers=case.layers,
        num_attention_heads=case.heads,
        num_key_value_heads=case.key_heads,
        max_position_embeddings=case.length,
        tie_word_embeddings=True,
        bos_token_id=0,
        eos_token_id=0,
    )
    first = case.layers - case.pushdown_layers
    config = PushdownConfig(
        decoder_config=decoder,
        pushdown_layers=list(range(first, case.layers)),
        head_input="lower_layers",
        num_distances=16,
    )
    model = PushdownForCausalLM(config).train()
    choose_trainable(model, "lower", lora)
    return model


def stepper(model: PushdownForCausalLM, *, bf16: bool) -> Callable[[dict[str, Tensor]], None]:
    """A function that takes a training step on a batch."""
    trained = [weight for weight in model.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-4, fused=True)

    def take_step(batch: dict[str, Any]) -> None:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            loss = model(**batch).loss
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    return take_step


def random_batch(case: Case) -> dict[str, Tensor]:
    """Random sentences with random binary trees."""
    torch.manual_seed(0)
    ids = torch.randint(1, case.vocabulary, (case.batch, case.length))
    ids[:, 0] = ids[:, -1] = 0
    attachments = torch.stack([random_attachments(case.length) for _ in range(case.batch)])
    return {"input_ids": ids, "attachments": attachments, "labels": ids}
