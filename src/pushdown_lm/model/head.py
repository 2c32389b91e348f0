"""The attachment head: which constituent of the stack the next token attaches to.

Shapes: B batch, T decisions (row k decides for token k + 1), S positions that can be attached to,
C candidate slots, d hidden width, F tape features.

The paper's equation 5 scores the next token against the last hidden state of every position:

    p(r_{k+1} = j) ~ exp(q_k . key_j),       q_k = MLP([h_k ; emb(x_{k+1})])

(or, instead of emb(x_{k+1}), the next token in context: ``PushdownConfig.head_input``),
with the depth of j in its key (the paper's appendix D), and a key of its own for shifting.
Here the softmax runs over the legal candidates only, the right ends of the constituents on the
stack and the shift, so that the joint probability of string and parse is a proper one. Scores are
scaled by d^-1/2, as in attention; the paper's are not, nor those of the variant ``published``.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from pushdown_lm.model.configuration import HeadVariant
from pushdown_lm.model.sinusoids import sinusoids
from pushdown_lm.trees.oracle import SHIFT_SLOT


class AttachmentHead(nn.Module):
    """Scores the legal attachments of each next token.

    ``normalize_next`` is for next tokens in context, which come from a residual stream.

    Variants:
        mlp            the depth embedding is added to the key, as in attention, so that its term is
                       a look-up in ``q E^T``. The shift's key is an MLP of the query after its MLP,
                       ``MLP([q_k ; x_{k+1}])``. A simpler form than the appendix's.
        appendix       as printed in the paper's appendix D. With q0_k = W_q h_k:
                       ``q_k = MLP([q0_k ; x_{k+1}])``, ``key_j = MLP([W_k h_j ; E[W]])``, and the
                       shift's key, from the query before its MLP, ``MLP([q0_k ; x_{k+1}])``.
        published      as in the authors' released model: ``appendix`` with queries and keys of
                       width 2d, ReLUs, a tape embedding of a width of its own, the shift's key from
                       the query after its MLP, and a term for the distance to the next token,
                       ``q_k . S R[j - (k + 1)]``, R[0] for the shift (:func:`sinusoids`). Unscaled.
        bilinear       equation 5 alone: ``h_j^T W q_k``, the shift scored by ``q_k^T W q_k``.
        all_positions  the parameters of ``mlp``, keys of size T x S x d, and a softmax over all
                       earlier positions, legal or not, as in the authors' code. For comparison.
    """

    def __init__(
        self,
        hidden_size: int,
        embedding_size: int,
        num_depths: int,
        num_distances: int = 0,
        variant: HeadVariant = "mlp",
        dropout: float = 0.0,
        normalize_next: bool = False,
        tape_width: int | None = None,
    ) -> None:
        super().__init__()
        self.variant = variant
        self.next_norm = nn.RMSNorm(embedding_size) if normalize_next else nn.Identity()
        published = variant == "published"
        width = 2 * hidden_size if published else hidden_size
        activation = nn.ReLU if published else nn.GELU
        self.scaling = 1.0 if published else hidden_size**-0.5
        query_size = (width if self._composes else hidden_size) + embedding_size
        self.query = _two_layers(query_size, width, width, activation, dropout)
        self.key = nn.Linear(hidden_size, width, bias=False)
        has_tape = bool(num_depths + num_distances)
        tape_width = tape_width if published and tape_width else hidden_size
        if self._composes:
            self.query_projection = nn.Linear(hidden_size, width, bias=False)
            key_size = width + has_tape * tape_width
            inner_size = key_size if published else width
            self.compose: Any = _two_layers(key_size, inner_size, width, activation, dropout)
        if published:
            self.position = nn.Linear(hidden_size, width, bias=False)
        self.tape_embedding: nn.Parameter | None = None
        if variant != "bilinear":
            self.shift_key = _two_layers(query_size, width, width, activation, dropout)
            if has_tape:
                embedding = torch.zeros(num_depths + num_distances, tape_width)
                self.tape_embedding = nn.Parameter(embedding)

    def queries(self, hidden: Tensor, next_embedding: Tensor) -> tuple[Tensor, Tensor]:
        """The query of each decision and the score of shifting: ``(B, T, d)``, ``(B, T)``."""
        next_embedding = self.next_norm(next_embedding)
        before = self.query_projection(hidden) if self._composes else hidden
        query = self.query(torch.cat([before, next_embedding], -1))
        if self.variant == "bilinear":
            shift_key = self.key(query)
        else:
            known = before if self.variant == "appendix" else query
            shift_key = self.shift_key(torch.cat([known, next_embedding], -1))
        return query, (query * shift_key).sum(-1)

    def forward(
        self,
        hidden: Tensor,
        next_embedding: Tensor,
        keys: Tensor,
        index: Tensor,
        legal: Tensor,
        features: Tensor,
        distance: Tensor | None = None,
    ) -> Tensor:
        """Scores of the candidate slots, -inf where illegal: ``(B, T, C)``.

        Args:
            hidden: ``(B, T, d)``, the decoder's last hidden states h_k.
            next_embedding: ``(B, T, e)``, the next tokens x_{k+1}, embedded or in context.
            keys: ``(B, S, d)``, :meth:`keys` of the hidden states of all positions so far.
            index: ``(B, T, C)``, the candidates among the keys; slot 0 is the shift.
            legal: ``(B, T, C)`` bool.
            features: ``(F, B, T, S)``, rows of the tape embedding for each position; a head
                without one leaves them unseen.
            distance: ``(B, T, C)``, from the candidates' positions to the next token, 0 for the
                shift; for the variant ``published``.
        """
        query, shift = self.queries(hidden, next_embedding)
        index = index[..., SHIFT_SLOT + 1 :].clamp(max=keys.shape[1] - 1)
        if self._composes:
            scores = self._composed_scores(query, keys, index, features)
        else:
            scores = (query @ keys.transpose(1, 2)).gather(-1, index)
            if self.tape_embedding is not None:
                table = query @ self.tape_embedding.to(query.dtype).T  # (B, T, D)
                for feature in features:
                    scores = scores + table.gather(-1, feature.gather(-1, index).long())
        scores = torch.cat([shift[..., None], scores], -1)
        if self.variant == "published":
            assert distance is not None
            scores = scores + self._position_scores(query, distance)
        return _at_least_float32(scores * self.scaling).masked_fill(~legal, -torch.inf)

    def keys(self, hidden: Tensor) -> Tensor:
        """What a key has of its position alone: ``(..., d)``.

        The first layer of an MLP over [key ; depth] is a sum, ``W [key ; E] = W_k key + W_e E``.
        """
        keys: Tensor = self.key(hidden)
        if self._composes:
            keys = nn.functional.linear(keys, self.compose[0].weight[:, : keys.shape[-1]])
        return keys

    @property
    def _composes(self) -> bool:
        """Whether a key is an MLP over what is known of its position and its depth."""
        return self.variant in ("appendix", "published")

    def _position_scores(self, query: Tensor, distance: Tensor) -> Tensor:
        """q . S R[-distance] ``(B, T, C)``, looked up by distance as depths are."""
        toward = query @ self.position.weight.to(query.dtype)  # (B, T, d)
        distances = torch.arange(int(distance.max()) + 1, device=query.device)
        table = toward @ sinusoids(-distances, toward.shape[-1], query.dtype).T
        return table.gather(-1, distance)

    def _composed_scores(
        self, query: Tensor, keys: Tensor, index: Tensor, features: Tensor
    ) -> Tensor:
        """q . MLP([key ; E[W]]) of the candidates ``(B, T, C - 1)``.

        The MLP's second layer, V a + b, is applied to the query instead, (q V) . a + q . b, so that
        a candidate costs no product of matrices.
        """
        first, activation, dropout, second = self.compose
        composed = keys[torch.arange(len(keys), device=keys.device)[:, None, None], index]
        composed = composed + first.bias.to(keys.dtype)
        if self.tape_embedding is not None:
            depths = nn.functional.linear(
                self.tape_embedding, first.weight[:, self.key.out_features :]
            ).to(keys.dtype)
            for feature in features:
                composed = composed + depths[feature.gather(-1, index).long()]
        activated = dropout(activation(composed))  # (B, T, C - 1, d)
        toward = query @ second.weight.to(query.dtype)  # (B, T, d)
        constant = query @ second.bias.to(query.dtype)  # (B, T)
        return (activated @ toward[..., None])[..., 0] + constant[..., None]

    def score_all_positions(
        self, hidden: Tensor, next_embedding: Tensor, keys: Tensor, features: Tensor
    ) -> Tensor:
        """Scores over every position up to k, then the shift: ``(B, T, S + 1)``.

        The authors' form, T x S x d keys and all. Column j < S stands for position j.
        """
        query, shift = self.queries(hidden, next_embedding)
        composed = keys[:, None]
        if self.tape_embedding is not None:
            composed = composed + self.tape_embedding.to(query.dtype)[features.long()].sum(0)
        scores = (query[:, :, None] * composed).sum(-1)
        earlier = torch.ones_like(scores[0], dtype=torch.bool).tril(
            scores.shape[-1] - scores.shape[-2]
        )
        scores = _at_least_float32(scores * self.scaling).masked_fill(~earlier, -torch.inf)
        return torch.cat([scores, _at_least_float32(shift * self.scaling)[..., None]], -1)


def _at_least_float32(scores: Tensor) -> Tensor:
    return scores.to(torch.promote_types(scores.dtype, torch.float32))


def _two_layers(
    input_size: int,
    inner_size: int,
    output_size: int,
    activation: type[nn.Module],
    dropout: float,
) -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(input_size, inner_size),
        activation(),
        nn.Dropout(dropout),
        nn.Linear(inner_size, output_size),
    )
