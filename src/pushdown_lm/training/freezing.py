"""Training a part of a model only.

    freeze: none               every weight is trained
    freeze: all-but-pushdown   the attention of the pushdown layers and the attachment head
    freeze: lower              all but the embeddings and the layers below the first pushdown layer
    freeze: lower:15           all but the embeddings and the 15 lowest layers (also for a Base-LM)

The other way is :mod:`pushdown_lm.training.lora`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from torch import nn

from pushdown_lm.errors import PushdownError
from pushdown_lm.model.bracket_modeling import BracketForCausalLM
from pushdown_lm.model.layers import attention_modules, decoder_blocks
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.training.recipe import FREEZE_PATTERN


class FreezingError(PushdownError):
    """A part of the model that cannot be frozen or adapted."""


@dataclass(frozen=True, slots=True)
class Trainable:
    """How much of a model is trained."""

    trained: int
    total: int

    def __str__(self) -> str:
        share = self.trained / max(self.total, 1)
        return f"Training {self.trained:,} of {self.total:,} parameters ({share:.1%})."


def trainable_parameters(model: nn.Module) -> Trainable:
    """The parameters that are trained, and all; shared ones count once."""
    parameters = list(model.parameters())
    trained = sum(parameter.numel() for parameter in parameters if parameter.requires_grad)
    return Trainable(trained, sum(parameter.numel() for parameter in parameters))


def freeze(model: PushdownForCausalLM | BracketForCausalLM, choice: str) -> None:
    """Leave out of training what ``choice`` says; tied embeddings stay together."""
    first_trained = num_frozen_layers(model, choice)
    if choice == "all-but-pushdown":
        attention = attention_modules(model.decoder)
        layers = model.config.pushdown_layers or []
        model.requires_grad_(False)
        train_modules([*(attention[layer] for layer in layers), *added_outside_decoder(model)])
    elif choice != "none":
        for module in model.decoder.modules():
            if isinstance(module, nn.Embedding):
                module.requires_grad_(False)
        for block in decoder_blocks(model.decoder)[:first_trained]:
            block.requires_grad_(False)


def num_frozen_layers(model: PushdownForCausalLM | BracketForCausalLM, choice: str) -> int:
    """How many of the lowest layers ``choice`` freezes as a whole."""
    if re.fullmatch(FREEZE_PATTERN, choice) is None:
        raise FreezingError(
            f"freeze: expected none, all-but-pushdown, lower or lower:N, got {choice!r}"
        )
    layers = model.config.pushdown_layers or []
    if not layers and choice in ("all-but-pushdown", "lower"):
        raise FreezingError(
            f"freeze: {choice} goes by the pushdown layers, of which the model has none; "
            "lower:N freezes the N lowest layers"
        )
    if not choice.startswith("lower"):
        return 0
    count = layers[0] if choice == "lower" else int(choice.split(":")[1])
    if count > (total := len(decoder_blocks(model.decoder))):
        raise FreezingError(f"freeze: {choice} of a decoder with {total} layers")
    return count


def added_outside_decoder(model: PushdownForCausalLM | BracketForCausalLM) -> list[nn.Module]:
    """The attachment head, and the head of a classifier."""
    return [module for name, module in model.named_children() if name != "decoder"]


def train_modules(modules: Iterable[nn.Module]) -> None:
    for module in modules:
        module.requires_grad_(True)
