"""Pushdown attention: self-attention whose keys also see the stack tape (the paper's equation 3).

    score(k, j) = q_k . (key_j + E[W_k[j]]) * scaling

Shapes: B batch, H query heads, G key heads (GQA: H is a multiple of G), T queries, S keys,
d head width, D rows of the tape embeddings, F tape features (1, or 2 with the stack distance).

Since ``q . (k + E[W]) = q.k + (q E^T)[W]``, the depth term is a look-up in a *table* of T x D
numbers a head, and no T x S x d tensor is needed. Where values see the tape too (not in the paper),
the attention weights are added up by depth, and these sums, the *mass* of each row, multiplied with
the embeddings. Four implementations, chosen by argument:

    reference   the paper's appendix: keys of size T x S x d. Defines correctness.
    gather      the table look-up in plain differentiable operations; gives attention weights.
    tiled       the same, block by block over the queries with the causal half left out, and
                recomputed in the backward pass: memory is linear in T. The default.
    flex        FlexAttention with a score modifier, for CUDA; on a CPU it has no backward pass.

:func:`pushdown_attention` is registered with Transformers under the name ``"pushdown"``, for
attention and for masks; the tape arrives as a keyword of the decoder's forward.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from pushdown_lm.model.configuration import Implementation
from pushdown_lm.model.tiled_attention import tiled

ATTENTION_NAME = "pushdown"
SHORT = 256
"""Up to how many positions sentences count as short."""


class TapeEmbedding(nn.Module):
    """The depth embedding of one attention layer, shared by its heads.

    It starts at zero, so that a converted model first computes what it did before, unless
    ``PushdownConfig.tape_init_std`` says otherwise. Depths above the table are clamped to its last
    row. ``num_distances > 0`` adds an embedding of the distance between a token and the top of the
    stack (not in the paper), which tells how soon a token will be attached to, where depth tells
    how closed it is. ``on_values`` adds an embedding of both to the values, too.
    """

    unrotated_query: Tensor | None
    """The query before rotation, left here by the layer's query projection (rotary models)."""

    def __init__(
        self,
        head_dim: int,
        num_depths: int,
        num_distances: int = 0,
        implementation: Implementation = "tiled",
        *,
        on_values: bool = False,
    ) -> None:
        super().__init__()
        self.sizes = [size for size in (num_depths, num_distances) if size]
        self.implementation: Implementation = implementation
        self.weight = nn.Parameter(torch.zeros(sum(self.sizes), head_dim))
        self.value_weight: nn.Parameter | None = None
        if on_values:
            self.value_weight = nn.Parameter(torch.zeros(sum(self.sizes), head_dim))
        self.unrotated_query = None

    def table(self, query: Tensor) -> Tensor:
        """The depth term of every depth: ``(B, H, T, d)`` to ``(B, H, T, D)``."""
        return query @ self.weight.to(query.dtype).T

    def extra_repr(self) -> str:
        return f"sizes={self.sizes}, head_dim={self.weight.shape[1]}"


def tape_features(
    depth: Tensor, distance: Tensor | None, num_depths: int, num_distances: int
) -> Tensor:
    """Rows of the tape embedding for each query and key: ``(F, B, T, S)``.

    Depths come first in the embedding, distances after them, each clamped to its own part.
    """
    features = [depth.clamp(max=num_depths - 1)] if num_depths else []
    if num_distances:
        if distance is None:
            raise ValueError("the tape embedding has distances, but no distance was given")
        features.append(distance.clamp(max=num_distances - 1) + num_depths)
    return torch.stack(features)


def _visible(mask: Tensor | None, num_queries: int, num_keys: int, device: Any) -> Tensor:
    """Which keys each query sees, ``(..., T, S)``; without a mask, the causal ones."""
    if mask is not None:
        return mask
    visible = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    return visible.tril(num_keys - num_queries)


def _weigh(
    scores: Tensor, value: Tensor, mask: Tensor | None, bias: Tensor | None, dropout: float
) -> tuple[Tensor, Tensor]:
    """Softmax over the visible keys; a query that sees none gets zeros."""
    scores = scores if bias is None else scores + bias
    visible = _visible(mask, scores.shape[-2], scores.shape[-1], scores.device)
    accumulate = torch.float32 if scores.dtype in (torch.float16, torch.bfloat16) else scores.dtype
    scores = scores.masked_fill(~visible, torch.finfo(scores.dtype).min)
    weights = scores.softmax(-1, dtype=accumulate).to(value.dtype)
    if mask is not None:
        weights = weights.masked_fill(~visible.any(-1, keepdim=True), 0.0)
    if dropout:
        weights = nn.functional.dropout(weights, dropout)
    return weights @ value, weights


