"""Sinusoids of positions, for the published decoder and its attachment head."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def sinusoids(positions: Tensor, width: int, dtype: torch.dtype) -> Tensor:
    """R: ``sin(r w_m)`` at 2m and ``cos(r w_m)`` at 2m + 1, w_m = 10000^(-2m/width).

    Positions ``(...)`` to ``(..., width)``, computed in at least float32.
    """
    exact = torch.promote_types(dtype, torch.float32)
    even = torch.arange(0, width, 2, device=positions.device, dtype=exact)
    angles = positions[..., None] * torch.exp(even * (-math.log(10_000.0) / width))
    return torch.stack([angles.sin(), angles.cos()], -1).flatten(-2).to(dtype)
