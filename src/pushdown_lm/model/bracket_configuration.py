"""The configuration of a model that reads brackets: any decoder's, and the nonterminals."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, TypeAlias, get_args

from huggingface_hub.dataclasses import strict
from transformers import AutoConfig

from pushdown_lm.data.bracketing import Nonterminals
from pushdown_lm.errors import ConfigError
from pushdown_lm.model.decoder_configuration import DecoderModelConfig, check_choice

BracketKind: TypeAlias = Literal["plm", "plm-mask", "tg"]
"""The models of :mod:`pushdown_lm.model.bracket_modeling`."""


@strict
class BracketConfig(DecoderModelConfig):
    """A decoder of Transformers whose sentences are bracketed."""

    model_type: ClassVar[str] = "bracket_lm"
    kind: str = "plm"
    """``plm``, ``plm-mask`` or ``tg`` (Transformer Grammars)."""
    labels: list[str] | None = None
    """The labels of constituents; X alone if left out."""
    first_nonterminal: int | None = None
    """The id of the first opener; openers and closers follow each other in the order of the labels.
    The last ids of the decoder's vocabulary if left out."""

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        check_choice("kind", self.kind, get_args(BracketKind))
        self.labels = list(self.labels or ["X"])
        if self.eos_token_id is None:
            raise ConfigError("eos_token_id: sentences end with an EOS token, and none is named")
        vocabulary = self.decoder.get_text_config().vocab_size
        if self.first_nonterminal is None:
            self.first_nonterminal = vocabulary + self.nonterminals.first - self.nonterminals.end
        if self.nonterminals.end > vocabulary or self.first_nonterminal < 1:
            raise ConfigError(
                f"first_nonterminal: expected nonterminals within the decoder's vocabulary of "
                f"{vocabulary}, got {self.first_nonterminal} to {self.nonterminals.end - 1}"
            )

    @property
    def nonterminals(self) -> Nonterminals:
        return Nonterminals(
            tuple(self.labels or ()), self.first_nonterminal or 0, typed=self.kind == "tg"
        )

    @property
    def max_positions(self) -> int | None:
        """None for Transformer Grammars, whose positions are depths."""
        return None if self.kind == "tg" else super().max_positions

    @property
    def pushdown_layers(self) -> list[int]:
        """None: brackets are read by all layers."""
        return []


AutoConfig.register(BracketConfig.model_type, BracketConfig)
