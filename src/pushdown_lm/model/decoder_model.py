"""What all models of this library share: a decoder of Transformers that attends through us."""

from __future__ import annotations

from torch import nn
from transformers import AutoModelForCausalLM, PreTrainedModel

from pushdown_lm.errors import ConfigError
from pushdown_lm.model import relative_decoder as relative_decoder  # registers it
from pushdown_lm.model.attention import ATTENTION_NAME
from pushdown_lm.model.decoder_configuration import DecoderModelConfig
from pushdown_lm.model.forbidden import ForbiddenTokens


class DecoderModel(PreTrainedModel):
    """A model around a decoder, whose embeddings are its own.

    Subclasses say in ``forbidden`` which tokens never come next.
    """

    config: DecoderModelConfig
    base_model_prefix = "decoder"
    main_input_name = "input_ids"
    supports_gradient_checkpointing = True
    _supports_sdpa = True
    _supports_attention_backend = True

    forbidden: ForbiddenTokens

    def __init__(self, config: DecoderModelConfig, decoder: PreTrainedModel | None = None) -> None:
        super().__init__(config)
        if decoder is None:
            decoder = AutoModelForCausalLM.from_config(
                config.decoder, attn_implementation=ATTENTION_NAME, trust_remote_code=False
            )
        else:
            decoder.set_attn_implementation(ATTENTION_NAME)
        self.decoder = decoder
        self._no_split_modules = decoder._no_split_modules

    def get_input_embeddings(self) -> nn.Module:
        return self.decoder.get_input_embeddings()

    def set_input_embeddings(self, value: nn.Module) -> None:
        self.decoder.set_input_embeddings(value)

    def get_output_embeddings(self) -> nn.Module:
        return self.decoder.get_output_embeddings()


def check_pluggable(decoder: PreTrainedModel, purpose: str) -> None:
    """Raise :class:`ConfigError` unless a decoder calls its attention through Transformers."""
    if not getattr(decoder, "_supports_attention_backend", False):
        raise ConfigError(
            f"{type(decoder).__name__} does not call its attention through Transformers' "
            f"AttentionInterface, so {purpose}"
        )
