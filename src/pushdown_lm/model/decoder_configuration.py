"""What the configurations of all models of this library share: a decoder's, and special tokens."""

from __future__ import annotations

import copy
from typing import Any, ClassVar

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from pushdown_lm.errors import ConfigError
from pushdown_lm.model import relative_configuration as relative_configuration  # registers it


@strict
class DecoderModelConfig(PreTrainedConfig):
    """The configuration of a model around a decoder of Transformers."""

    sub_configs_defaults: ClassVar[dict[str, SubConfigSpec]] = {
        "decoder_config": SubConfigSpec(config_class=AutoConfig, model_type="gpt2")
    }

    decoder_config: dict[str, Any] | PreTrainedConfig | None = None
    """The decoder's own configuration; GPT-2's defaults if left out."""
    bos_token_id: int | None = None
    """ROOT of every sentence; the decoder's own if left out. May equal ``eos_token_id``."""
    eos_token_id: int | None = None
    """End of every sentence; the decoder's own if left out."""
    pad_token_id: int | None = None
    """Padding, never seen by the model; EOS if left out."""
    tie_word_embeddings: bool = False
    """Whether the decoder ties its embeddings (taken from its own configuration)."""

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self.decoder_config = copy.deepcopy(self.decoder_config)  # its attention becomes ours
        self.tie_word_embeddings = bool(getattr(self.decoder, "tie_word_embeddings", False))
        for name in ("bos_token_id", "eos_token_id"):
            if getattr(self, name) is None:
                setattr(self, name, _single_id(self.decoder, name))
        if self.bos_token_id is None:
            self.bos_token_id = self.eos_token_id
        if self.pad_token_id is None:
            self.pad_token_id = self.eos_token_id

    @property
    def decoder(self) -> PreTrainedConfig:
        assert isinstance(self.decoder_config, PreTrainedConfig)
        return self.decoder_config

    @property
    def bos_id(self) -> int:
        """ROOT, where the model needs one."""
        return self._special_id("bos_token_id")

    @property
    def eos_id(self) -> int:
        """EOS, where the model needs one."""
        return self._special_id("eos_token_id")

    @property
    def pad_id(self) -> int:
        """Padding, where the model needs it."""
        return self._special_id("pad_token_id")

    def _special_id(self, name: str) -> int:
        value: int | None = getattr(self, name)
        if value is None:
            raise ConfigError(f"{name}: expected the number of a token, got none")
        return value

    @property
    def max_positions(self) -> int | None:
        """The longest input that the decoder's positions allow, if they bound it."""
        return getattr(self.decoder, "max_position_embeddings", None)

    def get_text_config(self, *args: Any, **kwargs: Any) -> PreTrainedConfig:
        return self.decoder.get_text_config(*args, **kwargs)


def check_choice(name: str, value: object, choices: tuple[object, ...]) -> None:
    """Raise :class:`ConfigError` unless a field has one of the values that it may have."""
    if value not in choices:
        listed = ", ".join(str(choice) for choice in choices)
        raise ConfigError(f"{name}: expected one of {listed}, got {value!r}")


def _single_id(config: PreTrainedConfig, name: str) -> int | None:
    """A token id of a decoder's configuration, the first if it lists several."""
    value = getattr(config.get_text_config(), name, None)
    return value[0] if isinstance(value, list) else value
