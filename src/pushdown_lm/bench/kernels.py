"""What a training step in bfloat16 is made of on a CPU: our form of a part against PyTorch's.

Forward and backward passes of the loss over a vocabulary (:mod:`pushdown_lm.model.cross_entropy`)
and of plain attention (:func:`pushdown_lm.model.attention.gather` without a tape, which short
sentences are trained with), at 2,048 tokens each.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from pushdown_lm.bench.measure import Result, interleave
from pushdown_lm.model.attention import gather
from pushdown_lm.model.cross_entropy import cross_entropies, reference_cross_entropies

TOKENS = 2048
VOCABULARIES = (8_000, 49_152)
LENGTHS = (32, 128, 256, 512)
"""Of sentences; beyond ``attention.SHORT`` training uses PyTorch's kernel."""
HEADS, WIDTH = 4, 64


def run(repeats: int) -> Iterator[Result]:
    """How many times as fast each part is."""
    for vocabulary in VOCABULARIES:
        yield _result(f"loss, {vocabulary:,} entries", losses(vocabulary), repeats)
    for length in LENGTHS:
        yield _result(f"attention, {length} positions", attentions(length), repeats)


def losses(vocabulary: int) -> dict[str, Callable[[], None]]:
    logits = torch.randn(TOKENS, vocabulary).bfloat16().requires_grad_()
    targets = torch.randint(vocabulary, (TOKENS,))
    return {
        "ours": lambda: cross_entropies(logits, targets).sum().backward(),
        "torch": lambda: reference_cross_entropies(logits, targets).sum().backward(),
    }


def attentions(length: int) -> dict[str, Callable[[], None]]:
    shape = (TOKENS // length, HEADS, length, WIDTH)
    query, key, value = (torch.randn(shape).bfloat16().requires_grad_() for _ in range(3))

    def ours() -> Tensor:
        return gather(query, key, value, None, None, scaling=WIDTH**-0.5)[0]

    def of_torch() -> Tensor:
        return scaled_dot_product_attention(query, key, value, is_causal=True)

    return {"ours": lambda: ours().sum().backward(), "torch": lambda: of_torch().sum().backward()}


def _result(case: str, contenders: dict[str, Callable[[], None]], repeats: int) -> Result:
    seconds = interleave(contenders, repeats)
    return {
        "bench": "kernels",
        "case": case,
        "speedup": round(seconds["torch"] / seconds["ours"], 2),
        "milliseconds": round(1000 * seconds["ours"], 1),
        "torch_milliseconds": round(1000 * seconds["torch"], 1),
        "threads": torch.get_num_threads(),
    }
