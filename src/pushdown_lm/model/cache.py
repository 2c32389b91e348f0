"""The cache of token-by-token decoding: the decoder's own, and the parse so far."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import DynamicCache

from pushdown_lm.trees.oracle import Stack


class PushdownCache(DynamicCache):
    """The decoder's cache together with the parse so far, kept in step when entries move."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.stack: Stack | None = None
        self.head_keys: Tensor | None = None
        """``(B, L, d)``: the head's keys of all positions read."""
        self.last_hidden: Tensor | None = None
        """``(B, d)``: the last hidden state of the newest position."""

    def select(self, index: Tensor) -> None:
        """Keep the entries at ``index``, which may repeat."""
        super().batch_select_indices(index)
        if self.stack is not None:
            self.stack = self.stack.select(index)
        if self.head_keys is not None:
            self.head_keys = self.head_keys[index]
        if self.last_hidden is not None:
            self.last_hidden = self.last_hidden[index]

    def reorder_cache(self, beam_idx: Tensor) -> None:
        self.select(beam_idx)

    def batch_select_indices(self, indices: Tensor) -> None:
        self.select(indices)

    def batch_repeat_interleave(self, repeats: int) -> None:
        if self.stack is not None:
            size = self.stack.root.shape[0]
            index = torch.arange(size, device=self.stack.root.device)
            self.select(index.repeat_interleave(repeats))

    def crop(self, max_length: int) -> None:
        raise ValueError("a Pushdown cache cannot be cropped: the parse of a prefix is not kept")
