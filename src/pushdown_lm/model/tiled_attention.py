"""Pushdown attention block by block: linear memory, the causal half skipped.

Shapes: B batch, H query heads, G key heads, R = H / G query heads a key head, T queries, S keys,
d head width, D rows of the depth table, F tape features.

A tile is a few batch entries times a block of queries. Its scores live in one workspace that all
tiles share; only the log-normaliser of each query is kept, and the backward pass makes the scores
again. With P the attention weights before dropout and M the dropout mask (scaled),

    O = (P * M) V      dV = (P * M)^T dO      dS = P * (M * (dO V^T) - delta)
    delta = rowsum(dO * O)

and the gradient of the depth table adds up dS over the keys of equal depth. The mass N of a depth
adds up P * M over its keys; it is a second output, whose gradient, looked up by depth, is added to
dO V^T, and rowsum(dN * N) to delta. The dropout mask of a tile comes from a generator seeded by the
tile, so that both passes draw the same.

The two passes are custom operators: autograd and ``torch.compile`` see them as one node each.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK = 128
"""Queries a tile."""
WORKSPACE = 1 << 20
"""Scores that a tile aims to hold at the most: few enough for the processor's cache."""


def tiled(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tape: Tensor,
    table: Tensor,
    value_weight: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    scaling: float,
    dropout: float = 0.0,
) -> Tensor:
    """Attention with the depth term ``table[..., tape]``, as the ``gather`` implementation.

    Args:
        query, key, value: ``(B, H, T, d)``, ``(B, G, S, d)``, ``(B, G, S, d)``.
        tape: ``(F, B, T, S)`` integers, rows of the table.
        table: ``(B, H, T, D)``.
        value_weight: ``(D, d)``, added to the values.
        mask: bool, broadcastable to ``(B, 1, T, S)``; by default causal.
        bias: ``(B, H, T, S)``, added to the scaled scores.
    """
    seed = int(torch.randint(2**62, ())) if dropout else 0
    if mask is not None:
        mask = mask.expand(query.shape[0], 1, query.shape[2], key.shape[2])
    key, value, has_mass = key.contiguous(), value.contiguous(), value_weight is not None
    output, mass, _ = _forward(
        query, key, value, tape, table, mask, bias, scaling, dropout, seed, has_mass
    )
    return output if value_weight is None else output + mass @ value_weight


@dataclass(frozen=True, slots=True)
class _Tile:
    batch: slice
    queries: slice
    end: int
    """The keys before ``end`` are seen by some query of the tile."""
    seed: int


