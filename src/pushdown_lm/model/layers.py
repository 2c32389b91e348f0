"""The layers of a decoder: finding them, choosing some, and reaching into their attention."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

from torch import Tensor, nn

from pushdown_lm.errors import ConfigError
from pushdown_lm.model.attention import TapeEmbedding


def parse_layers(text: str, count: int) -> list[int]:
    """The indices of layers, from 0, of a decoder with ``count``.

    ``all``, ``none``, ``first:N``, ``last:N``, or a list of indices and of ranges that include
    both ends:

    >>> parse_layers("last:2", 6), parse_layers("0,3-5", 6)
    ([4, 5], [0, 3, 4, 5])
    """
    if text in ("all", "none"):
        return list(range(count)) if text == "all" else []
    if match := re.fullmatch(r"(first|last):(\d+)", text):
        number = int(match[2])
        if not 1 <= number <= count:
            raise ConfigError(f"layers: expected 1 to {count} of {count} layers, got {text!r}")
        return list(range(count)[:number] if match[1] == "first" else range(count)[-number:])
    layers: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d+)(?:-(\d+))?", part.strip())
        if match is None:
            raise ConfigError(
                "layers: expected all, none, first:N, last:N, or indices such as 0,3-5, "
                f"got {text!r}"
            )
        first, last = int(match[1]), int(match[2] or match[1])
        if not first <= last < count:
            raise ConfigError(
                f"layers: the decoder has layers 0 to {count - 1}, got {part.strip()!r}"
            )
        layers.update(range(first, last + 1))
    return sorted(layers)


def attention_modules(decoder: nn.Module) -> dict[int, Any]:
    """The self-attention module of each layer of a decoder, by layer index."""
    modules: Iterable[Any] = decoder.modules()
    return {
        module.layer_idx: module
        for module in modules
        if isinstance(getattr(module, "layer_idx", None), int)
        and getattr(module, "is_causal", False)
    }


def decoder_blocks(decoder: nn.Module) -> list[nn.Module]:
    """The decoder's layers in order: the members of module lists that hold its attention."""
    attention = set(attention_modules(decoder).values())
    blocks = [
        member
        for module in decoder.modules()
        if isinstance(module, nn.ModuleList)
        for member in module
        if attention.intersection(member.modules())
    ]
    assert len(blocks) == len(attention), f"{type(decoder).__name__} nests its layers"
    return blocks


class _Reached(Exception):
    """The forward pass has come to the layer that was waited for."""


def lower_output(decoder: nn.Module, count: int, **inputs: Any) -> Tensor:
    """Hidden states ``(B, T, d)`` after the ``count`` lowest layers, by a pass that stops there."""
    outputs: list[Tensor] = []

    def keep_and_stop(_module: nn.Module, _inputs: Any, output: Any) -> None:
        outputs.append(output[0] if isinstance(output, tuple) else output)
        raise _Reached

    hook = decoder_blocks(decoder)[count - 1].register_forward_hook(keep_and_stop)
    try:
        decoder(**inputs)
    except _Reached:
        pass
    finally:
        hook.remove()
    return outputs[0]


@contextmanager
def replaced_layers(
    decoder: nn.Module, count: int, replacement: Callable[..., Tensor]
) -> Iterator[None]:
    """Until the block is left, the ``count`` lowest layers return ``replacement()``.

    With what :func:`lower_output` gave, the decoder computes the same without running them.
    """
    lower = decoder_blocks(decoder)[:count]
    try:
        for block in lower:
            block.forward = replacement
        yield
    finally:
        for block in lower:
            del block.forward


def tap_query(module: Any) -> None:
    """Keep the query of a rotary layer before it is rotated, for the depth term.

    The layer's query norm, or else its query projection, leaves its output with the tape
    embedding. A layer that takes no rotary positions needs none of this.
    """
    if "position_embeddings" not in inspect.signature(module.forward).parameters:
        return
    projection = getattr(module, "q_norm", None) or getattr(module, "q_proj", None)
    if projection is None:
        raise ConfigError(
            f"{type(module).__name__} rotates its queries but has no q_proj or q_norm whose output "
            "is the query before rotation, which the depth term needs"
        )
    projection.register_forward_hook(partial(_leave_query, module.tape_embedding))


def _leave_query(
    embedding: TapeEmbedding, _module: nn.Module, _inputs: Any, output: Tensor
) -> None:
    batch, length = output.shape[:2]
    head_dim = embedding.weight.shape[1]
    embedding.unrotated_query = output.reshape(batch, length, -1, head_dim).transpose(1, 2)
