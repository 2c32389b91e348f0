"""The decoder with relative positions: its formulas, and that it is a Transformers model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM

from pushdown_lm.model.configuration import ConfigError
from pushdown_lm.model.relative_configuration import RelativeConfig
from pushdown_lm.model.relative_decoder import RelativeAttention, RelativeForCausalLM
from pushdown_lm.model.sinusoids import sinusoids
from tests.models import decoder_config

IDS = torch.tensor([[0, 5, 6, 7, 8, 3], [0, 2, 9, 4, 4, 1]])


def make_decoder(implementation: str = "eager", *, seed: int = 0) -> RelativeForCausalLM:
    torch.manual_seed(seed)
    config = decoder_config("relative", layers=2)
    model: Any = AutoModelForCausalLM.from_config(config, attn_implementation=implementation)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.5)
    return model.double().eval()


def sinusoid(position: int, width: int) -> Tensor:
    values = []
    for m in range(width // 2):
        angle = position * 10000.0 ** (-2 * m / width)
        values += [math.sin(angle), math.cos(angle)]
    return torch.tensor(values, dtype=torch.float64)


def by_the_formulas(model: RelativeForCausalLM, tokens: list[int]) -> Tensor:
    """Logits of one sentence, one pair of positions at a time."""
    config = model.config
    width, heads = config.hidden_size, config.num_attention_heads
    head = width // heads
    states = [math.sqrt(width) * model.model.embed_tokens.weight[token] for token in tokens]
    for layer in model.model.layers:
        attention: Any = layer.self_attn
        attended = []
        for i in range(len(states)):
            parts = []
            for number in range(heads):
                own = slice(number * head, (number + 1) * head)
                query = attention.q_proj(states[i])[own]
                scores, values = [], []
                for j in range(i + 1):
                    key = attention.k_proj(states[j])[own]
                    relative = attention.r_proj(sinusoid(j - i, width))[own]
                    scores.append((query @ key + query @ relative) / math.sqrt(head))
                    values.append(attention.v_proj(states[j])[own])
                parts.append(torch.stack(scores).softmax(0) @ torch.stack(values))
            attended.append(attention.o_proj(torch.cat(parts)))
        for i, added in enumerate(attended):
            state = layer.attention_norm(states[i] + added)
            states[i] = layer.output_norm(state + layer.fc_out(layer.fc_in(state).relu()))
    return torch.stack([model.model.embed_tokens.weight @ s + model.lm_head.bias for s in states])


@pytest.mark.parametrize("implementation", ["eager", "sdpa", "pushdown"])
def test_equals_the_formulas(implementation: str) -> None:
    model = make_decoder(implementation)
    output = model(input_ids=IDS, output_hidden_states=True)
    expected = torch.stack([by_the_formulas(model, tokens) for tokens in IDS.tolist()])
    torch.testing.assert_close(output.logits, expected)
    torch.testing.assert_close(
        model.lm_head(output.hidden_states[-1]), output.logits, rtol=0, atol=0
    )
    names, parameters = zip(*model.named_parameters(), strict=True)
    direction = torch.arange(expected.numel()).double().sin().view_as(expected)
    wanted = torch.autograd.grad((expected * direction).sum(), parameters)
    got = torch.autograd.grad((output.logits * direction).sum(), parameters)
    for name, one, other in zip(names, wanted, got, strict=True):
        torch.testing.assert_close(other, one, msg=name)


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["eager", "sdpa", "pushdown"])
def test_chunks_after_a_cache(implementation: str) -> None:
    """Chunks of one token and of several, where either order of the product is the cheaper."""
    model = make_decoder(implementation)
    whole = model(input_ids=IDS).logits
    cache, parts = None, []
    for now in (slice(0, 2), slice(2, 3), slice(3, 6)):
        output = model(input_ids=IDS[:, now], past_key_values=cache, use_cache=True)
        cache = output.past_key_values
        parts.append(output.logits)
    torch.testing.assert_close(torch.cat(parts, 1), whole)


@torch.no_grad()
def test_both_orders_of_the_product_agree() -> None:
    attention = next(m for m in make_decoder().modules() if isinstance(m, RelativeAttention))
    relative = sinusoids(torch.arange(-6, 1), 16, torch.float64)
    query = torch.randn(5, 4, 3, 4, dtype=torch.float64)
    together = attention.position_bias(query, relative)  # 15 queries, 7 relative positions
    for row in range(5):  # 3 queries
        alone = attention.position_bias(query[row : row + 1], relative)
        torch.testing.assert_close(alone[0], together[row])
    for t, j in ((0, 0), (0, 4), (2, 1), (2, 6)):
        expected = attention.r_proj(relative[6 - (4 + t - j)]).view(4, 4)
        expected = (query[:, :, t] * expected).sum(-1) * attention.scaling
        torch.testing.assert_close(together[:, :, t, j], expected)


@torch.no_grad()
@pytest.mark.parametrize("implementation", ["eager", "sdpa"])
def test_padding_on_the_left_changes_nothing(implementation: str) -> None:
    model = make_decoder(implementation)
    padded = torch.cat([torch.ones(2, 3, dtype=torch.long), IDS], 1)
    mask = torch.tensor([[0] * 3 + [1] * 6] * 2)
    logits = model(input_ids=padded, attention_mask=mask).logits[:, 3:]
    torch.testing.assert_close(logits, model(input_ids=IDS).logits)
    options = {"max_new_tokens": 4, "do_sample": False, "pad_token_id": 1, "eos_token_id": None}
    alone = model.generate(IDS, **options)
    together = model.generate(padded, attention_mask=mask, **options)
    assert torch.equal(together[:, 3:], alone)


def test_saved_and_loaded_by_the_auto_classes(tmp_path: Path) -> None:
    model = make_decoder().float()
    model.save_pretrained(tmp_path)
    loaded: Any = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), RelativeConfig)
    assert loaded.lm_head.weight is loaded.model.embed_tokens.weight
    with torch.no_grad():
        torch.testing.assert_close(loaded(IDS).logits, model(IDS).logits)
        loss = loaded(IDS, labels=IDS).loss
        expected = model(IDS).logits[:, :-1].flatten(0, 1)
        torch.testing.assert_close(
            loss, torch.nn.functional.cross_entropy(expected, IDS[:, 1:].flatten())
        )


def test_dropout_is_for_training() -> None:
    config = decoder_config("relative", layers=1)
    config.hidden_dropout = config.attention_dropout = 0.3  # type: ignore[attr-defined]
    model = RelativeForCausalLM(config)  # type: ignore[arg-type]
    with torch.no_grad():
        model.eval()
        assert torch.equal(model(IDS).logits, model(IDS).logits)
        model.train()
        assert not torch.equal(model(IDS).logits, model(IDS).logits)


def test_sizes_that_do_not_fit() -> None:
    assert RelativeConfig(hidden_size=64).intermediate_size == 512
    with pytest.raises(ConfigError, match="hidden_size: expected an even multiple"):
        RelativeConfig(hidden_size=20)
