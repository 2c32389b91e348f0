"""The decoder as search needs it: many parses of many sentences, one position after another.

Shapes: B sentences, T positions, N entries (parses of the batch's sentences), L positions read,
C candidate slots, d hidden width, G key heads, V vocabulary.

A *cell* is what one entry computes at one position. Parses that branch from a common past share
the cells of that past, so each cell is stored once, in a :class:`_Store`, and an entry is a row of
cell numbers. Reordering the beam copies these rows and nothing else.

Layers below the first pushdown layer do not see the parse. They run once a sentence, in parallel,
and while entries are decoded they only hand out what they have computed. In a model without
pushdown layers that is the whole decoder, and only the attachment head is left to each entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor
from transformers.cache_utils import Cache, DynamicLayer

from pushdown_lm.model.layers import lower_output, replaced_layers
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.model.packed_linear import packed_linears
from pushdown_lm.trees.oracle import Stack

PARALLEL_TOKENS = 2048
"""Tokens whose logits are computed at once where they do not depend on the parse."""


class EntryDecoder(Protocol):
    """Decodes the entries of a beam, position by position."""

    def step(self, sentence: Tensor, parent: Tensor, stack: Stack) -> tuple[Tensor, Tensor]:
        """Read the token at the stack's newest position.

        Args:
            sentence: ``(N,)``, the sentence of each entry.
            parent: ``(N,)``, the entry of the step before that each entry continues.
            stack: the entries' stacks after that token.

        Returns:
            The last hidden states ``(N, d)`` and the log-probabilities ``(N,)`` of the sentences'
            next tokens.
        """

    def next_tokens(self, sentence: Tensor, position: int) -> Tensor:
        """What the head sees of the tokens at a position that is not read yet: ``(N, e)``."""

    def keys(self, position: Tensor) -> Tensor:
        """The head's keys of each entry at positions ``(N, C)``: ``(N, C, d)``."""


@contextmanager
def entry_decoder(model: PushdownForCausalLM, input_ids: Tensor) -> Iterator[EntryDecoder]:
    """A decoder of entries for the sentences ``(B, T)``, ROOT first, padded on the right.

    The last position is predicted, never read. Until the block is left, the model serves this
    search only.
    """
    with packed_linears(model):
        if not model.config.pushdown_layers:
            yield _SharedDecoder(model, input_ids)
            return
        decoder = _BranchingDecoder(model, input_ids)
        with replaced_layers(model.decoder, model.config.num_lower_layers, decoder.replay):
            yield decoder


class _SharedDecoder:
    """Of a model without pushdown layers: all cells are known from one parallel pass."""

    def __init__(self, model: PushdownForCausalLM, input_ids: Tensor) -> None:
        assert model.head is not None
        hidden, log_probs = [], []
        for rows in input_ids.split(max(1, PARALLEL_TOKENS // input_ids.shape[1])):
            decoded = model.decoder(
                input_ids=rows[:, :-1], use_cache=False, output_hidden_states=True
            )
            hidden.append(decoded.hidden_states[-1])
            log_probs.append(_log_prob(decoded.logits, rows[:, 1:]))
        self.hidden = torch.cat(hidden)  # (B, T - 1, d)
        self.log_prob = torch.cat(log_probs)  # (B, T - 1)
        self.all_keys = model.head.keys(self.hidden)
        self.sentence = input_ids.new_empty(0)
        self.embeddings, self.input_ids = model.get_input_embeddings(), input_ids

    def step(self, sentence: Tensor, parent: Tensor, stack: Stack) -> tuple[Tensor, Tensor]:
        self.sentence, position = sentence, len(stack) - 1
        return self.hidden[sentence, position], self.log_prob[sentence, position]

    def next_tokens(self, sentence: Tensor, position: int) -> Tensor:
        return self.embeddings(self.input_ids[sentence, position])

    def keys(self, position: Tensor) -> Tensor:
        return self.all_keys[self.sentence[:, None], position]


class _BranchingDecoder:
    """Of a model with pushdown layers: each entry has cells of its own."""

    def __init__(self, model: PushdownForCausalLM, input_ids: Tensor) -> None:
        self.model, self.input_ids = model, input_ids
        self.lower_output: Tensor | None = None
        if count := model.config.num_lower_layers:
            self.lower_output = lower_output(
                model.decoder, count, input_ids=input_ids[:, :-1], use_cache=False
            )
        self.cache = _CellCache(model.config.decoder.num_hidden_layers, input_ids.device)
        self.head_keys = _Store()
        self.replayed: Tensor | None = None

    def replay(self, *_: Any, **__: Any) -> Tensor:
        """What a layer below the first pushdown layer does while entries are decoded."""
        assert self.replayed is not None
        return self.replayed

    def step(self, sentence: Tensor, parent: Tensor, stack: Stack) -> tuple[Tensor, Tensor]:
        assert self.model.head is not None
        position = len(stack) - 1
        self.cache.branch(parent)
        if self.lower_output is not None:
            self.replayed = self.lower_output[sentence, position, None]
        decoded = self.model.decoder(
            input_ids=self.input_ids[sentence, position, None],
            position_ids=sentence.new_full((len(sentence), 1), position),
            past_key_values=self.cache,
            use_cache=True,
            tape=self.model.tape_row(stack),
            output_hidden_states=True,
        )
        hidden = decoded.hidden_states[-1][:, 0]
        self.head_keys.append(self.model.head.keys(hidden))
        following = self.input_ids[sentence, position + 1]
        return hidden, _log_prob(decoded.logits[:, 0], following)

    def next_tokens(self, sentence: Tensor, position: int) -> Tensor:
        if self.model.config.head_input == "embedding":
            return self.model.get_input_embeddings()(self.input_ids[sentence, position])
        assert self.lower_output is not None
        return self.lower_output[sentence, position]

    def keys(self, position: Tensor) -> Tensor:
        return self.head_keys.rows(self.cache.cells.gather(1, position))


class _Store:
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


class _CellCache(Cache):
    """Transformers' cache interface over stored cells: what a layer appends is kept once, and what
    it gets back is looked up by the entries' rows of cell numbers."""

    def __init__(self, num_layers: int, device: torch.device) -> None:
        super().__init__(layer_class_to_replicate=DynamicLayer)
        self.stores = [(_Store(), _Store()) for _ in range(num_layers)]
        self.cells = torch.empty(0, 0, dtype=torch.long, device=device)
        """``(N, L)``: the cells of each entry."""
        self.num_cells = 0
        self._rows: Tensor | None = None

    def branch(self, parent: Tensor) -> None:
        """Continue the entries ``(N,)``, which may repeat, each with a new cell."""
        new = torch.arange(self.num_cells, self.num_cells + len(parent), device=parent.device)
        past = self.cells[parent] if self.num_cells else self.cells.new_empty(len(parent), 0)
        self.cells = torch.cat([past, new[:, None]], 1)
        self.num_cells += len(parent)
        self._rows = None

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


def _log_prob(logits: Tensor, tokens: Tensor) -> Tensor:
    """Log-probabilities ``(...)`` of tokens under logits ``(..., V)``, which it uses up."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    largest = logits.amax(-1)
    chosen = logits.gather(-1, tokens[..., None])[..., 0] - largest
    return chosen - logits.sub_(largest[..., None]).exp_().sum(-1).log()
