"""Training a part of a model only: frozen weights, or low-rank adapters (LoRA) through ``peft``.

    freeze: none               every weight is trained
    freeze: all-but-pushdown   the attention of the pushdown layers and the attachment head
    freeze: lower              all but the embeddings and the layers below the first pushdown layer
    freeze: lower:15           all but the embeddings and the 15 lowest layers (also for a Base-LM)

With LoRA the decoder's own weights stay as they are: adapters beside the linear maps of its
attention are trained, and with them what a Pushdown model adds to the decoder, its depth
embeddings and its head. :func:`merge_lora` adds the adapters to the weights, which leaves an
ordinary model.
"""

from __future__ import annotations

import re
import resource
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import torch
from torch import nn
from transformers.pytorch_utils import Conv1D

from pushdown_lm.attention import TapeEmbedding
from pushdown_lm.errors import PushdownError
from pushdown_lm.modeling import PushdownForCausalLM, attention_modules, tap_query
from pushdown_lm.recipe import FREEZE_PATTERN, LoraSection

ADAPTER = "lora"


class AdaptationError(PushdownError):
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


def peak_memory_megabytes(device: torch.device) -> float:
    """The most memory held so far: of the accelerator, or of the process if there is none."""
    if device.type != "cpu":
        return float(torch.accelerator.max_memory_allocated(device)) / 2**20
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def choose_trainable(
    model: PushdownForCausalLM, frozen: str, lora: LoraSection | None = None
) -> Trainable:
    """Freeze or adapt a model as a recipe says, before its optimizer is made."""
    if lora is not None:
        add_lora(model, **lora.model_dump())
    else:
        freeze(model, frozen)
    return trainable_parameters(model)


# ------------------------------------------------------------------ frozen weights


def freeze(model: PushdownForCausalLM, choice: str) -> None:
    """Leave out of training what ``choice`` says; tied embeddings stay together."""
    if re.fullmatch(FREEZE_PATTERN, choice) is None:
        raise AdaptationError(
            f"freeze: expected none, all-but-pushdown, lower or lower:N, got {choice!r}"
        )
    if choice == "none":
        return
    layers = model.config.pushdown_layers or []
    if not layers and choice in ("all-but-pushdown", "lower"):
        raise AdaptationError(
            f"freeze: {choice} goes by the pushdown layers, of which the model has none; "
            "lower:N freezes the N lowest layers"
        )
    if choice == "all-but-pushdown":
        attention = attention_modules(model.decoder)
        model.requires_grad_(False)
        _train([*(attention[layer] for layer in layers), *_added_outside_decoder(model)])
        return
    first_trained = layers[0] if choice == "lower" else int(choice.split(":")[1])
    blocks = decoder_layers(model)
    if first_trained > len(blocks):
        raise AdaptationError(f"freeze: {choice} of a decoder with {len(blocks)} layers")
    for module in model.decoder.modules():
        if isinstance(module, nn.Embedding):
            module.requires_grad_(False)
    for block in blocks[:first_trained]:
        block.requires_grad_(False)


def decoder_layers(model: PushdownForCausalLM) -> list[nn.Module]:
    """The transformer layers of a decoder, from the lowest up."""
    count = model.config.decoder.num_hidden_layers
    for module in model.decoder.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    raise AdaptationError(f"freeze: {type(model.decoder).__name__} keeps its layers in no list")


def _added_outside_decoder(model: PushdownForCausalLM) -> list[nn.Module]:
    """The attachment head, and the head of a classifier."""
    return [module for name, module in model.named_children() if name != "decoder"]


def _train(modules: Iterable[nn.Module]) -> None:
    for module in modules:
        module.requires_grad_(True)


# ------------------------------------------------------------------ low-rank adapters


def add_lora(
    model: PushdownForCausalLM,
    *,
    rank: int = 8,
    alpha: float | None = None,
    dropout: float = 0.0,
    targets: Iterable[str] | None = None,
) -> None:
    """Put low-rank adapters, ``W + (alpha / rank) B A``, beside linear maps of the decoder.

    Args:
        rank: rows of A, columns of B.
        alpha: 2 x rank if left out.
        dropout: on the input of the adapters.
        targets: names of the adapted modules, such as ``q_proj``; the linear maps of the attention
            if left out.
    """
    if find_spec("peft") is None:
        raise AdaptationError("lora: peft is not installed: pip install 'pushdown-lm[peft]'")
    from peft import LoraConfig, inject_adapter_in_model

    attention = attention_modules(model.decoder)
    names = set(targets or (name for layer in attention.values() for name in _linear_maps(layer)))
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank if alpha is None else alpha,
        lora_dropout=dropout,
        target_modules=sorted(names),
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.decoder.modules()),
    )
    try:
        inject_adapter_in_model(config, model.decoder, adapter_name=ADAPTER)
    except ValueError as error:
        detail = str(error).strip().splitlines()[0]
        raise AdaptationError(f"lora.targets: {sorted(names)}: {detail}") from error
    for layer in model.config.pushdown_layers or []:
        tap_query(attention[layer])  # the query that the adapters have changed
    added = [module for module in model.modules() if isinstance(module, TapeEmbedding)]
    _train([*added, *_added_outside_decoder(model)])


def merge_lora(model: PushdownForCausalLM) -> None:
    """Add the adapters to the weights and take them out, if there are any."""
    for parent in list(model.decoder.modules()):
        for name, module in list(parent.named_children()):
            if hasattr(module, "lora_A"):
                adapted: Any = module
                adapted.merge(safe_merge=True, adapter_names=[ADAPTER])
                setattr(parent, name, adapted.base_layer)


def _linear_maps(attention: nn.Module) -> list[str]:
    return [
        name
        for name, module in attention.named_children()
        if isinstance(module, nn.Linear | Conv1D)
    ]
