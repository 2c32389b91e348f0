"""The configuration of a model that reads brackets: any decoder's, and the nonterminals."""

from __future__ import annotations

import copy
from typing import Any, ClassVar, Literal, TypeAlias, get_args

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig, PreTrainedConfig
from transformers.configuration_utils import SubConfigSpec

from pushdown_lm.data.bracketing import Nonterminals
from pushdown_lm.errors import ConfigError
from pushdown_lm.model.configuration import _check_choice

BracketKind: TypeAlias = Literal["plm", "plm-mask", "tg"]
"""The models of :mod:`pushdown_lm.model.bracket_modeling`."""


@strict
class BracketConfig(PreTrainedConfig):
    """A decoder of Transformers whose sentences are bracketed."""

    model_type: ClassVar[str] = "bracket_lm"
    sub_configs_defaults: ClassVar[dict[str, SubConfigSpec]] = {
        "decoder_config": SubConfigSpec(config_class=AutoConfig, model_type="gpt2")
    }

    decoder_config: dict[str, Any] | PreTrainedConfig | None = None
    """The decoder's own configuration; GPT-2's defaults if left out."""
    kind: str = "plm"
    """``plm``, ``plm-mask`` or ``tg`` (Transformer Grammars)."""
    labels: list[str] | None = None
    """The labels of constituents; X alone if left out."""
    first_nonterminal: int | None = None
    """The id of the first opener; openers and closers follow each other in the order of the labels.
    The last ids of the decoder's vocabulary if left out."""
    bos_token_id: int | None = None
    eos_token_id: int | None = None
    pad_token_id: int | None = None
    """Padding, never seen by the model; EOS if left out."""
    tie_word_embeddings: bool = False
    """Whether the decoder ties its embeddings (taken from its own configuration)."""

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        self.decoder_config = copy.deepcopy(self.decoder_config)  # its attention becomes ours
        decoder = self.decoder
        self.tie_word_embeddings = bool(getattr(decoder, "tie_word_embeddings", False))
        _check_choice("kind", self.kind, get_args(BracketKind))
        self.labels = list(self.labels or ["X"])
        for name in ("bos_token_id", "eos_token_id"):
            if getattr(self, name) is None:
                setattr(self, name, getattr(decoder, name))
        if self.eos_token_id is None:
            raise ConfigError("eos_token_id: sentences end with an EOS token, and none is named")
        if self.bos_token_id is None:
            self.bos_token_id = self.eos_token_id
        if self.pad_token_id is None:
            self.pad_token_id = self.eos_token_id
        vocabulary = decoder.get_text_config().vocab_size
        if self.first_nonterminal is None:
            self.first_nonterminal = vocabulary + self.nonterminals.first - self.nonterminals.end
        if self.nonterminals.end > vocabulary or self.first_nonterminal < 1:
            raise ConfigError(
                f"first_nonterminal: expected nonterminals within the decoder's vocabulary of "
                f"{vocabulary}, got {self.first_nonterminal} to {self.nonterminals.end - 1}"
            )

    @property
    def decoder(self) -> PreTrainedConfig:
        assert isinstance(self.decoder_config, PreTrainedConfig)
        return self.decoder_config

    @property
    def nonterminals(self) -> Nonterminals:
        return Nonterminals(
            tuple(self.labels or ()), self.first_nonterminal or 0, typed=self.kind == "tg"
        )

    @property
    def max_positions(self) -> int | None:
        """The longest input that the decoder's positions allow, if they bound it."""
        if self.kind == "tg":  # whose positions are depths
            return None
        return getattr(self.decoder, "max_position_embeddings", None)

    @property
    def pushdown_layers(self) -> list[int]:
        """None: brackets are read by all layers."""
        return []

    def get_text_config(self, *args: Any, **kwargs: Any) -> PreTrainedConfig:
        return self.decoder.get_text_config(*args, **kwargs)


AutoConfig.register(BracketConfig.model_type, BracketConfig)
