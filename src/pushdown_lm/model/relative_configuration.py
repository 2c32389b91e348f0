"""The configuration of the decoder with relative positions."""

from __future__ import annotations

from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig

from pushdown_lm.errors import ConfigError


@strict
class RelativeConfig(PreTrainedConfig):
    """Sizes of :mod:`pushdown_lm.model.relative_decoder`; by default the released model's."""

    model_type: ClassVar[str] = "relative"
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    vocab_size: int = 50257
    hidden_size: int = 1024
    intermediate_size: int | None = None
    """Width of the feed-forward layers; 8 times the hidden width if left out."""
    num_hidden_layers: int = 16
    num_attention_heads: int = 8
    hidden_dropout: float = 0.1
    """Of the embeddings, of what a layer adds, and inside the feed-forward layers."""
    attention_dropout: float = 0.1
    layer_norm_eps: float = 1e-5
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None
    tie_word_embeddings: bool = True

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.intermediate_size is None:
            self.intermediate_size = 8 * self.hidden_size
        if self.hidden_size % (2 * self.num_attention_heads):
            raise ConfigError(
                "hidden_size: expected an even multiple of num_attention_heads "
                f"{self.num_attention_heads}, got {self.hidden_size}"
            )


AutoConfig.register(RelativeConfig.model_type, RelativeConfig)
