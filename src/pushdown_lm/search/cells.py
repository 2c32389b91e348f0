"""What a decoder computes for the entries of a search, kept once however many entries share it.

Shapes: N entries (rows of a batch), L cells, G key heads, d head width, w width of a stored row.

A *cell* is what one entry computes at one position. Entries that branch from a common past share
the cells of that past, so each cell is stored once, in a :class:`Store`, and an entry is a row of
cell numbers. Reordering a beam copies these rows and nothing else.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer


class Store:
    """Rows that are appended and looked up, in a buffer that doubles when it is full."""

    def __init__(self) -> None:
        self.buffer: Tensor | None = None
        self.size = 0

    def append(self, rows: Tensor) -> None:
        """Rows ``(N, w)`` under the next N numbers."""
        end = self.size + len(rows)
        if self.buffer is None or end > len(self.buffer):
            grown = rows.new_empty(max(2 * self.size, 4 * len(rows)), rows.shape[1])
            if self.buffer is not None:
                grown[: self.size] = self.buffer[: self.size]
            self.buffer = grown
        self.buffer[self.size : end] = rows
        self.size = end

    def rows(self, index: Tensor) -> Tensor:
        """Rows by their numbers ``(...)``: ``(..., w)``."""
        assert self.buffer is not None
        return self.buffer.index_select(0, index.reshape(-1)).view(*index.shape, -1)

    def keep(self, index: Tensor) -> None:
        """Drop all rows but these ``(K,)``, which are numbered anew in their order."""
        kept = self.rows(index)
        assert self.buffer is not None
        self.buffer[: len(kept)] = kept
        self.size = len(kept)


class CellCache(Cache):
    """Transformers' cache interface over stored cells: what a layer appends is kept once, and what
    it gets back is looked up by the entries' rows of cell numbers.

    Each pass of the decoder over N positions, one of each entry, computes N new cells, which have
    the next N numbers. Before it, :meth:`branch` or :meth:`look_up` says what its entries see.
    """

    def __init__(self, num_layers: int, device: torch.device) -> None:
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self.stores = [(Store(), Store()) for _ in range(num_layers)]
        self.cells = torch.empty(0, 0, dtype=torch.long, device=device)
        """``(N, L)``: the cells of each entry."""
        self.num_cells = 0
        self._rows: Tensor | None = None

    def branch(self, parent: Tensor) -> None:
        """Continue the entries ``(N,)``, which may repeat, each with a new cell."""
        past = self.cells[parent] if self.num_cells else self.cells.new_empty(len(parent), 0)
        self.look_up(torch.cat([past, self.next_cells(len(parent))[:, None]], 1))

    def next_cells(self, count: int) -> Tensor:
        """The numbers of the next cells."""
        return torch.arange(self.num_cells, self.num_cells + count, device=self.cells.device)

    def look_up(self, cells: Tensor) -> None:
        """Go on with N new entries that see the cells ``(N, L)``, their own new ones among them."""
        self.cells = cells
        self.num_cells += len(cells)
        self._rows = None

    def keep(self, cells: Tensor) -> None:
        """Drop all cells but these ``(K,)``, which are numbered anew in their order."""
        for stores in self.stores:
            for store in stores:
                heads = store.size // self.num_cells
                head = torch.arange(heads, device=cells.device)
                store.keep((cells[:, None] * heads + head).flatten())
        self.num_cells = len(cells)

    def update(
        self, key_states: Tensor, value_states: Tensor, layer_idx: int, *_: Any, **__: Any
    ) -> tuple[Tensor, Tensor]:
        """Append ``(N, G, 1, d)``; all of each entry so far, ``(N, G, L, d)``."""
        heads = key_states.shape[1]
        if self._rows is None or self._rows.shape[1] != heads:
            head = torch.arange(heads, device=self.cells.device)
            self._rows = self.cells[:, None] * heads + head[:, None]
        looked_up = []
        for store, states in zip(self.stores[layer_idx], (key_states, value_states), strict=True):
            store.append(states.flatten(0, 2))
            looked_up.append(store.rows(self._rows))
        return looked_up[0], looked_up[1]

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Positions before the one being read."""
        return max(self.cells.shape[1] - 1, 0)

    def get_mask_sizes(self, query_length: int, layer_idx: int) -> tuple[int, int]:
        return self.get_seq_length() + query_length, 0
