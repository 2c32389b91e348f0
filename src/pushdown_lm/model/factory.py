"""Models from their settings: new ones, pretrained ones, and Pushdown models trained further."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import torch
from huggingface_hub.errors import StrictDataclassError
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedConfig,
    PreTrainedTokenizerBase,
)
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

from pushdown_lm.console import error_console
from pushdown_lm.data.bracketing import Nonterminals
from pushdown_lm.data.tokenization import load_tokenizer, text_rule, vocabulary_size
from pushdown_lm.errors import ConfigError, PushdownError, first_line
from pushdown_lm.model.bracket_configuration import BracketConfig
from pushdown_lm.model.bracket_modeling import BracketForCausalLM
from pushdown_lm.model.configuration import PushdownConfig
from pushdown_lm.model.forbidden import special_ids
from pushdown_lm.model.hub import check_source
from pushdown_lm.model.layers import parse_layers
from pushdown_lm.model.loading import load_weights
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.model.settings import DecoderSettings, ModelSettings

DROPOUT_FIELDS = ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout", "hidden_dropout")
"""What decoders of Transformers call their dropout probabilities."""
ADDED_FIELDS = (
    "attachment_head",
    "head_input",
    "head_tape_width",
    "attachment_probabilities",
    "legality",
    "num_depths",
    "num_distances",
    "distance_counts",
    "tape_on_values",
)
"""What settings and configuration of a Pushdown model have in common, besides its layers."""


def build_model(
    settings: ModelSettings, tokenizer: PreTrainedTokenizerBase, dropout: float | None = None
) -> PushdownForCausalLM | BracketForCausalLM:
    """The model for a tokenizer; a vocabulary of another size is an error that names the key.

    The tokenizer of a model that reads brackets has the nonterminals.
    """
    try:
        if settings.kind != "pushdown":
            return _build_bracket_model(settings, tokenizer, dropout)
        return _build_pushdown_model(settings, tokenizer, dropout)
    except PushdownError:
        raise
    except Exception as error:  # whatever sizes that make no model lead to
        detail = " ".join(str(error).split())[:300] or type(error).__name__
        raise ConfigError(f"decoder: {detail}") from error


def _build_pushdown_model(
    settings: ModelSettings, tokenizer: PreTrainedTokenizerBase, dropout: float | None
) -> PushdownForCausalLM:
    options: dict[str, Any] = {
        **{name: getattr(settings, name) for name in ADDED_FIELDS},
        "tape_init_std": settings.tape_init_std,
        "attention": settings.attention,
        "attachment_loss_weight": settings.attachment_loss_weight,
        "head_dropout": dropout or 0.0,
        **special_ids(tokenizer),
    }
    if settings.pretrained is None:
        decoder = decoder_config(settings.decoder, tokenizer, dropout)
        layers = chosen_layers(settings, decoder.num_hidden_layers)
        config = PushdownConfig(
            decoder_config=decoder,
            pushdown_layers=layers,
            head_sees_tape=sees_tape(settings, layers),
            **options,
        )
        return PushdownForCausalLM(config)
    pretrained = _pretrained_config(settings.pretrained, vocabulary_size(tokenizer))
    if isinstance(pretrained, PushdownConfig):
        return _continue(settings, pretrained, tokenizer, dropout)
    _check_vocabulary(settings.pretrained, tokenizer)
    layers = chosen_layers(settings, pretrained.num_hidden_layers)
    return PushdownForCausalLM.from_pretrained_lm(
        settings.pretrained,
        pushdown_layers=layers,
        head_sees_tape=sees_tape(settings, layers),
        load_options=_load_options(pretrained, dropout),
        **options,
    )


def _build_bracket_model(
    settings: ModelSettings, tokenizer: PreTrainedTokenizerBase, dropout: float | None
) -> BracketForCausalLM:
    nonterminals = Nonterminals.of(tokenizer)
    assert nonterminals is not None
    options: dict[str, Any] = {
        "kind": settings.kind,
        "labels": list(nonterminals.labels),
        "first_nonterminal": nonterminals.first,
        **special_ids(tokenizer),
    }
    if settings.pretrained is None:
        config = decoder_config(settings.decoder, tokenizer, dropout)
        return BracketForCausalLM(BracketConfig(decoder_config=config, **options))
    pretrained = _pretrained_config(settings.pretrained, nonterminals.first)
    if isinstance(pretrained, PushdownConfig | BracketConfig):
        raise ConfigError(
            f"pretrained: {settings.kind} starts from a plain language model, "
            f"{settings.pretrained} is a {pretrained.model_type} model"
        )
    _check_vocabulary(settings.pretrained, tokenizer, up_to=nonterminals.first)
    decoder: Any = AutoModelForCausalLM.from_pretrained(
        settings.pretrained, **_load_options(pretrained, dropout)
    )
    if pretrained.get_text_config().vocab_size < nonterminals.end:
        decoder.resize_token_embeddings(nonterminals.end)
    return BracketForCausalLM(BracketConfig(decoder_config=decoder.config, **options), decoder)


def _load_options(pretrained: PreTrainedConfig, dropout: float | None) -> dict[str, Any]:
    fields = _dropout_fields(set(type(pretrained).__dataclass_fields__), dropout)
    return {**fields, "dtype": torch.float32, "trust_remote_code": False}


def chosen_layers(settings: ModelSettings, count: int) -> list[int]:
    """The indices of the pushdown layers of a decoder with ``count`` layers."""
    layers = settings.pushdown_layers
    if not isinstance(layers, str):
        return list(layers)
    try:
        return parse_layers(layers, count)
    except ConfigError as error:
        raise ConfigError(f"pushdown_{error}") from None


def sees_tape(settings: ModelSettings, layers: list[int]) -> bool:
    """Whether the attachment head sees the tape."""
    return bool(layers) if settings.head_sees_tape is None else settings.head_sees_tape


def decoder_config(
    settings: DecoderSettings, tokenizer: PreTrainedTokenizerBase, dropout: float | None
) -> PreTrainedConfig:
    """The configuration of a new decoder."""
    if settings.type not in CONFIG_MAPPING:
        raise ConfigError(
            f"decoder.type: expected a model type of Transformers, got {settings.type!r}"
        )
    config_class: Any = CONFIG_MAPPING[settings.type]
    known = set(config_class.__dataclass_fields__)
    fields = {}
    for name, value in (settings.model_extra or {}).items():
        own_name = config_class.attribute_map.get(name, name)
        if own_name not in known:
            raise ConfigError(
                f"decoder.{name}: the configuration of {settings.type} has no such field"
            )
        fields[own_name] = value
    layers = config_class.attribute_map.get("num_hidden_layers", "num_hidden_layers")
    if isinstance(fields.get(layers), int) and fields[layers] < 1:
        raise ConfigError(
            f"decoder.num_hidden_layers: expected at least 1 layer, got {fields[layers]}"
        )
    vocabulary = vocabulary_size(tokenizer)
    if settings.vocab_size not in (None, vocabulary):
        raise ConfigError(
            f"decoder.vocab_size: the recipe is for a vocabulary of {settings.vocab_size:,} "
            f"tokens, the data has {vocabulary:,}; build the data with such a tokenizer, or "
            "--set model.decoder.vocab_size=null"
        )
    try:
        return config_class(
            vocab_size=vocabulary,
            bos_token_id=tokenizer.bos_token_id,
            eos_token_id=tokenizer.eos_token_id,
            pad_token_id=tokenizer.pad_token_id,
            **_dropout_fields(known, dropout) | fields,
        )
    except (TypeError, ValueError, ArithmeticError, StrictDataclassError) as error:
        detail = " ".join(str(error).split())
        raise ConfigError(f"decoder: {detail}") from error


def _pretrained_config(name: str, vocabulary: int) -> PreTrainedConfig:
    try:
        check_source(name)
        config: PreTrainedConfig = AutoConfig.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError) as error:
        raise ConfigError(f"pretrained: {first_line(error)}") from error
    embedded = config.get_text_config().vocab_size
    if embedded < vocabulary:
        raise ConfigError(
            f"pretrained: {name} has a vocabulary of {embedded:,} tokens, the data has "
            f"{vocabulary:,}"
        )
    return config


def _check_vocabulary(
    name: str, tokenizer: PreTrainedTokenizerBase, up_to: int | None = None
) -> None:
    """Refuse data whose ids stand for other tokens than those of a pretrained model.

    Ids from ``up_to`` on are new to it.
    """
    try:
        if Path(name).is_dir():
            own: Any = load_tokenizer(name)
        else:
            own = AutoTokenizer.from_pretrained(name, trust_remote_code=False)
    except (OSError, ValueError):
        error_console().print(
            f"pushdown: {name} has no tokenizer that can be read, so it is not known whether the "
            "data was made with the same",
            highlight=False,
            soft_wrap=True,
        )
        return
    ids, known = tokenizer.get_vocab(), own.get_vocab()
    if up_to is not None:
        ids = {token: number for token, number in ids.items() if number < up_to}
    other = next((token for token, number in ids.items() if known.get(token) != number), None)
    if other is not None:
        raise ConfigError(
            f"pretrained: the data was made with another tokenizer than {name} has: {other!r} is "
            f"number {ids[other]:,} there and {known.get(other)} here; build it with "
            f"--tokenizer and the folder of {name}"
        )


def _continue(
    settings: ModelSettings,
    config: PushdownConfig,
    tokenizer: PreTrainedTokenizerBase,
    dropout: float | None,
) -> PushdownForCausalLM:
    """A Pushdown model as its folder has it, to be trained further."""
    folder = Path(str(settings.pretrained))
    if load_tokenizer(folder).get_vocab() != tokenizer.get_vocab():
        raise ConfigError(
            f"pretrained: the data was made with another tokenizer than {folder} has; "
            f"build it with --tokenizer {folder}"
        )
    rules = text_rule(load_tokenizer(folder)), text_rule(cast(Any, tokenizer))
    if rules[0] != rules[1]:
        raise ConfigError(
            f"pretrained: {folder} was trained on {rules[0].text} text encoded by the "
            f"{rules[0].unit}, the data is {rules[1].text} text encoded by the {rules[1].unit}; "
            f"build it with --tokenizer {folder}"
        )
    for name in ("bos_token_id", "eos_token_id"):
        if getattr(config, name) != getattr(tokenizer, name):
            raise ConfigError(
                f"pretrained: {folder} has the {name} {getattr(config, name)}, the data "
                f"has {getattr(tokenizer, name)}"
            )
    layers = chosen_layers(settings, config.decoder.num_hidden_layers)
    wanted = {"pushdown_layers": layers, "head_sees_tape": sees_tape(settings, layers)}
    wanted |= {name: getattr(settings, name) for name in ADDED_FIELDS}
    for name in settings.model_fields_set & wanted.keys():
        if wanted[name] != getattr(config, name):
            raise ConfigError(
                f"{name}: the recipe wants {wanted[name]}, {folder} has "
                f"{getattr(config, name)}; leave the key out to keep it"
            )
    config.attention = settings.attention
    config.attachment_loss_weight = settings.attachment_loss_weight
    config.head_dropout = dropout or 0.0
    known = set(type(config.decoder).__dataclass_fields__)
    for name, value in _dropout_fields(known, dropout).items():
        setattr(config.decoder, name, value)
    return load_weights(PushdownForCausalLM, folder, config=config, dtype=torch.float32)


def _dropout_fields(known: set[str], dropout: float | None) -> dict[str, float]:
    return {} if dropout is None else {name: dropout for name in DROPOUT_FIELDS if name in known}