def _mass(weights: Tensor, tape: Tensor, rows: int) -> Tensor:
    """Attention weights ``(B, H, T, S)`` added up by rows of the embedding: ``(B, H, T, D)``."""
    mass = weights.new_zeros(*weights.shape[:-1], rows)
    for feature in tape.long():
        mass = mass.scatter_add(-1, feature[:, None].expand_as(weights), weights)
    return mass


def _repeat(keys: Tensor, heads: int) -> Tensor:
    """Key heads ``(B, G, S, d)`` repeated to the H query heads that share them."""
    return keys if keys.shape[1] == heads else keys.repeat_interleave(heads // keys.shape[1], 1)


def reference(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tape: Tensor,
    weight: Tensor,
    depth_query: Tensor | None = None,
    value_weight: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    scaling: float,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The paper's appendix: every query has its own keys, of size T x S x d.

    Args:
        query, key, value: ``(B, H, T, d)``, ``(B, G, S, d)``, ``(B, G, S, d)``.
        tape: ``(F, B, T, S)``, rows of ``weight``; columns that a query does not see may hold any.
        weight: ``(D, d)``.
        depth_query: the un-rotated query of a rotary model.
        value_weight: ``(D, d)``, added to the values.
        mask: bool, broadcastable to ``(B, 1, T, S)``, true where seen; by default causal.
        bias: ``(B, H, T, S)``, added to the scaled scores; what a decoder adds for positions.

    Returns:
        The output ``(B, H, T, d)`` and the attention weights ``(B, H, T, S)``.
    """
    heads = query.shape[1]
    key, value = _repeat(key, heads), _repeat(value, heads)
    embedded = weight[tape.long()].sum(0)[:, None]  # (B, 1, T, S, d)
    if depth_query is None:
        keys = key[:, :, None] + embedded  # (B, H, T, S, d)
        scores = (query[:, :, :, None] * keys).sum(-1)
    else:
        scores = query @ key.transpose(-1, -2) + (depth_query[:, :, :, None] * embedded).sum(-1)
    output, weights = _weigh(scores * scaling, value, mask, bias, dropout)
    if value_weight is not None:
        embedded = value_weight[tape.long()].sum(0)[:, None]  # (B, 1, T, S, d)
        output = output + (weights[..., None] * embedded).sum(-2)
    return output, weights


def gather(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    tape: Tensor | None,
    table: Tensor | None,
    value_weight: Tensor | None = None,
    *,
    mask: Tensor | None = None,
    bias: Tensor | None = None,
    scaling: float,
    dropout: float = 0.0,
) -> tuple[Tensor, Tensor]:
    """The depth term looked up in the table ``(B, H, T, D)``; without a tape, plain attention."""
    heads = query.shape[1]
    scores = query @ _repeat(key, heads).transpose(-1, -2)
    if tape is not None and table is not None:
        for feature in tape.long():
            scores = scores + table.gather(-1, feature[:, None].expand_as(scores))
    output, weights = _weigh(scores * scaling, _repeat(value, heads), mask, bias, dropout)
    if tape is not None and value_weight is not None:
        output = output + _mass(weights, tape, len(value_weight)) @ value_weight
    return output, weights


def flex(
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
) -> tuple[Tensor, None]:
    """FlexAttention, the table look-up being its score modifier. Needs CUDA to be trained."""
    from torch.nn.attention.flex_attention import flex_attention

    if dropout:
        raise ValueError("flex attention has no dropout; use the tiled implementation")
    if value_weight is not None:
        raise ValueError("flex attention has no tape on values; use the tiled implementation")
    if query.device.type == "cpu":
        if torch.is_grad_enabled() and any(x.requires_grad for x in (query, key, value, table)):
            raise ValueError(
                "flex attention has no backward pass on a CPU; use the tiled implementation"
            )
        query, key, value, table = (x.detach() for x in (query, key, value, table))
        bias = None if bias is None else bias.detach()
    visible = _visible(mask, query.shape[2], key.shape[2], query.device)
    visible = visible.expand(query.shape[0], 1, *visible.shape[-2:])
    features = tape.long()

    def add_depth(score: Tensor, b: Tensor, h: Tensor, t: Tensor, s: Tensor) -> Tensor:
        for feature in features:
            score = score + table[b, h, t, feature[b, t, s]] * scaling
        if bias is not None:
            score = score + bias[b, h, t, s]
        return torch.where(visible[b, 0, t, s], score, -float("inf"))

    run = _compiled_flex() if query.is_cuda else flex_attention
    output = run(
        query,
        key,
        value,
        score_mod=add_depth,
        scale=scaling,
        enable_gqa=key.shape[1] != query.shape[1],
    )
    return output.nan_to_num(0.0), None


@cache
def _compiled_flex() -> Any:
    from torch.nn.attention.flex_attention import flex_attention

    return torch.compile(flex_attention, dynamic=True)


def pushdown_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    position_bias: Tensor | None = None,
    tape: Tensor | None = None,
    return_weights: bool = False,
    **_: Any,
) -> tuple[Tensor, Tensor | None]:
    """The attention function of Transformers' AttentionInterface.

    A layer is a pushdown layer if its attention module holds a ``tape_embedding`` and a tape is
    given; other layers are plain attention. A decoder whose scores depend on positions hands over
    ``position_bias`` ``(B, H, T, S)``, as in Transformers' own functions.
    """
    scaling = query.shape[-1] ** -0.5 if scaling is None else scaling
    options: dict[str, Any] = {
        "mask": attention_mask,
        "bias": position_bias,
        "scaling": scaling,
        "dropout": dropout,
    }
    embedding: TapeEmbedding | None = getattr(module, "tape_embedding", None)
    weights: Tensor | None = None
    depth_query = None
    if embedding is not None:
        depth_query, embedding.unrotated_query = embedding.unrotated_query, None
    if embedding is None or tape is None:
        if return_weights:
            output, weights = gather(query, key, value, None, None, **options)
        else:
            output = _plain(query, key, value, **options)
        return output.transpose(1, 2), weights

    on_values: Tensor | None = embedding.value_weight
    if on_values is not None:
        on_values = on_values.to(value.dtype)
    if embedding.implementation == "reference":
        weight = embedding.weight.to(query.dtype)
        output, weights = reference(
            query, key, value, tape, weight, depth_query, on_values, **options
        )
    else:
        table = embedding.table(query if depth_query is None else depth_query)
        arguments = (query, key, value, tape, table, on_values)
        if return_weights or embedding.implementation == "gather":
            output, weights = gather(*arguments, **options)
        elif embedding.implementation == "tiled":
            output = tiled(*arguments, **options)
        else:
            output, _unused = flex(*arguments, **options)
    return output.transpose(1, 2), weights


def _plain(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    mask: Tensor | None,
    bias: Tensor | None,
    scaling: float,
    dropout: float,
) -> Tensor:
    num_queries, num_keys = query.shape[2], key.shape[2]
    if _gains_by_products(query, key):
        return gather(
            query, key, value, None, None, mask=mask, bias=bias, scaling=scaling, dropout=dropout
        )[0]
    if bias is not None:
        visible = _visible(mask, num_queries, num_keys, query.device)
        mask = bias.masked_fill(~visible, torch.finfo(bias.dtype).min).to(query.dtype)
    causal = mask is None and num_queries == num_keys > 1
    if mask is None and not causal and num_queries > 1:
        mask = _visible(None, num_queries, num_keys, query.device)
    return nn.functional.scaled_dot_product_attention(
        query,
        key,
        value,
        attn_mask=mask,
        dropout_p=dropout,
        is_causal=causal,
        scale=scaling,
        enable_gqa=key.shape[1] != query.shape[1],
    )


def _gains_by_products(query: Tensor, key: Tensor) -> bool:
    """Whether plain products are faster than PyTorch's fused kernel.

    They are where short sentences are trained on a CPU in bfloat16 (`pushdown bench kernels`).
    """
    dtype = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else query.dtype
    return (
        query.device.type == "cpu"
        and dtype == torch.bfloat16
        and torch.is_grad_enabled()
        and max(query.shape[2], key.shape[2]) <= SHORT
    )


AttentionInterface.register(ATTENTION_NAME, pushdown_attention)
AttentionMaskInterface.register(ATTENTION_NAME, sdpa_mask)
