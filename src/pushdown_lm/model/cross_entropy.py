"""Cross-entropy over a vocabulary without copies of its logits.

Shapes: N targets, V vocabulary.

    loss_n      = logsumexp(x_n) - x_n[target_n]
    d loss_n    = softmax(x_n) - onehot(target_n)

`torch.nn.functional.cross_entropy` of ``logits.float()`` keeps three further tensors of N x V in
float32: the logits, their log-probabilities, and the gradient of these. On a CPU they are most of
what a vocabulary of some thousand entries costs. Here a few rows at a time are computed in float32
and nothing is kept but the N sums; the gradient is computed from the logits, in their dtype.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from pushdown_lm.data.batching import IGNORED

CELLS, DEVICE_CELLS = 1 << 18, 1 << 26
"""Logits at once: a megabyte in float32, which the cache of a CPU holds, and on other devices 256,
so that they are kept busy."""


def mean_cross_entropy(logits: Tensor, targets: Tensor, count: Tensor | int | None) -> Tensor:
    """Mean over the targets that count, or their sum divided by ``count``; zero if none does.

    Args:
        logits: ``(..., V)``, of any floating dtype; -inf for what is impossible.
        targets: ``(...)``, :data:`IGNORED` for those that do not count.
    """
    total = cross_entropies(logits.flatten(0, -2), targets.flatten()).sum()
    if count is None:
        count = (targets != IGNORED).sum()
    return total / torch.as_tensor(count, device=total.device).clamp(min=1)


def cross_entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """The loss of every target ``(N,)``, in float32 or wider, zero where it does not count.

    A compiler fuses :func:`reference_cross_entropies` better than a loop.

    Args:
        logits: ``(N, V)``.
    """
    if torch.compiler.is_compiling():
        return reference_cross_entropies(logits, targets)
    losses: Tensor = _CrossEntropies.apply(logits, targets)
    return losses


def reference_cross_entropies(logits: Tensor, targets: Tensor) -> Tensor:
    """:func:`cross_entropies` in the obvious way."""
    wide = logits.to(_wide(logits))
    return nn.functional.cross_entropy(wide, targets, ignore_index=IGNORED, reduction="none")


class _CrossEntropies(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, logits: Tensor, targets: Tensor) -> Tensor:
        sums = torch.empty(len(targets), 1, dtype=_wide(logits), device=logits.device)
        for rows in _chunks(logits):
            torch.logsumexp(logits[rows].to(sums.dtype), -1, keepdim=True, out=sums[rows])
        ignored = (targets == IGNORED)[:, None]
        ctx.save_for_backward(logits, targets, sums.masked_fill(ignored, torch.inf))
        chosen = logits.gather(-1, targets.clamp(min=0)[:, None])
        return (sums - chosen).masked_fill(ignored, 0)[:, 0]

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        logits, targets, sums = ctx.saved_tensors
        scale = gradients[0][:, None]  # (N, 1)
        minus_one = -(targets != IGNORED)[:, None].to(sums.dtype)  # (N, 1)
        gradient = torch.empty_like(logits)
        for rows in _chunks(logits):
            change = (logits[rows].to(sums.dtype) - sums[rows]).exp_()  # 0 where ignored
            change.scatter_add_(-1, targets[rows].clamp(min=0)[:, None], minus_one[rows])
            gradient[rows] = change.mul_(scale[rows])
        return gradient, None


def _wide(logits: Tensor) -> torch.dtype:
    return torch.promote_types(logits.dtype, torch.float32)


def _chunks(logits: Tensor) -> Iterator[slice]:
    cells = CELLS if logits.device.type == "cpu" else DEVICE_CELLS
    size = max(1, cells // logits.shape[-1])
    return (slice(start, start + size) for start in range(0, len(logits), size))
