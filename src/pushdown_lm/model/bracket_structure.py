"""What brackets mean to attention: masks, positions and legal next symbols, in closed form.

Shapes: B sentences, T symbols, H heads, C classes of symbols.

A bracketed sentence is a sequence of *symbols*: BOS, openers, tokens, closers, EOS. With d_t the
number of constituents that are open after symbol t, the innermost of them was opened at

    p_t = the last opener j <= t with d_j = d_t          (none if d_t = 0)

since any later dip below d_t would need an opener at that depth to come back. The closer at t
closes the constituent that was opened at p_(t-1). All else follows from p:

**PLM-mask** (Qian et al. 2021). Two heads of every layer are constrained: head 0 of position t sees
the positions before p_t, head 1 sees p_t and what follows. Where nothing is open, neither is.

**Transformer Grammars** (Sartran et al. 2022). The first copy of a closer COMPOSEs: it attends to
its opener, to the children that are still on the stack, and to itself, takes them off the stack and
puts itself there. All other symbols do STACK: they attend to the stack and to themselves and, but
for the second copies of closers, are put there. So symbol j leaves the stack when the innermost
constituent that is open after it closes: pop_j = when the constituent opened at p_j closes, and

    STACK at i sees j      iff   j <= i,  j was put on the stack, and pop_j > i   (or j = i)
    COMPOSE at i sees j    iff   pop_j = i  or  j = i

Positions are depths in the tree: 0 of BOS, d_t of an opener, d_t + 1 of other symbols, so that a
closer has the depth of its opener.

**Legal symbols.** A sentence is one constituent: first its opener, and EOS after its closer. Tokens
and openers come where something is open. A closer comes where the constituent has two children or
more (tokens of one word count each); the root needs one. A closer with a label is that of the
innermost constituent. Everything else has probability 0.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import Tensor

if TYPE_CHECKING:
    from pushdown_lm.data.bracketing import Nonterminals

NEVER, WORD, END, OPEN, CLOSE = range(5)
"""Classes of symbols that are legal together; with labels, each closer is one, from CLOSE on."""


@dataclass(frozen=True, slots=True)
class BracketStructure:
    """The brackets of a batch; all tensors are ``(B, T)``."""

    opens: Tensor
    composes: Tensor
    """Closers, only first copies where they come twice."""
    repeats: Tensor
    """Second copies of closers."""
    depth: Tensor
    """d_t."""
    innermost: Tensor
    """p_t, or -1."""
    closed: Tensor
    """At closers, both copies, where their constituent was opened; -1 elsewhere."""
    label: Tensor
    """Of the innermost open constituent, the number; 0 where none is open."""

    def plm_mask(self) -> Tensor:
        """What the two constrained heads see: ``(B, 2, T, T)``."""
        earlier = torch.arange(self.depth.shape[1], device=self.depth.device)
        within = earlier >= self.innermost[..., None]  # (B, T, T)
        outside = ~within | (self.innermost < 0)[..., None]
        return torch.stack([outside, within], 1) & _causal(self.depth)

    def tg_mask(self) -> Tensor:
        """What STACK and COMPOSE see: ``(B, T, T)``."""
        length = self.depth.shape[1]
        time = torch.arange(length, device=self.depth.device)
        never = self.depth.new_full((self.depth.shape[0], length + 1), length)
        opened = torch.where(self.composes, self.closed, length)
        closes_at = never.scatter(1, opened, time.expand_as(opened))  # of openers
        pop = torch.where(
            self.innermost >= 0, closes_at.gather(1, self.innermost.clamp(min=0)), length
        )
        pop, now = pop[:, None], time[:, None]  # (B, 1, T), (T, 1)
        seen = torch.where(self.composes[..., None], pop == now, pop > now)
        seen &= _causal(self.depth) & ~self.repeats[:, None]
        return seen | torch.eye(length, dtype=torch.bool, device=seen.device)

    def depth_positions(self) -> Tensor:
        """Depths in the tree, the positions of Transformer Grammars."""
        positions = self.depth + ~self.opens
        positions[:, 0] = 0
        return positions

    def legal(self, num_closers: int) -> Tensor:
        """Which classes of symbols may come next: ``(B, T, C)`` with C = CLOSE + num_closers."""
        time = torch.arange(self.depth.shape[1], device=self.depth.device)
        is_open, is_first = self.depth > 0, time == 0
        child = torch.where(self.closed >= 0, self.closed, time)  # where the last child starts
        several = (child > self.innermost + 1) | (self.depth == 1)
        closes = is_open & ~self.opens & several
        rest = [torch.zeros_like(is_open), is_open, ~is_open & ~is_first, is_open | is_first]
        if num_closers == 1:
            return torch.stack([*rest, closes], -1)
        by_label = torch.nn.functional.one_hot(self.label, num_closers).bool()
        return torch.cat([torch.stack(rest, -1), closes[..., None] & by_label], -1)


def bracket_structure(symbols: Tensor, nonterminals: Nonterminals) -> BracketStructure:
    """The brackets of sentences ``(B, T)`` that start with BOS and may be padded on the right."""
    opens = (symbols >= nonterminals.first) & (symbols < nonterminals.first_closer)
    closers = (symbols >= nonterminals.first_closer) & (symbols < nonterminals.end)
    time = torch.arange(symbols.shape[1], device=symbols.device).expand_as(symbols)
    repeats = torch.zeros_like(closers)
    if nonterminals.typed:
        run_start = time.masked_fill(closers, 0).cummax(1).values  # the last symbol that is none
        repeats = closers & ((time - run_start) % 2 == 0)
    composes = closers & ~repeats
    depth = (opens.long() - composes.long()).cumsum(1).clamp(min=0)
    last = symbols.new_zeros(*symbols.shape, int(depth.max()) + 1)  # (B, T, D), by depth
    last = last.scatter(2, depth[..., None], ((time + 1) * opens)[..., None]).cummax(1).values
    innermost = last.gather(2, depth[..., None])[..., 0] - 1
    before = innermost.roll(1, 1)
    closed = torch.where(composes, before, -1)
    closed = torch.where(repeats, closed.roll(1, 1), closed)
    label = symbols.gather(1, innermost.clamp(min=0)) - nonterminals.first
    return BracketStructure(
        opens=opens,
        composes=composes,
        repeats=repeats,
        depth=depth,
        innermost=innermost,
        closed=closed,
        label=label.masked_fill(innermost < 0, 0),
    )


def symbol_classes(
    vocabulary: int, nonterminals: Nonterminals, end_id: int, forbidden: set[int]
) -> Tensor:
    """The class of each id: ``(V,)``; ids that are no symbols are never legal."""
    classes = torch.full((vocabulary,), NEVER)
    classes[: nonterminals.first] = WORD
    classes[end_id] = END
    classes[sorted(forbidden - {end_id})] = NEVER
    classes[nonterminals.first : nonterminals.first_closer] = OPEN
    num_closers = nonterminals.end - nonterminals.first_closer
    classes[nonterminals.first_closer : nonterminals.end] = CLOSE + torch.arange(num_closers)
    return classes


def _causal(like: Tensor) -> Tensor:
    length = like.shape[1]
    return torch.ones(length, length, dtype=torch.bool, device=like.device).tril()
