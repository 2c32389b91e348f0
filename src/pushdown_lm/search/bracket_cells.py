"""The decoder as word-synchronous search needs it: many bracketings of many sentences.

Shapes: N entries (of all sentences of a batch), P cells of an entry, L labels, D depths, A actions,
T tokens, V vocabulary.

An *entry* is a prefix of a bracketed sentence. It attends to *cells*, which it shares with entries
that have the same past (:mod:`pushdown_lm.search.cells`), and knows the *place* of each of its
cells, which is -1 where it does not see one (any more).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn.functional import one_hot, pad

from pushdown_lm.model.bracket_modeling import BracketForCausalLM
from pushdown_lm.model.bracket_structure import legal_classes
from pushdown_lm.search.cells import CellCache
from pushdown_lm.trees.linearization import CLOSE, TOKEN

UNUSED = -2
"""Fills the places of actions that an entry does not have."""
ROWS_AT_ONCE = 1024
"""Entries that are read in one pass, which bounds the memory of a step."""


@dataclass(slots=True)
class Entries:
    """Prefixes of bracketed sentences; the first dimension of all tensors is N."""

    sentence: Tensor
    score: Tensor
    """float64: log p of all symbols so far."""
    length: Tensor
    """Symbols so far; a closer that comes twice counts once."""
    depth: Tensor
    """Open constituents."""
    label: Tensor
    """``(N, D)``: their labels, outermost first."""
    opened: Tensor
    """``(N, D)``: where they were opened."""
    actions: Tensor
    """``(N, A)``, UNUSED at the end."""
    cells: Tensor
    """``(N, P)``: the cells of its symbols."""
    place: Tensor
    """``(N, P)``: of each of them, -1 if it is not seen. In TG, the depth after the symbol while it
    is on the stack; otherwise the symbol's position."""
    opens: Tensor
    """``(N, L)``: log-probabilities of what may come next, openers,"""
    closes: Tensor
    """the closer of the innermost constituent,"""
    reads: Tensor
    """and the sentence's next token, EOS after the last."""

    def select(self, index: Tensor) -> Entries:
        return Entries(*(getattr(self, field.name)[index] for field in fields(self)))

    def innermost(self, stack: Tensor) -> Tensor:
        """Of stacks ``(N, D)``, the value of the innermost constituent; any if none is open."""
        return stack.gather(1, (self.depth[:, None] - 1).clamp(min=0))[:, 0]


_FILLS = {"label": 0, "opened": 0, "actions": UNUSED, "cells": 0, "place": -1}


def join_entries(parts: Sequence[Entries]) -> Entries:
    """All entries together; shorter rows are filled up."""
    columns: dict[str, Tensor] = {}
    for name in (field.name for field in fields(Entries)):
        tensors = [getattr(part, name) for part in parts]
        if name in _FILLS:
            width = max(tensor.shape[1] for tensor in tensors)
            tensors = [pad(one, (0, width - one.shape[1]), value=_FILLS[name]) for one in tensors]
        columns[name] = torch.cat(tensors)
    return Entries(**columns)


