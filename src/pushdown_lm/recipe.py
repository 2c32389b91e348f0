"""Recipes: what to train and how, as YAML files that are checked before anything runs.

    inherits: wikitrees-small          # another recipe, by name or by path
    model:
      decoder: {type: llama, num_hidden_layers: 12}
      pushdown_layers: last:6
    training: {lr: 1e-3}

Keys that a recipe leaves out are its parent's, or else the defaults below. ``--set`` overrides a
key by its dotted path, ``--set training.lr=1e-3``, with the value read as YAML.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from pushdown_lm.errors import PushdownError

if TYPE_CHECKING:
    from transformers import PreTrainedConfig, PreTrainedTokenizerBase

    from pushdown_lm.configuration import PushdownConfig
    from pushdown_lm.modeling import PushdownForCausalLM

Positive = Annotated[int, Field(gt=0)]
Probability = Annotated[float, Field(ge=0, lt=1)]

FREEZE_PATTERN = r"^(none|all-but-pushdown|lower(:[1-9][0-9]*)?)$"
"""The choices of `training.freeze`."""

DROPOUT_FIELDS = ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout", "hidden_dropout")
"""What decoders of Transformers call their dropout probabilities."""


class RecipeError(PushdownError):
    """A recipe that cannot be followed: `training.lr: expected a number, got 'fast'`."""


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class DecoderSection(_Section):
    """The transformer itself: a model type of Transformers, and any field of its configuration."""

    model_config = ConfigDict(extra="allow", strict=True, frozen=True)

    type: str = "gpt2"
    """As in ``AutoConfig.for_model``: gpt2, llama, qwen3, ..."""
    vocab_size: Positive | None = None
    """The tokenizer's if left out; any other number is an error when the model is built."""

    def config(self, tokenizer: PreTrainedTokenizerBase, dropout: float | None) -> PreTrainedConfig:
        """The decoder's configuration for a tokenizer."""
        from huggingface_hub.errors import StrictDataclassError
        from transformers.models.auto.configuration_auto import CONFIG_MAPPING

        if self.type not in CONFIG_MAPPING:
            raise RecipeError(
                f"model.decoder.type: expected a model type of Transformers, got {self.type!r}"
            )
        config_class: Any = CONFIG_MAPPING[self.type]
        known = set(config_class.__dataclass_fields__)
        fields = {}
        for name, value in (self.model_extra or {}).items():
            own_name = config_class.attribute_map.get(name, name)
            if own_name not in known:
                raise RecipeError(
                    f"model.decoder.{name}: the configuration of {self.type} has no such field"
                )
            fields[own_name] = value
        if self.vocab_size not in (None, len(tokenizer)):
            raise RecipeError(
                f"model.decoder.vocab_size: the recipe is for a vocabulary of {self.vocab_size:,} "
                f"tokens, the data has {len(tokenizer):,}"
            )
        try:
            return config_class(
                vocab_size=len(tokenizer),
                bos_token_id=tokenizer.bos_token_id,
                eos_token_id=tokenizer.eos_token_id,
                pad_token_id=tokenizer.pad_token_id,
                **_dropout_fields(known, dropout) | fields,
            )
        except (TypeError, ValueError, StrictDataclassError) as error:
            detail = " ".join(str(error).split())
            raise RecipeError(f"model.decoder: {detail}") from error


