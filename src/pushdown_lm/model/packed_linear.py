"""Linear maps from weights that oneDNN has packed: the same float32 products, sooner.

Search spends most of its time in products of small matrices with weights that never change. On a
CPU, PyTorch gives them to MKL, which leaves half of the width of some processors unused (AVX-512 of
AMD's). oneDNN uses it, with weights laid out for it beforehand: 2.4 times as fast there, and equal
up to the order of summation.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.weak import WeakTensorKeyDictionary

TYPICAL_ROWS = 256
"""For oneDNN to choose a layout; products of other sizes are right all the same."""

_packed = WeakTensorKeyDictionary()
"""By weight: the version that was packed, and its packed form."""


def can_pack(linear: nn.Linear) -> bool:
    """Whether a linear map is in float32 on a CPU that gains by packing."""
    return (
        type(linear) is nn.Linear  # no subclass, which may compute something else
        and linear.weight.device.type == "cpu"
        and linear.weight.dtype == torch.float32
        and torch.backends.mkldnn.is_available()
        and torch.backends.cpu.get_cpu_capability() == "AVX512"
    )


@contextmanager
def packed_linears(model: nn.Module) -> Iterator[None]:
    """Within the block, the linear maps of a model compute from packed weights, without gradients.

    Packed weights are kept for the next block, and made anew if a weight has changed.
    """
    linears = (module for module in model.modules() if isinstance(module, nn.Linear))
    patched = [linear for linear in linears if can_pack(linear)]
    try:
        for linear in patched:
            linear.forward = partial(_multiply, pack(linear.weight), linear.bias)  # type: ignore[method-assign]
        yield
    finally:
        for linear in patched:
            linear.__dict__.pop("forward", None)


def pack(weight: Tensor) -> Tensor:
    """A weight as oneDNN wants it; remembered until it changes."""
    version = (weight._version, weight.data_ptr())
    known = _packed.get(weight)
    if known is None or known[0] != version:
        packed = torch.ops.mkldnn._reorder_linear_weight(weight.detach(), TYPICAL_ROWS)
        _packed[weight] = known = (version, packed)
    return known[1]


def _multiply(packed: Tensor, bias: Tensor | None, input: Tensor) -> Tensor:
    product: Tensor = torch.ops.mkldnn._linear_pointwise(input, packed, bias, "none", [], "")
    return product
