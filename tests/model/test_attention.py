"""All implementations of pushdown attention agree: outputs and every gradient, in float64."""

from __future__ import annotations

import warnings
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface

from pushdown_lm.model import attention, tiled_attention
from pushdown_lm.model.attention import (
    ATTENTION_NAME,
    TapeEmbedding,
    flex,
    gather,
    pushdown_attention,
    reference,
    tape_features,
)
from pushdown_lm.model.tiled_attention import tiled

SCALING = 0.3


@dataclass
class Inputs:
    query: Tensor
    key: Tensor
    value: Tensor
    weight: Tensor
    tape: Tensor
    mask: Tensor | None
    depth_query: Tensor | None
    bias: Tensor | None = None
    value_weight: Tensor | None = None

    @property
    def leaves(self) -> list[Tensor]:
        given = (self.query, self.key, self.value, self.weight)
        optional = (self.depth_query, self.bias, self.value_weight)
        return [*given, *(leaf for leaf in optional if leaf is not None)]

    def run(self, name: str) -> Tensor:
        if name == "reference":
            output, _ = reference(
                self.query,
                self.key,
                self.value,
                self.tape,
                self.weight,
                self.depth_query,
                self.value_weight,
                mask=self.mask,
                bias=self.bias,
                scaling=SCALING,
            )
            return output
        table = (self.query if self.depth_query is None else self.depth_query) @ self.weight.T
        arguments = (self.query, self.key, self.value, self.tape, table, self.value_weight)
        if name == "tiled":
            return tiled(*arguments, mask=self.mask, bias=self.bias, scaling=SCALING)
        function = {"gather": gather, "flex": flex}[name]
        return function(*arguments, mask=self.mask, bias=self.bias, scaling=SCALING)[0]

    def gradients(self, name: str) -> tuple[Tensor, ...]:
        output = self.run(name)
        direction = torch.arange(output.numel()).double().sin().to(output.dtype).view_as(output)
        return (output, *torch.autograd.grad((output * direction).sum(), self.leaves))


@st.composite
def inputs(draw: st.DrawFn) -> Inputs:
    batch, groups, repeats = draw(st.tuples(*[st.integers(1, 3)] * 3))
    queries, width, depths, features = draw(
        st.tuples(st.integers(1, 20), st.integers(1, 5), st.integers(1, 6), st.integers(1, 2))
    )
    keys = queries + draw(st.integers(0, 7))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 2**20)))

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, dtype=torch.float64, generator=generator).requires_grad_()

    mask = None
    if draw(st.booleans()):  # left padding, and queries that see nothing at all
        mask = torch.rand(batch, 1, queries, keys, generator=generator) > 0.3
        mask &= torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    return Inputs(
        query=normal(batch, groups * repeats, queries, width),
        key=normal(batch, groups, keys, width),
        value=normal(batch, groups, keys, width),
        weight=normal(depths, width),
        tape=torch.randint(depths, (features, batch, queries, keys), generator=generator).short(),
        mask=mask,
        depth_query=normal(batch, groups * repeats, queries, width)
        if draw(st.booleans())
        else None,
        bias=normal(batch, groups * repeats, queries, keys) if draw(st.booleans()) else None,
        value_weight=normal(depths, width) if draw(st.booleans()) else None,
    )


@given(inputs(), st.sampled_from([1, 3, 128]), st.sampled_from([1, 64, 1 << 20]))
def test_gradients_agree(case: Inputs, block: int, workspace: int) -> None:
    before = tiled_attention.BLOCK, tiled_attention.WORKSPACE
    tiled_attention.BLOCK, tiled_attention.WORKSPACE = block, workspace
    try:
        expected = case.gradients("reference")
        for name in ("gather", "tiled"):
            for wanted, got in zip(expected, case.gradients(name), strict=True):
                torch.testing.assert_close(got, wanted, rtol=1e-9, atol=1e-9)
    finally:
        tiled_attention.BLOCK, tiled_attention.WORKSPACE = before


@given(inputs())
@settings(max_examples=15)
def test_flex_agrees_without_gradients(case: Inputs) -> None:
    case.value_weight = None
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.testing.assert_close(case.run("flex"), case.run("reference"), rtol=1e-5, atol=1e-6)


