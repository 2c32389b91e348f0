"""What a Pushdown language model returns. Shapes: B batch, T positions, V vocabulary, C slots."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor
from transformers.utils.generic import ModelOutput

from pushdown_lm.data.batching import IGNORED
from pushdown_lm.model.cache import PushdownCache
from pushdown_lm.model.cross_entropy import mean_cross_entropy


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

    def add_losses(
        self,
        labels: Tensor,
        attachment_weight: float,
        *,
        num_tokens: Tensor | int | None = None,
        num_attachments: Tensor | int | None = None,
    ) -> None:
        """Fill in the losses: means over the labels ``(B, T)`` and the attachments that count, or
        sums divided by the numbers that are given."""
        assert self.logits is not None
        self.lm_loss = mean_cross_entropy(self.logits, next_tokens(labels), num_tokens)
        self.loss = self.lm_loss
        if self.attachment_logits is not None:
            assert self.attachment_targets is not None
            self.attachment_loss = mean_cross_entropy(
                self.attachment_logits, self.attachment_targets, num_attachments
            )
            self.loss = self.lm_loss + attachment_weight * self.attachment_loss


def next_tokens(labels: Tensor) -> Tensor:
    """The label that each position predicts, its successor's; none for the last. ``(B, T)``"""
    following = labels.roll(-1, -1)
    following[:, -1] = IGNORED
    return following