class CellDecoder:
    """Reads symbols, one for each entry, and predicts what comes next.

    Args:
        tokens: ``(B, T)``, those after BOS of each sentence, EOS last and as padding.
    """

    def __init__(self, model: BracketForCausalLM, tokens: Tensor) -> None:
        self.model, self.nonterminals = model, model.config.nonterminals
        self.is_tg = model.config.kind == "tg"
        self.tokens = tokens
        self.cache = CellCache(model.config.decoder.num_hidden_layers, tokens.device)
        self.num_steps = self.num_read = 0

    def start(self) -> Entries:
        """Read BOS: an entry for each sentence."""
        sentence = torch.arange(len(self.tokens), device=self.tokens.device)
        zeros = torch.zeros_like(sentence)
        empty = zeros[:, None]
        entries = Entries(
            sentence=sentence,
            score=zeros.double(),
            length=zeros,
            depth=zeros,
            label=empty,
            opened=empty,
            actions=empty[:, :0],
            cells=empty[:, :0],
            place=empty[:, :0],
            opens=empty,
            closes=zeros,
            reads=zeros,
        )
        bos = torch.full_like(sentence, self.model.config.bos_token_id or 0)
        return self._read(entries, bos, zeros.bool(), zeros.bool())

    def step(self, entries: Entries, action: Tensor) -> Entries:
        """Take an action ``(N,)`` with each entry."""
        if len(action) > ROWS_AT_ONCE:
            parts = torch.arange(len(action), device=action.device).split(ROWS_AT_ONCE)
            return join_entries([self.step(entries.select(part), action[part]) for part in parts])
        is_open, is_close = action > 0, action == CLOSE
        symbols = torch.where(is_open, self.nonterminals.first + action - 1, self._next(entries))
        symbols = torch.where(is_close, self._closer(entries), symbols)
        depth = entries.depth + is_open.long() - is_close.long()
        depths = max(entries.label.shape[1], int(depth.max()))
        new = is_open[:, None] & one_hot((depth - 1).clamp(min=0), depths).bool()

        def push(stack: Tensor, value: Tensor) -> Tensor:
            return torch.where(new, value[:, None], pad(stack, (0, depths - stack.shape[1])))

        entries = replace(
            entries,
            depth=depth,
            label=push(entries.label, action - 1),
            opened=push(entries.opened, entries.length),
            actions=pad(entries.actions, (0, 1), value=UNUSED).scatter(
                1, (entries.length - 1)[:, None], action[:, None]
            ),
        )
        return self._read(entries, symbols, is_open, is_close)

    def _read(
        self, entries: Entries, symbols: Tensor, is_open: Tensor, is_close: Tensor
    ) -> Entries:
        """Run the decoder over the symbols ``(N,)``, after which depths are as the entries say."""
        cells = torch.cat([entries.cells, self.cache.next_cells(len(symbols))[:, None]], 1)
        place, own_place, position = entries.place, entries.length, entries.length
        seen = place >= 0
        if self.is_tg:
            composed = is_close[:, None] & (place == entries.depth[:, None] + 1)
            seen = torch.where(is_close[:, None], composed, seen)
            place, own_place = place.masked_fill(composed, -1), entries.depth
            position = (entries.depth + ~is_open) * (entries.length > 0)
        place = torch.cat([place, own_place[:, None]], 1)
        entries = replace(entries, cells=cells, place=place, length=entries.length + 1)
        mask = pad(seen, (0, 1), value=True)
        predicting = torch.arange(len(symbols), device=symbols.device)
        if self.is_tg:  # second copies see the stack with the first ones, and are not put there
            again = is_close.nonzero()[:, 0]
            own = self.cache.next_cells(len(symbols) + len(again))[len(symbols) :, None]
            cells = torch.cat([pad(cells, (0, 1)), torch.cat([cells[again], own], 1)])
            mask = torch.cat([pad(mask, (0, 1)), pad(place[again] >= 0, (0, 1), value=True)])
            predicting[again] = len(symbols) + predicting[: len(again)]
            symbols = torch.cat([symbols, symbols[again]])
            position = torch.cat([position, position[again]])
        heads = mask[:, None]
        if self.model.config.kind == "plm-mask":
            heads = self.model.head_mask(self._constrained_mask(entries)[:, :, None])[:, :, 0]
        self.cache.look_up(cells)
        logits, _ = self.model.read(
            symbols[:, None],
            position[:, None],
            heads[:, :, None],
            past_key_values=self.cache,
            use_cache=True,
        )
        self.num_steps += 1
        self.num_read += len(predicting)
        return self._predict(entries, logits[predicting, 0], is_open)

    def _constrained_mask(self, entries: Entries) -> Tensor:
        """What the two heads of PLM-mask see, by what is open now: ``(N, 2, P)``."""
        opened = torch.where(entries.depth > 0, entries.innermost(entries.opened), -1)[:, None]
        within = entries.place >= opened
        return torch.stack([~within | (opened < 0), within], 1) & (entries.place >= 0)[:, None]

    def _predict(self, entries: Entries, logits: Tensor, after_opener: Tensor) -> Entries:
        """The entries with the log-probabilities of what may come next, by logits ``(N, V)``."""
        legal = legal_classes(
            entries.depth,
            entries.innermost(entries.label),
            entries.length == 1,
            after_opener,
            self.model.num_closers,
        )
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
        penalty = torch.where(legal, 0.0, -torch.inf).to(logits.dtype)
        penalty = penalty.index_select(1, self.model.symbol_classes(logits))
        log_probs = logits.add_(penalty).log_softmax(-1)
        chosen = torch.stack([self._closer(entries), self._next(entries)], 1)
        chosen = log_probs.gather(1, chosen).double()
        return replace(
            entries,
            opens=log_probs[:, self.nonterminals.first : self.nonterminals.first_closer].double(),
            closes=chosen[:, 0],
            reads=chosen[:, 1],
        )

    def _closer(self, entries: Entries) -> Tensor:
        """The closer of the innermost constituent ``(N,)``."""
        label = entries.innermost(entries.label)
        return self.nonterminals.first_closer + label * self.nonterminals.typed

    def _next(self, entries: Entries) -> Tensor:
        """The sentence's next token ``(N,)``."""
        num_read = (entries.actions == TOKEN).sum(1)
        return self.tokens[entries.sentence, num_read]

    def drop_cells(self, entries: Entries) -> Entries:
        """Keep only the cells that some of the entries see."""
        seen = entries.place >= 0
        order = seen.byte().argsort(dim=1, descending=True, stable=True)
        order = order[:, : int(seen.sum(1).max())]
        seen, cells = seen.gather(1, order), entries.cells.gather(1, order)
        kept, numbers = cells[seen].unique(return_inverse=True)
        self.cache.keep(kept)
        cells = torch.zeros_like(cells).masked_scatter(seen, numbers)
        return replace(entries, cells=cells, place=entries.place.gather(1, order))