class ModelSection(_Section):
    """The model: a new decoder, or a pretrained one, and what is added to it."""

    decoder: DecoderSection = DecoderSection()
    """A decoder that starts from random weights."""
    pretrained: str | None = None
    """Instead of it, a pretrained language model: a folder, or a name of the Hub. A Pushdown model
    (`pushdown convert`, or the `model` of a run) is trained further as it is: what the keys below
    say about its layers and its head must agree with it, or be left out."""
    pushdown_layers: (
        Annotated[str, Field(pattern=r"^(all|none|(first|last):[1-9][0-9]*)$")]
        | list[Annotated[int, Field(ge=0)]]
    ) = "all"
    """all, none, first:N, last:N, or a list of layer indices. With none and an attachment head
    the model is the paper's Base-LM."""
    attachment_head: Literal["mlp", "bilinear", "all_positions"] | None = "mlp"
    """The variant of the attachment head; null for no head."""
    num_depths: Annotated[int, Field(ge=0)] = 64
    """Rows of the depth embedding; deeper tokens share the last."""
    num_distances: Annotated[int, Field(ge=0)] = 0
    """Rows of the distance embedding; 0 for none."""
    distance_counts: Literal["constituents", "open_tokens"] = "constituents"
    """What the distance from a token to the top of the stack counts."""
    attention: str = "tiled"
    """An implementation of :mod:`pushdown_lm.attention`."""
    attachment_loss_weight: Annotated[float, Field(ge=0)] = 1.0
    """Weight of the attachment loss beside the language-model loss."""

    @model_validator(mode="after")
    def _one_decoder(self) -> ModelSection:
        if self.pretrained is not None and "decoder" in self.model_fields_set:
            raise ValueError("decoder: a pretrained model brings its own, so leave one of them out")
        return self

    def build(
        self, tokenizer: PreTrainedTokenizerBase, dropout: float | None = None
    ) -> PushdownForCausalLM:
        """The model for a tokenizer; a vocabulary of another size is an error."""
        from pushdown_lm.configuration import ConfigError, PushdownConfig
        from pushdown_lm.modeling import PushdownForCausalLM

        options: dict[str, Any] = {
            "attachment_head": self.attachment_head,
            "num_depths": self.num_depths,
            "num_distances": self.num_distances,
            "distance_counts": self.distance_counts,
            "attention": self.attention,
            "attachment_loss_weight": self.attachment_loss_weight,
            "head_dropout": dropout or 0.0,
            "bos_token_id": tokenizer.bos_token_id,
            "eos_token_id": tokenizer.eos_token_id,
            "pad_token_id": tokenizer.pad_token_id,
        }
        try:
            if self.pretrained is None:
                decoder = self.decoder.config(tokenizer, dropout)
                layers = self.layers(decoder.num_hidden_layers)
                config = PushdownConfig(decoder_config=decoder, pushdown_layers=layers, **options)
                return PushdownForCausalLM(config)
            pretrained, load_options = self._pretrained_config(len(tokenizer), dropout)
            if isinstance(pretrained, PushdownConfig):
                return self._continue(pretrained, tokenizer, dropout)
            return PushdownForCausalLM.from_pretrained_lm(
                self.pretrained,
                pushdown_layers=self.layers(pretrained.num_hidden_layers),
                load_options=load_options,
                **options,
            )
        except ConfigError as error:
            raise RecipeError(f"model.{error}") from error
        except RecipeError:
            raise
        except ValueError as error:
            raise RecipeError(f"model: {error}") from error

    def _pretrained_config(
        self, vocabulary: int, dropout: float | None
    ) -> tuple[PreTrainedConfig, dict[str, Any]]:
        import torch
        from transformers import AutoConfig

        assert self.pretrained is not None
        try:
            config: PreTrainedConfig = AutoConfig.from_pretrained(self.pretrained)
        except (OSError, ValueError) as error:
            first_line = str(error).strip().splitlines()[0]
            raise RecipeError(f"model.pretrained: {first_line}") from error
        embedded = config.get_text_config().vocab_size
        if embedded < vocabulary:
            raise RecipeError(
                f"model.pretrained: {self.pretrained} has a vocabulary of {embedded:,} "
                f"tokens, the data has {vocabulary:,}"
            )
        fields = _dropout_fields(set(type(config).__dataclass_fields__), dropout)
        return config, {**fields, "dtype": torch.float32}

    def _continue(
        self, config: PushdownConfig, tokenizer: PreTrainedTokenizerBase, dropout: float | None
    ) -> PushdownForCausalLM:
        """A Pushdown model as its folder has it, to be trained further."""
        import torch

        from pushdown_lm.checkpoint import MANIFEST, verify_manifest
        from pushdown_lm.modeling import PushdownForCausalLM
        from pushdown_lm.tokenization import load_tokenizer

        folder = Path(str(self.pretrained))
        if (folder / MANIFEST).is_file():
            verify_manifest(folder)
        if load_tokenizer(folder).get_vocab() != tokenizer.get_vocab():
            raise RecipeError(
                f"model.pretrained: the data was made with another tokenizer than {folder} has; "
                f"build it with --tokenizer {folder}"
            )
        for name in ("bos_token_id", "eos_token_id"):
            if getattr(config, name) != getattr(tokenizer, name):
                raise RecipeError(
                    f"model.pretrained: {folder} has the {name} {getattr(config, name)}, the data "
                    f"has {getattr(tokenizer, name)}"
                )
        wanted = {"pushdown_layers": self.layers(config.decoder.num_hidden_layers)}
        wanted |= self.model_dump(
            include={"attachment_head", "num_depths", "num_distances", "distance_counts"}
        )
        for name in self.model_fields_set & wanted.keys():
            if wanted[name] != getattr(config, name):
                raise RecipeError(
                    f"model.{name}: the recipe wants {wanted[name]}, {folder} has "
                    f"{getattr(config, name)}; leave the key out to keep it"
                )
        config.attention = self.attention
        config.attachment_loss_weight = self.attachment_loss_weight
        config.head_dropout = dropout or 0.0
        known = set(type(config.decoder).__dataclass_fields__)
        for name, value in _dropout_fields(known, dropout).items():
            setattr(config.decoder, name, value)
        return PushdownForCausalLM.from_pretrained(folder, config=config, dtype=torch.float32)

    def layers(self, count: int) -> list[int]:
        """The indices of the pushdown layers of a decoder with ``count`` layers.

        >>> ModelSection(pushdown_layers="last:2").layers(6)
        [4, 5]
        """
        layers = self.pushdown_layers
        if not isinstance(layers, str):
            return list(layers)
        if layers in ("all", "none"):
            return list(range(count)) if layers == "all" else []
        end, number = layers.split(":")
        if int(number) > count:
            raise RecipeError(f"model.pushdown_layers: {layers} of a decoder with {count} layers")
        return list(range(count)[: int(number)] if end == "first" else range(count)[-int(number) :])


