"""A Pushdown model with a score on top: classes, or one number (regression).

Shapes: B texts, T positions, d hidden width, K scores.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForSequenceClassification, PreTrainedModel
from transformers.utils.generic import ModelOutput

from pushdown_lm.model.configuration import PushdownConfig
from pushdown_lm.model.modeling import PushdownForCausalLM


@dataclass
class PushdownClassifierOutput(ModelOutput):
    """What :meth:`PushdownForSequenceClassification.forward` returns."""

    loss: Tensor | None = None
    """Squared error if there is one score, cross-entropy otherwise."""
    logits: Tensor | None = None
    """The scores. ``(B, K)``"""
    lm_logits: Tensor | None = None
    """Of the next token, for training the language model jointly. ``(B, T, V)``"""
    hidden_states: tuple[Tensor, ...] | None = None


class PushdownForSequenceClassification(PushdownForCausalLM):
    """Scores a text by a linear map of the final hidden state of its last token, EOS.

    It remains the language model that it was made from, whose folders it loads; with
    ``num_labels=1``, a regression, it is what the paper fine-tunes on STS-B (section 4.3).
    """

    def __init__(self, config: PushdownConfig, decoder: PreTrainedModel | None = None) -> None:
        super().__init__(config, decoder)
        self.score = nn.Linear(config.decoder.hidden_size, config.num_labels or 1)
        self.post_init()

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        attachments: Tensor | None = None,
        labels: Tensor | None = None,
        attention_mask: Tensor | None = None,
        output_hidden_states: bool = False,
        **kwargs: Any,
    ) -> PushdownClassifierOutput:
        """Scores of whole texts.

        Args:
            input_ids: ``(B, T)``, padded on the right.
            attachments: ``(B, T)``, the parses. Only a model without pushdown layers, whose hidden
                states depend on no parse, does without.
            labels: ``(B,)``, numbers for a regression and classes otherwise.
            attention_mask: ``(B, T)``, zero for padding.
        """
        length = input_ids.shape[1]
        if attachments is None:
            if self.config.pushdown_layers:
                raise ValueError(
                    "attachments: expected the parses of the texts, which the pushdown layers see; "
                    "pushdown_lm.search.parse_cache finds them"
                )
            attachments = torch.arange(length, device=input_ids.device).expand_as(input_ids)
        output = super().forward(
            input_ids,
            attachments,
            attention_mask=attention_mask,
            output_hidden_states=True,
            **kwargs,
        )
        assert output.hidden_states is not None
        last = torch.full_like(input_ids[:, 0], length - 1)
        if attention_mask is not None:
            last = attention_mask.sum(-1) - 1
        row = torch.arange(len(input_ids), device=input_ids.device)
        scores = self.score(output.hidden_states[-1][row, last])  # (B, K)
        return PushdownClassifierOutput(
            loss=None if labels is None else _loss(scores, labels),
            logits=scores,
            lm_logits=output.logits,
            hidden_states=output.hidden_states if output_hidden_states else None,
        )


def _loss(scores: Tensor, labels: Tensor) -> Tensor:
    if scores.shape[1] == 1:
        return nn.functional.mse_loss(scores[:, 0].float(), labels.float())
    return nn.functional.cross_entropy(scores.float(), labels)


AutoModelForSequenceClassification.register(PushdownConfig, PushdownForSequenceClassification)
