"""Small random models for the tests: the only place that makes them.

pushdown_model    initialized as a new model, then sharpened; every kind of decoder
random_model      all weights drawn alike, so that no parse is likely: for search
prompt_model      float32 and long positions, for classification
plain_model       without Pushdown Layers
bracket_model     PLM, PLM-mask or Transformer Grammar, all weights drawn alike
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import (
    Gemma2Config,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
    Qwen3Config,
    SmolLM3Config,
)

from pushdown_lm.model.attention import TapeEmbedding
from pushdown_lm.model.bracket_configuration import BracketConfig
from pushdown_lm.model.bracket_modeling import BracketForCausalLM
from pushdown_lm.model.configuration import PushdownConfig
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.model.relative_configuration import RelativeConfig

BOS, EOS = 0, 1
VOCABULARY = 7
"""Of the random models, small enough to enumerate sentences."""


def decoder_config(
    kind: str = "gpt2", *, layers: int = 3, vocabulary: int = 11
) -> PreTrainedConfig:
    """A tiny decoder; "nope" has no positions at all, "shared" has one id for BOS and EOS."""
    if kind == "relative":
        return RelativeConfig(
            vocab_size=vocabulary,
            hidden_size=16,
            intermediate_size=32,
            num_hidden_layers=layers,
            num_attention_heads=4,
            hidden_dropout=0.0,
            attention_dropout=0.0,
            bos_token_id=BOS,
            eos_token_id=EOS,
        )
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


def random_model(
    seed: int = 0,
    *,
    decoder: str = "gpt2",
    scale: float = 0.5,
    vocabulary: int = VOCABULARY,
    positions: int = 12,
    **options: object,
) -> PushdownForCausalLM:
    """A tiny model in float64 whose weights are all random, the tape embeddings too."""
    torch.manual_seed(seed)
    sizes = {
        "vocab_size": vocabulary,
        "bos_token_id": BOS,
        "eos_token_id": EOS,
        "max_position_embeddings": positions,
        "hidden_size": 16,
    }
    config: PreTrainedConfig
    if decoder == "relative":
        config = decoder_config("relative", vocabulary=vocabulary)
    elif decoder == "gpt2":
        config = GPT2Config(n_layer=3, n_head=2, **sizes)
    else:
        kind = {"llama": LlamaConfig, "gemma2": Gemma2Config}[decoder]
        config = kind(
            num_hidden_layers=3,
            num_attention_heads=4,
            num_key_value_heads=2,
            head_dim=4,
            intermediate_size=24,
            **({"sliding_window": 3} if decoder == "gemma2" else {}),
            **sizes,
        )
    options = {"bos_token_id": BOS, "eos_token_id": EOS, "num_depths": 4, **options}
    model = PushdownForCausalLM(PushdownConfig(decoder_config=config, **options)).double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=scale)
    return model


def prompt_model(tokenizer: PreTrainedTokenizerBase, **options: Any) -> PushdownForCausalLM:
    """A random model in float32 with room for long prompts in the tokens of a tokenizer."""
    torch.manual_seed(3)
    decoder = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=3,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=2048,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
    )
    model = PushdownForCausalLM(PushdownConfig(decoder_config=decoder, **options))
    for name, parameter in model.named_parameters():
        if "tape_embedding" in name:
            torch.nn.init.normal_(parameter)
    return model


def plain_model(vocabulary: int, *, seed: int = 0) -> GPT2LMHeadModel:
    """A random GPT-2 without Pushdown Layers, its predictions far from uniform."""
    torch.manual_seed(seed)
    config = GPT2Config(
        vocab_size=vocabulary,
        n_positions=256,
        n_embd=16,
        n_layer=2,
        n_head=2,
        bos_token_id=0,
        eos_token_id=1,
        initializer_range=0.5,
    )
    return GPT2LMHeadModel(config)


def bracket_model(
    kind: str,
    *,
    seed: int = 0,
    decoder: str = "llama",
    words: int = 3,
    labels: tuple[str, ...] = ("S", "NP"),
    scale: float = 0.5,
    padding: int = 0,
) -> BracketForCausalLM:
    """A tiny model in float64 whose weights are all random.

    Ids: BOS 0, EOS 1, the words from 2 on, openers, closers, and ``padding`` that are no symbols.
    """
    torch.manual_seed(seed)
    closers = len(labels) if kind == "tg" else 1
    first = 2 + words
    config = decoder_config(decoder, vocabulary=first + len(labels) + closers + padding)
    model = BracketForCausalLM(
        BracketConfig(
            decoder_config=config, kind=kind, labels=list(labels), first_nonterminal=first
        )
    )
    model = model.double().eval()
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=scale)
    return model


def tape_embeddings(model: PushdownForCausalLM) -> list[TapeEmbedding]:
    return [module for module in model.modules() if isinstance(module, TapeEmbedding)]
