"""Low-rank adapters (LoRA) through ``peft``.

The decoder's own weights stay as they are: adapters beside the linear maps of its attention are
trained, and with them what a Pushdown model adds to the decoder, its depth embeddings and its head.
:func:`merge_lora` adds the adapters to the weights, which leaves an ordinary model.
"""

from __future__ import annotations

from collections.abc import Iterable
from importlib.util import find_spec
from typing import Any

from torch import nn
from transformers.pytorch_utils import Conv1D

from pushdown_lm.errors import first_line
from pushdown_lm.model.attention import TapeEmbedding
from pushdown_lm.model.bracket_modeling import BracketForCausalLM
from pushdown_lm.model.layers import attention_modules, tap_query
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.training.freezing import (
    FreezingError,
    Trainable,
    added_outside_decoder,
    freeze,
    num_frozen_layers,
    train_modules,
    trainable_parameters,
)
from pushdown_lm.training.recipe import LoraSection

ADAPTER = "lora"


def choose_trainable(
    model: PushdownForCausalLM | BracketForCausalLM, frozen: str, lora: LoraSection | None = None
) -> Trainable:
    """Freeze or adapt a model as a recipe says, before its optimizer is made."""
    if lora is not None:
        add_lora(model, **lora.model_dump(), above=num_frozen_layers(model, frozen))
    else:
        freeze(model, frozen)
    return trainable_parameters(model)


def add_lora(
    model: PushdownForCausalLM | BracketForCausalLM,
    *,
    rank: int = 8,
    alpha: float | None = None,
    dropout: float = 0.0,
    targets: Iterable[str] | None = None,
    above: int = 0,
) -> None:
    """Put low-rank adapters, ``W + (alpha / rank) B A``, beside linear maps of the decoder.

    Args:
        rank: rows of A, columns of B.
        alpha: 2 x rank if left out.
        dropout: on the input of the adapters.
        targets: names of the adapted modules, such as ``q_proj``; the linear maps of the attention
            if left out.
        above: how many of the lowest layers go without adapters.
    """
    if find_spec("peft") is None:
        raise FreezingError("lora: peft is not installed: pip install 'pushdown-lm[peft]'")
    from peft import LoraConfig, inject_adapter_in_model

    attention = attention_modules(model.decoder)
    names = set(targets or (name for layer in attention.values() for name in _linear_maps(layer)))
    config = LoraConfig(
        r=rank,
        lora_alpha=2 * rank if alpha is None else alpha,
        lora_dropout=dropout,
        target_modules=sorted(names),
        layers_to_transform=sorted(attention)[above:] if above else None,
        fan_in_fan_out=any(isinstance(module, Conv1D) for module in model.decoder.modules()),
    )
    try:
        inject_adapter_in_model(config, model.decoder, adapter_name=ADAPTER)
    except ValueError as error:
        raise FreezingError(f"lora.targets: {sorted(names)}: {first_line(error)}") from error
    for layer in model.config.pushdown_layers or []:
        tap_query(attention[layer])  # the query that the adapters have changed
    added = [module for module in model.modules() if isinstance(module, TapeEmbedding)]
    train_modules([*added, *added_outside_decoder(model)])


def merge_lora(model: PushdownForCausalLM | BracketForCausalLM) -> None:
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