def example(dtype: torch.dtype = torch.float64, queries: int = 6, keys: int = 6) -> Inputs:
    generator = torch.Generator().manual_seed(1)
    shapes = [(2, 4, queries, 8), (2, 2, keys, 8), (2, 2, keys, 8), (5, 8)]
    tensors = [
        torch.randn(*shape, generator=generator).to(dtype).requires_grad_() for shape in shapes
    ]
    tape = torch.randint(5, (1, 2, queries, keys), generator=generator)
    return Inputs(*tensors, tape=tape, mask=None, depth_query=None)


def test_flex_refuses_what_it_cannot_do() -> None:
    case = example()
    with pytest.raises(ValueError, match="no backward pass on a CPU"):
        case.run("flex")
    table = case.query @ case.weight.T
    with pytest.raises(ValueError, match="no dropout"):
        flex(case.query, case.key, case.value, case.tape, table, scaling=1.0, dropout=0.1)
    with pytest.raises(ValueError, match="no tape on values"):
        flex(case.query, case.key, case.value, case.tape, table, case.weight, scaling=1.0)


def test_low_precision_stays_close() -> None:
    exact, rough = example(torch.float32), example(torch.bfloat16)
    for wanted, got in zip(exact.gradients("tiled"), rough.gradients("tiled"), strict=True):
        assert got.dtype == torch.bfloat16
        torch.testing.assert_close(got.float(), wanted, rtol=0.1, atol=0.1)


def test_dropout_gradients() -> None:
    """Numerical gradients with the dropout mask held fixed by its seed."""
    case = example(queries=4, keys=5)
    table = torch.randn(2, 4, 4, 5, dtype=torch.float64, requires_grad=True)
    value_weight = torch.randn(5, 8, dtype=torch.float64, requires_grad=True)

    def output(*leaves: Tensor) -> Tensor:
        query, key, value, table, value_weight = leaves
        arguments = (query, key, value, case.tape, table, value_weight)
        torch.manual_seed(3)
        return tiled(*arguments, scaling=SCALING, dropout=0.4)

    leaves = (case.query, case.key, case.value, table, value_weight)
    assert torch.autograd.gradcheck(output, leaves)


def test_dropout_keeps_the_mean_and_drops_weights() -> None:
    torch.manual_seed(0)
    query, key = torch.zeros(1, 1, 1, 4), torch.zeros(1, 1, 10, 4)
    value = torch.eye(10)[None, None]
    tape, table = torch.zeros(1, 1, 1, 10).long(), torch.zeros(1, 1, 1, 1)
    draws = torch.stack(
        [
            tiled(query, key, value, tape, table, scaling=1.0, dropout=0.25)[0, 0, 0]
            for _ in range(4000)
        ]
    )
    torch.testing.assert_close(draws.mean(0), torch.full((10,), 0.1), rtol=0, atol=0.01)
    assert draws.unique().tolist() == pytest.approx([0.0, 0.1 / 0.75])


def test_tiled_is_reproducible_from_the_seed() -> None:
    case = example()
    table = case.query @ case.weight.T
    outputs = []
    for seed in (1, 1, 2):
        torch.manual_seed(seed)
        arguments = (case.query, case.key, case.value, case.tape, table)
        outputs.append(tiled(*arguments, scaling=SCALING, dropout=0.5))
    assert torch.equal(outputs[0], outputs[1])
    assert not torch.equal(outputs[0], outputs[2])


def test_no_square_tensor_outlives_the_forward_pass() -> None:
    """What autograd keeps grows with T, not with T x T (the tape, an input, apart)."""
    saved: list[int] = []

    def pack(tensor: Tensor) -> Tensor:
        saved.append(tensor.numel())
        return tensor

    length = 300
    query = torch.randn(1, 1, length, 4, requires_grad=True)
    tape = torch.zeros(1, 1, length, length, dtype=torch.int16)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        tiled(query, query, query, tape, query @ torch.randn(4, 3), scaling=1.0)
    assert sorted(saved)[-1] == length * length == tape.numel()
    assert sum(saved) - tape.numel() < 30 * length


@pytest.mark.parametrize("has_mass", [False, True])
@pytest.mark.parametrize("biased", [False, True])
def test_custom_operators_are_well_formed(biased: bool, has_mass: bool) -> None:
    case = example(queries=3, keys=3)
    table = (case.query @ case.weight.T).detach().requires_grad_()
    bias = torch.randn(2, 4, 3, 3, dtype=torch.float64, requires_grad=True) if biased else None
    tensors = (case.query, case.key, case.value, case.tape, table, None, bias)
    arguments = (*tensors, SCALING, 0.0, 0, has_mass)
    torch.library.opcheck(tiled_attention._forward, arguments)


