"""Where the padding of a batch is, by its attention mask ``(B, T)``, zero for padding."""

from __future__ import annotations

from torch import Tensor


def pads_right(attention_mask: Tensor | None) -> bool:
    """Whether padding, if any, is on the right, where causal attention never sees it."""
    return attention_mask is None or bool(attention_mask[:, 0].all())


def first_of_row(attention_mask: Tensor | None, past: int, total: int) -> Tensor | None:
    """Which of the new columns begin a row that is padded on the left. ``(B, t)``"""
    if attention_mask is None or attention_mask.ndim != 2 or attention_mask[:, 0].all():
        return None
    begins = attention_mask.cumsum(-1) * attention_mask == 1
    return begins[:, past:total]
