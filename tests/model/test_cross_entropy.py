"""Cross-entropy in pieces against torch's own, values and gradients."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from pushdown_lm.data.batching import IGNORED
from pushdown_lm.model import cross_entropy
from pushdown_lm.model.cross_entropy import (
    cross_entropies,
    mean_cross_entropy,
    reference_cross_entropies,
)


def draw(seed: int, rows: int, vocabulary: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Logits, some impossible, and targets, some ignored."""
    generator = torch.Generator().manual_seed(seed)
    logits = 4 * torch.randn(rows, vocabulary, generator=generator)
    targets = torch.randint(vocabulary, (rows,), generator=generator)
    impossible = torch.rand(logits.shape, generator=generator) < 0.3
    impossible.scatter_(1, targets[:, None], False)
    logits = logits.masked_fill(impossible, -torch.inf)
    targets[torch.rand(rows, generator=generator) < 0.3] = IGNORED
    return logits.to(dtype), targets


def value_and_gradient(function, logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[no-untyped-def]
    logits = logits.clone().requires_grad_()
    value = function(logits, targets)
    weights = torch.arange(1, len(value) + 1, dtype=value.dtype)  # each loss has its own
    (value * weights).sum().backward()
    assert logits.grad is not None
    return value.detach(), logits.grad


@settings(deadline=None, max_examples=60)
@given(
    st.integers(0, 1000),
    st.integers(1, 40),
    st.integers(1, 30),
    st.sampled_from([torch.float64, torch.float32, torch.bfloat16]),
)
def test_equals_the_reference(seed: int, rows: int, vocabulary: int, dtype: torch.dtype) -> None:
    logits, targets = draw(seed, rows, vocabulary, dtype)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cross_entropy, "CELLS", 50)  # several pieces, the last one smaller
        value, gradient = value_and_gradient(cross_entropies, logits, targets)
    expected, expected_gradient = value_and_gradient(reference_cross_entropies, logits, targets)
    assert value.dtype == expected.dtype
    assert gradient.dtype == dtype
    torch.testing.assert_close(value, expected, atol=1e-4, rtol=1e-5)
    torch.testing.assert_close(gradient, expected_gradient)


def test_gradient_by_finite_differences() -> None:
    logits, targets = draw(5, 6, 7, torch.float64)
    logits = logits.nan_to_num(neginf=-3.0).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: cross_entropies(x, targets), (logits,))


def test_an_ignored_row_without_any_possible_entry_has_no_gradient() -> None:
    logits = torch.full((2, 3), -torch.inf)
    logits[1] = torch.tensor([0.0, 1.0, 2.0])
    value, gradient = value_and_gradient(cross_entropies, logits, torch.tensor([IGNORED, IGNORED]))
    assert torch.equal(value, torch.zeros(2))
    assert torch.equal(gradient, torch.zeros(2, 3))


def test_mean_is_over_targets_that_count_or_divides_by_the_given_number() -> None:
    logits = torch.zeros(1, 3, 4)
    targets = torch.tensor([[1, 2, IGNORED]])
    torch.testing.assert_close(mean_cross_entropy(logits, targets, None), torch.tensor(4.0).log())
    torch.testing.assert_close(mean_cross_entropy(logits, targets, 4), torch.tensor(4.0).log() / 2)
    assert mean_cross_entropy(logits, targets.fill_(IGNORED), None) == 0


def test_a_longer_vocabulary_costs_no_float32_copy() -> None:
    """What backward keeps are the logits themselves and a number per row."""
    logits, targets = draw(0, 8, 500, torch.bfloat16)
    kept = list[Tensor]()
    logits.requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(lambda x: kept.append(x) or x, lambda x: x):
        cross_entropies(logits, targets)
    assert sum(tensor.nbytes for tensor in kept) <= logits.nbytes + 8 * 8 + 8 * 4
