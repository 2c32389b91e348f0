"""Attention weights of a text, by its characters.

Shapes: L layers, H heads, T tokens read, BOS included; R spans, and BOS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from pushdown_lm.trees import Span


@dataclass(frozen=True, slots=True)
class ReadAttention:
    """What a model attends to while it reads a text."""

    tokens: tuple[str, ...]
    """BOS first, T of them."""
    offsets: tuple[Span, ...]
    """Characters of the tokens after BOS."""
    weights: Tensor
    """``(L, H, T, T)``."""

    def on(self, span: Span) -> Tensor:
        """The last token's attention on the tokens that overlap a span of characters. ``(L, H)``"""
        return self.weights[:, :, -1, self._positions(span)].sum(-1)

    def between(self, spans: Sequence[Span]) -> Tensor:
        """Attention between BOS and spans of characters, over all layers and heads: ``(R, R)``.

        Row: who attends, the mean of its tokens. Column: what is attended to, their sum.
        """
        groups = [[0], *map(self._positions, spans)]
        weights = self.weights.double().mean((0, 1))
        return torch.stack(
            [
                torch.stack([weights[rows][:, columns].sum(-1).mean() for columns in groups])
                for rows in groups
            ]
        )

    def _positions(self, span: Span) -> list[int]:
        """The tokens that overlap a span of characters."""
        return [
            number
            for number, (start, end) in enumerate(self.offsets, start=1)
            if start < span[1] and span[0] < end
        ]