def test_registered_with_transformers() -> None:
    assert AttentionInterface()[ATTENTION_NAME] is pushdown_attention
    assert ATTENTION_NAME in AttentionMaskInterface()


def test_decoding_chunks_equal_the_whole() -> None:
    """Queries one at a time and in chunks, against all keys so far."""
    case = example()
    whole = case.run("reference")
    for start, stop in ((0, 1), (1, 2), (2, 5), (5, 6)):
        part = Inputs(
            query=case.query[:, :, start:stop],
            key=case.key[:, :, :stop],
            value=case.value[:, :, :stop],
            weight=case.weight,
            tape=case.tape[:, :, start:stop, :stop],
            mask=None,
            depth_query=None,
        )
        for name in ("reference", "gather", "tiled"):
            torch.testing.assert_close(part.run(name), whole[:, :, start:stop])


@pytest.mark.parametrize("on_values", [False, True])
@pytest.mark.parametrize("implementation", ["reference", "gather", "tiled"])
def test_interface_function(implementation: str, on_values: bool) -> None:
    case = example()
    module = torch.nn.Module()
    embedding = TapeEmbedding(
        8,
        num_depths=5,
        implementation=implementation,  # type: ignore[arg-type]
        on_values=on_values,
    )
    module.tape_embedding = embedding.double()
    with torch.no_grad():
        embedding.weight.copy_(case.weight)
        if embedding.value_weight is not None:
            case.value_weight = case.weight.cos()
            embedding.value_weight.copy_(case.value_weight)
    output, _ = pushdown_attention(
        module, case.query, case.key, case.value, None, scaling=SCALING, tape=case.tape
    )
    torch.testing.assert_close(output, case.run("reference").transpose(1, 2))
    with_weights, weights = pushdown_attention(
        module,
        case.query,
        case.key,
        case.value,
        None,
        scaling=SCALING,
        tape=case.tape,
        return_weights=True,
    )
    torch.testing.assert_close(with_weights, output)
    assert weights is not None
    torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))


def test_zero_embedding_is_plain_attention() -> None:
    case = example()
    zero = Inputs(case.query, case.key, case.value, case.weight * 0, case.tape, None, None)
    plain, _ = pushdown_attention(
        torch.nn.Module(), case.query, case.key, case.value, None, scaling=SCALING
    )
    torch.testing.assert_close(zero.run("tiled").transpose(1, 2), plain)


def test_features_are_clamped_to_their_own_rows() -> None:
    depth = torch.tensor([[[0, 7]]])
    distance = torch.tensor([[[9, 1]]])
    assert tape_features(depth, distance, 3, 4).tolist() == [[[[0, 2]]], [[[6, 4]]]]
    assert tape_features(depth, None, 3, 0).tolist() == [[[[0, 2]]]]
    assert tape_features(depth, distance, 0, 4).tolist() == [[[[3, 1]]]]
    with pytest.raises(ValueError, match="no distance"):
        tape_features(depth, None, 3, 4)


@pytest.mark.parametrize("masked", [False, True])
def test_plain_attention_of_short_sentences_in_low_precision(
    masked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By products or by PyTorch's kernel: close to float32, outputs and gradients."""
    mask = torch.ones(2, 1, 6, 6, dtype=torch.bool).tril() if masked else None
    if mask is not None:
        mask[1, :, :, 2] = False

    def gradients(dtype: torch.dtype) -> list[Tensor]:
        case = example(dtype)
        output, _ = pushdown_attention(
            torch.nn.Module(), case.query, case.key, case.value, mask, scaling=SCALING
        )
        found = torch.autograd.grad(output.float().sin().sum(), case.leaves[:3])
        return [output.float(), *(gradient.float() for gradient in found)]

    wanted = gradients(torch.float32)
    by_products = gradients(torch.bfloat16)
    monkeypatch.setattr(attention, "SHORT", 0)
    by_kernel = gradients(torch.bfloat16)
    assert not all(map(torch.equal, by_products, by_kernel))  # the choice is real
    for expected, *found in zip(wanted, by_products, by_kernel, strict=True):
        for got in found:
            torch.testing.assert_close(got, expected, rtol=0.05, atol=0.05)
