"""What a Pushdown language model returns. Shapes: B batch, T positions, V vocabulary, C slots."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from transformers.utils.generic import ModelOutput

from pushdown_lm.model.cache import PushdownCache


@dataclass
class PushdownOutput(ModelOutput):
    """What :meth:`PushdownForCausalLM.forward` returns."""

    loss: Tensor | None = None
    """``lm_loss + attachment_loss_weight * attachment_loss``."""
    lm_loss: Tensor | None = None
    """Mean cross-entropy of the tokens, EOS included, in nats."""
    attachment_loss: Tensor | None = None
    """Mean cross-entropy of the attachments that the head decides, in nats."""
    logits: Tensor | None = None
    """Of the next token, -inf for :class:`~pushdown_lm.model.forbidden.ForbiddenTokens`.
    ``(B, T, V)``"""
    attachment_logits: Tensor | None = None
    """Of the next token's attachment, by candidate slot, -inf where illegal. ``(B, T, C)``"""
    attachment_targets: Tensor | None = None
    """The slot that the next token takes, -100 where there is no choice. ``(B, T)``"""
    past_key_values: PushdownCache | None = None
    hidden_states: tuple[Tensor, ...] | None = None
    attentions: tuple[Tensor, ...] | None = None
