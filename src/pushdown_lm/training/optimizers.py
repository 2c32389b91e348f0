"""Optimizers: AdamW, or Muon for the matrices beside AdamW for the rest.

Muon (Jordan et al. 2024) replaces the momentum M of a weight matrix by the nearest semi-orthogonal
matrix, found by a few Newton-Schulz steps X <- a X + b (X X^T) X + c (X X^T)^2 X from X = M / |M|.
Its steps are scaled by 0.2 sqrt(max(rows, columns)), so that they are as large as AdamW's, and one
learning rate serves both (Liu et al. 2025). Embeddings, norms, biases and the rows of tape
embeddings, which are looked up one by one, stay with AdamW.

The Newton-Schulz steps are computed in bfloat16 where the device has instructions for it, and in
float32 otherwise. (`torch.optim.Muon` always takes bfloat16; a CPU that emulates it needs 13
seconds for one step of a model of 6 layers x 256, against half a second in float32.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import AdamW, Optimizer
from transformers.pytorch_utils import Conv1D

from pushdown_lm.machine import multiplies_bf16

COEFFICIENTS = (3.4445, -4.7750, 2.0315)
NEWTON_SCHULZ_STEPS = 5


def orthogonalize(matrix: Tensor) -> Tensor:
    """Nearly the nearest semi-orthogonal matrix: singular values go to about 1."""
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    dtype = torch.bfloat16 if multiplies_bf16(matrix.device.type) else torch.float32
    x = (matrix.T if is_tall else matrix).to(dtype)
    x = x / x.norm().clamp(min=1e-7)
    for _ in range(NEWTON_SCHULZ_STEPS):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.T if is_tall else x).to(matrix.dtype)


class Muon(Optimizer):
    """Orthogonalized momentum for weight matrices, with decoupled weight decay."""

    def __init__(
        self,
        params: Iterable[nn.Parameter] | Iterable[dict[str, Any]],
        lr: float,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
    ) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else closure()
        for group in self.param_groups:
            for weight in group["params"]:
                if weight.grad is None:
                    continue
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                momentum = state["momentum"].lerp_(weight.grad, 1 - group["momentum"])
                update = orthogonalize(weight.grad.lerp(momentum, group["momentum"]))
                weight.mul_(1 - group["lr"] * group["weight_decay"])
                weight.add_(update, alpha=-0.2 * max(weight.shape) ** 0.5 * group["lr"])
        return loss


class MuonWithAdamW(Optimizer):
    """Muon for some parameters and AdamW for the others, as one optimizer."""

    def __init__(self, muon: Muon, adamw: AdamW) -> None:
        self.parts: dict[str, Optimizer] = {"muon": muon, "adamw": adamw}
        super().__init__(self._groups(), {})

    def _groups(self) -> list[dict[str, Any]]:
        """The groups of the parts themselves, so that a schedule reaches them."""
        return list(chain.from_iterable(part.param_groups for part in self.parts.values()))

    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        loss = None if closure is None else closure()
        for part in self.parts.values():
            part.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        return {name: part.state_dict() for name, part in self.parts.items()}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        for name, part in self.parts.items():
            part.load_state_dict(state_dict[name])
        self.param_groups = self._groups()


def muon_parameters(model: nn.Module) -> set[str]:
    """The names of the weight matrices of linear maps, but for the one that gives the logits."""
    find_output: Any = getattr(model, "get_output_embeddings", lambda: None)
    output = find_output()
    return {
        f"{name}.weight"
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear | Conv1D)
        and module is not output
        and module.weight.requires_grad
    }


def muon_with_adamw(
    model: nn.Module,
    decayed: Iterable[str],
    *,
    lr: float,
    weight_decay: float,
    betas: tuple[float, float],
    epsilon: float,
) -> MuonWithAdamW:
    """The optimizer of a model; of the parameters left to AdamW, ``decayed`` are decayed."""
    matrices = muon_parameters(model)
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    rest = trained.keys() - matrices
    decayed = rest & set(decayed)
    groups = [
        {"params": [trained[name] for name in sorted(decayed)], "weight_decay": weight_decay},
        {"params": [trained[name] for name in sorted(rest - decayed)], "weight_decay": 0.0},
    ]
    muon = Muon([{"params": [trained[name] for name in sorted(matrices)]}], lr, weight_decay)
    return MuonWithAdamW(muon, AdamW(groups, lr=lr, betas=betas, eps=epsilon))