class _Tiles:
    """The tiles of one call, with the workspace and the operations that both passes share."""

    def __init__(
        self,
        query: Tensor,
        key: Tensor,
        tape: Tensor,
        table: Tensor,
        mask: Tensor | None,
        bias: Tensor | None,
        scaling: float,
        dropout: float,
        seed: int,
    ) -> None:
        self.query, self.key, self.tape, self.table = query, key, tape, table
        self.mask, self.bias, self.scaling = mask, bias, scaling
        self.dropout, self.seed = dropout, seed
        self.batch, self.heads, self.num_queries, self.width = query.shape
        self.key_heads, self.num_keys = key.shape[1:3]
        low_precision = query.dtype in (torch.float16, torch.bfloat16)
        self.dtype = torch.float32 if low_precision else query.dtype
        self.block = min(BLOCK, self.num_queries)
        row = self.heads * self.block * self.num_keys
        self.step = max(1, min(self.batch, WORKSPACE // row))
        size = self.step * row
        self.scores_space = query.new_empty(size, dtype=self.dtype)
        self.second_space = query.new_empty(size, dtype=self.dtype)
        self.index_space = tape.new_empty(self.step * self.block * self.num_keys, dtype=torch.int64)
        self.later = torch.ones(self.block, self.block, dtype=torch.bool, device=query.device).triu(
            1
        )

    def __iter__(self) -> Iterator[_Tile]:
        offset = self.num_keys - self.num_queries
        seed = self.seed
        for first in range(0, self.batch, self.step):
            batch = slice(first, min(first + self.step, self.batch))
            for start in range(0, self.num_queries, self.block):
                stop = min(start + self.block, self.num_queries)
                end = self.num_keys if self.mask is not None else stop + offset
                yield _Tile(batch, slice(start, stop), end, seed)
                seed += 1

    def shape(self, tile: _Tile) -> tuple[int, int, int, int]:
        """(b, H, t, s): the part of the scores that a tile holds."""
        queries = tile.queries.stop - tile.queries.start
        return tile.batch.stop - tile.batch.start, self.heads, queries, tile.end

    def scores(self, tile: _Tile) -> Tensor:
        """``(b, H, t, s)``: scaled scores, the invisible at -inf, in the first workspace."""
        shape = self.shape(tile)
        scores = _carve(self.scores_space, shape)
        table = self.table[tile.batch, :, tile.queries].to(self.dtype)
        for number in range(len(self.tape)):
            index = self.index(tile, number)
            if number == 0:
                torch.gather(table, -1, index, out=scores)
            else:
                second = _carve(self.second_space, shape)
                scores.add_(torch.gather(table, -1, index, out=second))
        self.multiply(
            scores, self.rows(self.query, tile), self.columns(self.key, tile).transpose(1, 2)
        )
        if self.bias is not None:
            scores.add_(self.bias[tile.batch, :, tile.queries, : tile.end])
        if self.mask is not None:
            scores.masked_fill_(~self.mask[tile.batch, :, tile.queries, : tile.end], -torch.inf)
        else:
            size = shape[2]
            scores[..., tile.end - size :].masked_fill_(self.later[:size, :size], -torch.inf)
        return scores

    def multiply(self, scores: Tensor, left: Tensor, right: Tensor) -> None:
        """``scores = scaling * (scores + left @ right)``."""
        flat = scores.view(left.shape[0], left.shape[1], right.shape[2])
        if left.dtype == self.dtype:
            flat.baddbmm_(left, right, beta=self.scaling, alpha=self.scaling)
        else:
            flat.add_(left @ right).mul_(self.scaling)

    def index(self, tile: _Tile, number: int) -> Tensor:
        b, heads, t, s = self.shape(tile)
        index = _carve(self.index_space, (b, 1, t, s))
        index.copy_(self.tape[number, tile.batch, None, tile.queries, : tile.end])
        return index.expand(b, heads, t, s)

    def by_row(self, scores: Tensor, tile: _Tile) -> Tensor:
        """What the keys of a tile have, added up by rows of the table: ``(b, H, t, D)``."""
        sums = scores.new_zeros(*scores.shape[:3], self.table.shape[-1])
        for number in range(len(self.tape)):
            sums.scatter_add_(-1, self.index(tile, number), scores)
        return sums

    def rows(self, queries: Tensor, tile: _Tile) -> Tensor:
        """Queries of a tile by key head: ``(B, H, T, d)`` to ``(bG, Rt, d)``."""
        part = queries[tile.batch, :, tile.queries]
        return part.reshape(part.shape[0] * self.key_heads, -1, part.shape[-1])

    def columns(self, keys: Tensor, tile: _Tile) -> Tensor:
        """Keys of a tile: contiguous ``(B, G, S, d)`` to a view ``(bG, s, d)``."""
        return keys[tile.batch].flatten(0, 1)[:, : tile.end]

    def grouped(self, scores: Tensor) -> Tensor:
        """``(b, H, t, s)`` to ``(bG, Rt, s)``."""
        return scores.view(scores.shape[0] * self.key_heads, -1, scores.shape[-1])

    def keep(self, tile: _Tile) -> Tensor:
        """The dropout mask of a tile, scaled, the same whenever it is asked for."""
        generator = torch.Generator(self.query.device).manual_seed(tile.seed)
        keep = torch.empty(self.shape(tile), dtype=self.dtype, device=self.query.device)
        return keep.bernoulli_(1 - self.dropout, generator=generator).div_(1 - self.dropout)


def _carve(space: Tensor, shape: tuple[int, ...]) -> Tensor:
    size = 1
    for extent in shape:
        size *= extent
    return space[:size].view(shape)


@torch.library.custom_op("pushdown_lm::tiled_attention", mutates_args=())
def _forward(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tape: Tensor,
    table: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    scaling: float,
    dropout: float,
    seed: int,
    has_mass: bool,
) -> tuple[Tensor, Tensor, Tensor]:
    """The output ``(B, H, T, d)``, the mass ``(B, H, T, D)`` if it is wanted, or else an empty
    tensor, and the log-normaliser of each query ``(B, H, T)``."""
    tiles = _Tiles(query, key, tape, table, mask, bias, scaling, dropout, seed)
    output = value.new_empty((*query.shape[:3], value.shape[-1]))
    mass = value.new_empty(table.shape if has_mass else 0)
    normaliser = query.new_empty(query.shape[:3], dtype=tiles.dtype)
    for tile in tiles:
        scores = tiles.scores(tile)
        largest = scores.amax(-1, keepdim=True)
        if mask is not None:
            largest.masked_fill_(largest == -torch.inf, 0.0)  # a query that sees nothing
        total = scores.sub_(largest).exp_().sum(-1, keepdim=True)
        normaliser[tile.batch, :, tile.queries] = (largest + total.log()).squeeze(-1)
        if dropout:
            scores.mul_(tiles.keep(tile))
        mixed = tiles.grouped(scores).to(value.dtype) @ tiles.columns(value, tile)
        if mask is not None:
            total.masked_fill_(total == 0, 1.0)
        output[tile.batch, :, tile.queries] = mixed.view(*scores.shape[:3], -1) / total
        if has_mass:
            mass[tile.batch, :, tile.queries] = tiles.by_row(scores, tile) / total
    return output, mass, normaliser


@torch.library.custom_op("pushdown_lm::tiled_attention_backward", mutates_args=())
def _backward(
    grad_output: Tensor,
    grad_mass: Tensor,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tape: Tensor,
    table: Tensor,
    mask: Tensor | None,
    bias: Tensor | None,
    output: Tensor,
    mass: Tensor,
    normaliser: Tensor,
    scaling: float,
    dropout: float,
    seed: int,
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of query, key, value, table and bias, the last empty if there is none."""
    tiles = _Tiles(query, key, tape, table, mask, bias, scaling, dropout, seed)
    grad_query = torch.empty(query.shape, dtype=query.dtype, device=query.device)
    grad_key = torch.zeros(key.shape, dtype=key.dtype, device=query.device)
    grad_value = torch.zeros(value.shape, dtype=value.dtype, device=query.device)
    grad_table = torch.empty(table.shape, dtype=tiles.dtype, device=query.device)
    grad_bias = query.new_zeros(0) if bias is None else torch.zeros_like(bias)
    has_mass = mass.numel() > 0
    delta = (grad_output * output).sum(-1, keepdim=True, dtype=tiles.dtype)  # (B, H, T, 1)
    if has_mass:
        delta += (grad_mass * mass).sum(-1, keepdim=True, dtype=tiles.dtype)
    normaliser = normaliser.masked_fill(normaliser == -torch.inf, 0.0)
    for tile in tiles:
        weights = tiles.scores(tile)
        weights.sub_(normaliser[tile.batch, :, tile.queries, None]).exp_()
        grad_rows = tiles.rows(grad_output, tile)
        grad_scores = _carve(tiles.second_space, tiles.shape(tile))
        torch.matmul(
            grad_rows.to(tiles.dtype),
            tiles.columns(value, tile).transpose(1, 2).to(tiles.dtype),
            out=tiles.grouped(grad_scores),
        )
        if has_mass:
            looked_up = grad_mass[tile.batch, :, tile.queries].to(tiles.dtype)
            for number in range(len(tape)):
                grad_scores.add_(looked_up.gather(-1, tiles.index(tile, number)))
        dropped = weights
        if dropout:
            keep = tiles.keep(tile)
            grad_scores.mul_(keep)
            dropped = keep.mul_(weights)
        tiles.columns(grad_value, tile).add_(
            tiles.grouped(dropped).transpose(1, 2).to(value.dtype) @ grad_rows
        )
        grad_scores.sub_(delta[tile.batch, :, tile.queries]).mul_(weights)
        if bias is not None:
            grad_bias[tile.batch, :, tile.queries, : tile.end] = grad_scores
        grad_scores.mul_(scaling)
        grad_table[tile.batch, :, tile.queries] = tiles.by_row(grad_scores, tile)
        grad_part = tiles.grouped(grad_scores).to(query.dtype)
        grad_query[tile.batch, :, tile.queries] = (grad_part @ tiles.columns(key, tile)).view(
            *tiles.shape(tile)[:3], -1
        )
        tiles.columns(grad_key, tile).add_(grad_part.transpose(1, 2) @ tiles.rows(query, tile))
    return grad_query, grad_key, grad_value, grad_table.to(table.dtype), grad_bias


@_forward.register_fake
def _(query, key, value, tape, table, mask, bias, scaling, dropout, seed, has_mass):  # type: ignore[no-untyped-def]
    dtype = torch.float32 if query.dtype in (torch.float16, torch.bfloat16) else query.dtype
    output = value.new_empty((*query.shape[:3], value.shape[-1]))
    mass = value.new_empty(table.shape if has_mass else 0)
    return output, mass, query.new_empty(query.shape[:3], dtype=dtype)


@_backward.register_fake
def _(grad_output, grad_mass, query, key, value, tape, table, mask, bias, *_rest):  # type: ignore[no-untyped-def]
    bias = query.new_empty(0) if bias is None else bias
    return tuple(
        torch.empty(tensor.shape, dtype=tensor.dtype, device=tensor.device)
        for tensor in (query, key, value, table, bias)
    )


def _save(ctx, inputs, output):  # type: ignore[no-untyped-def]
    *tensors, ctx.scaling, ctx.dropout, ctx.seed, _has_mass = inputs
    ctx.save_for_backward(*tensors, *output)


def _differentiate(ctx, grad_output, grad_mass, _grad_normaliser):  # type: ignore[no-untyped-def]
    *tensors, output, mass, normaliser = ctx.saved_tensors
    gradients = _backward(
        grad_output.contiguous(),
        grad_mass,
        *tensors,
        output,
        mass,
        normaliser,
        ctx.scaling,
        ctx.dropout,
        ctx.seed,
    )
    grad_query, grad_key, grad_value, grad_table, grad_bias = gradients
    grad_bias = None if tensors[-1] is None else grad_bias
    return grad_query, grad_key, grad_value, None, grad_table, None, grad_bias, *[None] * 4


_forward.register_autograd(_differentiate, setup_context=_save)