class LoraSection(_Section):
    """Low-rank adapters, merged into the weights when the trained model is saved."""

    rank: Positive = 8
    alpha: Annotated[float, Field(gt=0)] | None = None
    """The adapters are scaled by alpha / rank; 2 x rank if left out."""
    dropout: Probability = 0.0
    targets: list[str] | None = None
    """Names of the adapted modules; the linear maps of the attention if left out."""


class TrainingSection(_Section):
    """The optimisation. Batch sizes are those of one optimizer step, over all processes."""

    steps: Positive | None = None
    """Optimizer steps, or"""
    epochs: Annotated[float, Field(gt=0)] | None = None
    """passes over the training data: one of the two."""
    tokens_per_batch: Positive | None = None
    """Tokens of a step, padding included, in batches of sentences of like length, or"""
    batch_size: Positive | None = None
    """sentences (or windows) of a step, drawn at random: one of the two."""
    gradient_accumulation: Positive = 1
    """Into how many parts each process cuts its share of a step, to save memory."""
    lr: Annotated[float, Field(gt=0)] = 1e-3
    """The highest learning rate."""
    schedule: Literal["cosine", "constant", "linear", "inverse_sqrt"] = "cosine"
    """Of the learning rate after its warm-up; cosine and linear go down to 0."""
    warmup_steps: Annotated[int, Field(ge=0)] = 0
    """Steps of linear growth at the start."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    betas: Annotated[list[Probability], Field(min_length=2, max_length=2)] = [0.9, 0.999]
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    clip: Annotated[float, Field(ge=0)] = 1.0
    """Largest norm of the gradient; 0 for no limit."""
    dropout: Probability | None = None
    """Everywhere in the decoder and in the attachment head; the decoder's own if left out."""
    precision: Literal["float32", "bf16"] = "float32"
    eval_every: Positive | None = None
    """Steps between evaluations; the end of training only if left out."""
    save_every: Positive | None = None
    """Steps between checkpoints; as `eval_every` if left out."""
    keep: Positive = 2
    """How many checkpoints stay, the best and the last among them."""
    early_stopping_patience: Positive | None = None
    """Evaluations without a better validation perplexity after which training stops; the best
    model is the one kept."""
    log_every: Positive = 10
    """Steps between looks at the losses; every step is written to `metrics.jsonl` all the same."""
    seed: Annotated[int, Field(ge=0)] = 0
    report_to: list[Literal["tensorboard", "wandb"]] = []
    gradient_checkpointing: bool = False
    freeze: Annotated[str, Field(pattern=FREEZE_PATTERN)] = "none"
    """What is not trained: none, all-but-pushdown, lower or lower:N, as
    :mod:`pushdown_lm.adaptation` explains."""
    lora: LoraSection | None = None
    """Instead, adapters beside weights that stay as they are."""
    compile: bool = False
    data_workers: Annotated[int, Field(ge=0)] = 0
    """Processes that prepare batches beside each training process."""

    @model_validator(mode="after")
    def _consistent(self) -> TrainingSection:
        for one, other in (("steps", "epochs"), ("tokens_per_batch", "batch_size")):
            if (getattr(self, one) is None) == (getattr(self, other) is None):
                raise ValueError(f"{one}, {other}: expected exactly one of them")
        if self.lora is not None and self.freeze != "none":
            raise ValueError("freeze, lora: adapters leave all other weights frozen; choose one")
        if self.early_stopping_patience is not None:
            if self.eval_every is None:
                raise ValueError("eval_every: early stopping needs evaluations")
            if self.save_every not in (None, self.eval_every):
                raise ValueError(
                    f"save_every: early stopping keeps the best model, so checkpoints are made at "
                    f"evaluations, every {self.eval_every} steps; got {self.save_every}"
                )
        return self


