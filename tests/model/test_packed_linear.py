"""Packed weights: the same products, and nothing left behind."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from pushdown_lm.model.packed_linear import can_pack, pack, packed_linears
from pushdown_lm.search.beam import search
from tests.models import pushdown_model

needs_packing = pytest.mark.skipif(
    not can_pack(nn.Linear(2, 2)), reason="this processor gains nothing by packing"
)


@needs_packing
@pytest.mark.parametrize("shape", [(1, 24), (7, 24), (3, 1, 24), (2, 3, 5, 24)])
@pytest.mark.parametrize("bias", [True, False])
def test_products_are_those_of_the_linear_map(shape: tuple[int, ...], bias: bool) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(24, 40, bias=bias)
    input = torch.randn(shape)
    expected = linear(input)
    with torch.inference_mode(), packed_linears(linear):
        assert "forward" in vars(linear)
        torch.testing.assert_close(linear(input), expected.detach(), atol=1e-5, rtol=1e-5)
    assert "forward" not in vars(linear)


@needs_packing
def test_a_changed_weight_is_packed_anew() -> None:
    linear = nn.Linear(8, 8)
    first = pack(linear.weight)
    assert pack(linear.weight) is first
    with torch.no_grad():
        linear.weight.mul_(2)
    input = torch.randn(3, 8)
    with torch.inference_mode(), packed_linears(linear):
        torch.testing.assert_close(linear(input), input @ linear.weight.T + linear.bias)


def test_other_linear_maps_are_left_alone() -> None:
    class Other(nn.Linear):
        pass

    for module in (Other(2, 2), nn.Linear(2, 2).double(), nn.Linear(2, 2).half(), nn.Identity()):
        with packed_linears(module):
            assert "forward" not in vars(module)


def test_search_finds_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    model = pushdown_model("llama").float()
    sentences = [[3, 4, 5, 3], [4, 4, 3]]
    found = search(model, sentences, beam=50)
    copy.deepcopy(model)  # nothing of the block is left on the model
    monkeypatch.setattr("pushdown_lm.model.packed_linear.can_pack", lambda _: False)
    for ours, plain in zip(found, search(model, sentences, beam=50), strict=True):
        assert ours.log_prob == pytest.approx(plain.log_prob, abs=1e-4)
        assert ours.histories.tolist() == plain.histories.tolist()
