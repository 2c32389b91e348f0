"""Forbidden tokens: values and gradients against PyTorch's own fill."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pushdown_lm.model.forbidden import ForbiddenTokens

FORBIDDEN = ForbiddenTokens([0, 3, None, 2], end=2)
INDEX = torch.tensor([0, 3])


def gradient(mask: Callable[[Tensor], Tensor], loss: Callable[[Tensor], Tensor]) -> Tensor:
    weight = torch.randn(5, 6, generator=torch.Generator().manual_seed(0)).requires_grad_()
    hidden = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(1))
    masked = mask(hidden @ weight)
    assert torch.equal(masked.isneginf().any(0).any(0), torch.isin(torch.arange(6), INDEX))
    loss(masked).backward()
    assert weight.grad is not None
    return weight.grad


LOSSES: dict[str, Callable[[Tensor], Tensor]] = {
    "zero there already": lambda logits: logits.log_softmax(-1)[..., 1].square().sum(),
    "none at all": lambda logits: logits.log_softmax(-1)[..., 1].sum() * 0,
    "not zero there": lambda logits: logits.nan_to_num(neginf=-1.0).square().sum() + logits.sum(),
}


@pytest.mark.parametrize("loss", LOSSES.values(), ids=LOSSES)
def test_gradient_is_that_of_a_fill(loss: Callable[[Tensor], Tensor]) -> None:
    found = gradient(FORBIDDEN.mask, loss)
    expected = gradient(lambda logits: logits.index_fill(-1, INDEX, -torch.inf), loss)
    torch.testing.assert_close(found, expected)
    assert found[:, INDEX].eq(0).all()


def test_logits_are_changed_in_place() -> None:
    logits = torch.zeros(2, 6)
    assert FORBIDDEN.mask(logits) is logits
    assert logits[:, [0, 3]].isneginf().all()
    assert ForbiddenTokens([], end=None).mask(logits) is logits


def test_the_gradient_is_not_copied_after_a_cross_entropy() -> None:
    logits = torch.randn(3, 6, requires_grad=True)
    seen = list[Tensor]()
    masked = FORBIDDEN.mask(logits * 1)
    masked.register_hook(seen.append)
    copied = list[Tensor]()
    masked.grad_fn.register_hook(lambda inputs, _: copied.append(inputs[0]))
    masked.log_softmax(-1)[:, 1].sum().backward()
    assert seen[0].data_ptr() == copied[0].data_ptr()