class DataSection(_Section):
    """What the data should be like; checked against the data folder."""

    window: Positive | None = None
    """Tokens of a window of several sentences; null for an example a sentence."""


class Recipe(_Section):
    """One experiment."""

    name: str
    description: str = ""
    model: ModelSection = ModelSection()
    training: TrainingSection
    data: DataSection = DataSection()

    def to_yaml(self) -> str:
        """The whole recipe, nothing inherited: loads to an equal one."""
        values = self.model_dump()
        if self.model.pretrained is None:
            del values["model"]["pretrained"]
        else:
            values["model"] = self.model.model_dump(exclude_unset=True)
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


def _dropout_fields(known: set[str], dropout: float | None) -> dict[str, float]:
    return {} if dropout is None else {name: dropout for name in DROPOUT_FIELDS if name in known}


# ------------------------------------------------------------------ loading


def recipe_names() -> list[str]:
    """The recipes that come with the package."""
    folder = resources.files("pushdown_lm") / "recipes"
    return sorted(file.name[:-5] for file in folder.iterdir() if file.name.endswith(".yaml"))


def load_recipe(name_or_path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """A recipe by its name or from a YAML file, with overrides as ``training.lr=1e-3``.

    >>> load_recipe("wikitrees-small", ["training.lr=1e-3"]).training.lr
    0.001
    """
    values = {"name": Path(name_or_path).stem, **_with_parents(str(name_or_path), ())}
    for override in overrides:
        _override(values, override)
    try:
        return Recipe.model_validate(values)
    except ValidationError as error:
        messages = [_message(detail) for detail in error.errors(include_url=False)]
        raise RecipeError("; ".join(dict.fromkeys(messages))) from error


def _with_parents(name_or_path: str, children: tuple[str, ...]) -> dict[str, Any]:
    if name_or_path in children:
        raise RecipeError(f"inherits: {' -> '.join((*children, name_or_path))} goes in a circle")
    values = _read(name_or_path)
    parent = values.pop("inherits", None)
    if parent is None:
        return values
    if not isinstance(parent, str):
        raise RecipeError(f"{name_or_path}: inherits: expected a recipe's name, got {parent!r}")
    if _is_path(parent):
        parent = str(Path(name_or_path).parent / parent)
    inherited = _with_parents(parent, (*children, name_or_path))
    inherited.pop("name", None)
    return _merge(inherited, values)


def _is_path(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def _read(name_or_path: str) -> dict[str, Any]:
    if _is_path(name_or_path):
        text = Path(name_or_path).read_text(encoding="utf-8")
    elif name_or_path in recipe_names():
        file = resources.files("pushdown_lm") / "recipes" / f"{name_or_path}.yaml"
        text = file.read_text(encoding="utf-8")
    else:
        raise RecipeError(
            f"no recipe {name_or_path!r}: expected a YAML file or one of "
            f"{', '.join(recipe_names())}"
        )
    values = _parse(text, name_or_path)
    if not isinstance(values, dict):
        raise RecipeError(f"{name_or_path}: expected keys and values, got {values!r}")
    return values


class _Loader(yaml.SafeLoader):
    """YAML in which 1e-3 is a number, as in YAML 1.2 and everywhere else."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"^[-+]?[0-9]+[eE][-+]?[0-9]+$"), list("-+0123456789")
)


def _parse(text: str, place: str) -> Any:
    try:
        return yaml.load(text, _Loader)  # a SafeLoader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f"{place}:{mark.line + 1}:{mark.column + 1}" if mark else place
        raise RecipeError(f"{where}: {error.problem}") from error


def _merge(parent: Mapping[str, Any], child: Mapping[str, Any]) -> dict[str, Any]:
    """The child's values over the parent's, section by section.

    A pretrained model in the child replaces the parent's decoder, and the other way round; so do
    steps and epochs, and the two kinds of batch sizes.
    """
    merged = dict(parent)
    for one, other in _ALTERNATIVES:
        if child.get(one) is not None:
            merged.pop(other, None)
        if child.get(other) is not None:
            merged.pop(one, None)
    for key, value in child.items():
        earlier = merged.get(key)
        if isinstance(earlier, Mapping) and isinstance(value, Mapping):
            value = _merge(earlier, value)
        merged[key] = value
    return merged


_ALTERNATIVES = (
    ("decoder", "pretrained"),
    ("steps", "epochs"),
    ("tokens_per_batch", "batch_size"),
)


def _override(values: dict[str, Any], override: str) -> None:
    path, separator, text = override.partition("=")
    if not separator or not path.strip():
        raise RecipeError(f"--set: expected section.key=value, got {override!r}")
    nested: Any = _parse(text, f"--set {path}")
    for key in reversed(path.strip().split(".")):
        nested = {key: nested}
    values.update(_merge(values, nested))


_EXPECTED = {
    "float_type": "a number",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "bool_type": "true or false",
    "string_type": "text",
    "list_type": "a list",
    "model_type": "a section of keys",
    "model_attributes_type": "a section of keys",
    "string_pattern_mismatch": "all, none, first:N, last:N or a list of layers",
}


def _message(detail: Mapping[str, Any]) -> str:
    """One line for one error of pydantic, with the key's dotted path."""
    path, kind, got = list(detail["loc"]), detail["type"], detail["input"]
    if path == ["training", "freeze"]:
        return f"training.freeze: expected none, all-but-pushdown, lower or lower:N, got {got!r}"
    if path[:2] == ["model", "pushdown_layers"]:
        path, kind = path[:2], "string_pattern_mismatch"
    key = ".".join(str(part) for part in path)
    context = detail.get("ctx", {})
    if kind == "extra_forbidden":
        return f"{key}: no such key"
    if kind == "missing":
        return f"{key}: missing"
    if kind == "value_error":
        return f"{key}.{context['error']}"
    if kind in _EXPECTED:
        return f"{key}: expected {_EXPECTED[kind]}, got {got!r}"
    if kind == "literal_error":
        return f"{key}: expected {context['expected']}, got {got!r}"
    reason = detail["msg"].replace("Input should be", "expected").replace("List should", "should")
    return f"{key}: {reason}, got {got!r}"
