"""Small random models for the tests."""

from __future__ import annotations

from typing import Any

import torch
from transformers import GPT2Config, LlamaConfig, PreTrainedConfig, Qwen3Config, SmolLM3Config

from pushdown_lm.model.attention import TapeEmbedding
from pushdown_lm.model.configuration import PushdownConfig
from pushdown_lm.model.modeling import PushdownForCausalLM

BOS, EOS = 0, 1


def decoder_config(
    kind: str = "gpt2", *, layers: int = 3, vocabulary: int = 11
) -> PreTrainedConfig:
    """A tiny decoder; "nope" has no positions at all, "shared" has one id for BOS and EOS."""
    if kind in ("gpt2", "shared"):
        return GPT2Config(
            vocab_size=vocabulary,
            n_positions=64,
            n_embd=16,
            n_layer=layers,
            n_head=4,
            resid_pdrop=0.0,
            embd_pdrop=0.0,
            attn_pdrop=0.0,
            bos_token_id=BOS,
            eos_token_id=EOS if kind == "gpt2" else BOS,
        )
    options: dict[str, Any] = {
        "vocab_size": vocabulary,
        "hidden_size": 16,
        "intermediate_size": 32,
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": 64,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "pad_token_id": EOS,
    }
    if kind == "llama":
        return LlamaConfig(**options)
    if kind == "qwen3":
        return Qwen3Config(**options, head_dim=4)
    return SmolLM3Config(**options, no_rope_layers=[0] * layers)


def pushdown_model(
    kind: str = "gpt2", *, seed: int = 0, layers: int = 3, vocabulary: int = 11, **options: Any
) -> PushdownForCausalLM:
    """A random Pushdown model in float64, its depth embeddings far from zero."""
    torch.manual_seed(seed)
    config = PushdownConfig(
        decoder_config=decoder_config(kind, layers=layers, vocabulary=vocabulary), **options
    )
    model = PushdownForCausalLM(config).double().eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "tape_embedding" in name:
                parameter.normal_()
            elif parameter.ndim > 1:
                parameter.mul_(4.0)
    return model


def tape_embeddings(model: PushdownForCausalLM) -> list[TapeEmbedding]:
    return [module for module in model.modules() if isinstance(module, TapeEmbedding)]
