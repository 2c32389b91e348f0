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
from pydantic import Field, ValidationError, model_validator

from pushdown_lm.errors import ConfigError, PushdownError
from pushdown_lm.model.settings import MAX_INTEGER, ModelSettings, Positive, Section

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from pushdown_lm.model.bracket_modeling import BracketForCausalLM
    from pushdown_lm.model.modeling import PushdownForCausalLM

Probability = Annotated[float, Field(ge=0, lt=1)]
Precision = Literal["float32", "bf16", "auto"]

FREEZE_PATTERN = r"^(none|all-but-pushdown|lower(:[1-9][0-9]*)?)$"
"""The choices of `training.freeze`."""


class RecipeError(PushdownError):
    """A recipe that cannot be followed: `training.lr: expected a number, got 'fast'`."""


class LoraSection(Section):
    """Low-rank adapters, merged into the weights when the trained model is saved."""

    rank: Positive = 8
    alpha: Annotated[float, Field(gt=0)] | None = None
    """The adapters are scaled by alpha / rank; 2 x rank if left out."""
    dropout: Probability = 0.0
    targets: list[str] | None = None
    """Names of the adapted modules; the linear maps of the attention if left out."""


class TrainingSection(Section):
    """The optimisation. Batch sizes are those of one optimizer step, over all processes."""

    steps: Positive | None = None
    """Optimizer steps, or"""
    epochs: Annotated[float, Field(gt=0)] | None = None
    """passes over the training data: one of the two."""
    tokens_per_batch: Positive | None = None
    """Tokens of a step, padding included, in batches of sentences of like length (of models that
    read brackets, those of the words alone), or"""
    batch_size: Positive | None = None
    """sentences (or windows) of a step, drawn at random: one of the two."""
    gradient_accumulation: Positive = 1
    """Into how many parts each process cuts its share of a step, to save memory."""
    optimizer: Literal["adamw", "muon"] = "adamw"
    """AdamW for all weights, or Muon for the matrices beside it
    (:mod:`pushdown_lm.training.optimizers`)."""
    lr: Annotated[float, Field(gt=0)] = 1e-3
    """The highest learning rate."""
    schedule: Literal["cosine", "constant", "linear", "inverse_sqrt", "wsd"] = "cosine"
    """Of the learning rate after its warm-up; cosine and linear go down to 0, and wsd (warm-up,
    stable, decay) does so in the last `decay_share` of the steps."""
    decay_share: Annotated[float, Field(gt=0, lt=1)] = 0.2
    """Of the steps, with schedule wsd."""
    warmup_steps: Annotated[int, Field(ge=0, le=MAX_INTEGER)] = 0
    """Steps of linear growth at the start."""
    weight_decay: Annotated[float, Field(ge=0)] = 0.0
    betas: Annotated[list[Probability], Field(min_length=2, max_length=2)] = [0.9, 0.999]
    epsilon: Annotated[float, Field(gt=0)] = 1e-8
    clip: Annotated[float, Field(ge=0)] = 1.0
    """Largest norm of the gradient; 0 for no limit."""
    dropout: Probability | None = None
    """Everywhere in the decoder and in the attachment head; the decoder's own if left out."""
    precision: Precision = "float32"
    """Of the products in forward and backward passes; auto is bf16 where the device has
    instructions for it."""
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
    seed: Annotated[int, Field(ge=0, le=MAX_INTEGER)] = 0
    report_to: list[Literal["tensorboard", "wandb"]] = []
    gradient_checkpointing: bool = False
    freeze: Annotated[str, Field(pattern=FREEZE_PATTERN)] = "none"
    """What is not trained: none, all-but-pushdown, lower or lower:N, as
    :mod:`pushdown_lm.training.freezing` explains."""
    lora: LoraSection | None = None
    """Adapters beside weights that stay as they are; with freeze lower or lower:N, in the layers
    above only."""
    cache_lower: bool = False
    """Compute what frozen lower layers compute once, keep it beside the data, and train without
    them (:mod:`pushdown_lm.training.lower_output`)."""
    compile: bool = False
    data_workers: Annotated[int, Field(ge=0, le=1024)] = 0
    """Processes that prepare batches beside each training process."""

    @model_validator(mode="after")
    def _consistent(self) -> TrainingSection:
        for one, other in (("steps", "epochs"), ("tokens_per_batch", "batch_size")):
            if (getattr(self, one) is None) == (getattr(self, other) is None):
                raise ValueError(f"{one}, {other}: expected exactly one of them")
        if self.lora is not None and self.freeze == "all-but-pushdown":
            raise ValueError("freeze, lora: adapters leave all other weights frozen; choose one")
        if self.cache_lower and not self.freeze.startswith("lower"):
            raise ValueError(f"cache_lower: expected freeze lower or lower:N, got {self.freeze}")
        if self.cache_lower and self.compile:
            raise ValueError("cache_lower, compile: a compiled model runs all layers; choose one")
        if self.early_stopping_patience is not None:
            if self.eval_every is None:
                raise ValueError("eval_every: early stopping needs evaluations")
            if self.save_every not in (None, self.eval_every):
                raise ValueError(
                    f"save_every: early stopping keeps the best model, so checkpoints are made at "
                    f"evaluations, every {self.eval_every} steps; got {self.save_every}"
                )
        return self


class DataSection(Section):
    """What the data should be like, checked against the data folder, and how much of it is read."""

    window: Positive | None = None
    """Tokens of a window of several sentences; null for one example per sentence."""
    share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """How much of the training examples is read, drawn at random; smaller shares are parts of
    larger ones."""


class Recipe(Section):
    """One experiment."""

    name: str
    title: str = ""
    """What tables call the model; the name if left out."""
    description: str = ""
    model: ModelSettings = ModelSettings()
    training: TrainingSection
    data: DataSection = DataSection()

    @model_validator(mode="after")
    def _consistent(self) -> Recipe:
        if self.training.cache_lower and self.data.share < 1:
            raise ValueError("data.share, training.cache_lower: choose one of them")
        return self

    def build_model(
        self, tokenizer: PreTrainedTokenizerBase
    ) -> PushdownForCausalLM | BracketForCausalLM:
        """The model for a tokenizer; a vocabulary of another size is an error."""
        from pushdown_lm.model.factory import build_model

        try:
            return build_model(self.model, tokenizer, self.training.dropout)
        except ConfigError as error:
            raise RecipeError(f"model.{error}") from error

    def to_yaml(self) -> str:
        """The whole recipe, nothing inherited: loads to an equal one."""
        values = self.model_dump()
        if self.model.pretrained is None:
            del values["model"]["pretrained"]
        else:
            values["model"] = self.model.model_dump(exclude_unset=True)
        return yaml.safe_dump(values, sort_keys=False, allow_unicode=True)


# ------------------------------------------------------------------ loading


ABLATIONS, SHARES = "ablations", "shares"
"""The folders of recipes that change one thing in english, and that read a share of its data."""


def recipe_names(folder: str = "") -> list[str]:
    """The recipes that come with the package, or with a folder of it."""
    files = (resources.files("pushdown_lm") / "recipes" / folder).iterdir()
    names = sorted(file.name[:-5] for file in files if file.name.endswith(".yaml"))
    return [f"{folder}/{name}" for name in names] if folder else names


def load_recipe(name_or_path: str | Path, overrides: Iterable[str] = ()) -> Recipe:
    """A recipe by its name or from a YAML file, with overrides as ``training.lr=1e-3``.

    >>> load_recipe("wikitrees-small", ["training.lr=1e-3"]).training.lr
    0.001
    """
    values = {"name": Path(name_or_path).stem, **_with_parents(str(name_or_path), ())}
    values.setdefault("title", values["name"])
    for override in overrides:
        _override(values, override)
    if any(not isinstance(key, str) for key in values):
        raise RecipeError(f"{name_or_path}: expected names as keys, got {list(values)!r:.80}")
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
    for own in ("name", "title"):
        inherited.pop(own, None)
    return _merge(inherited, values)


def _is_path(name: str) -> bool:
    return name.endswith((".yaml", ".yml"))


def _read(name_or_path: str) -> dict[str, Any]:
    if _is_path(name_or_path):
        try:
            text = Path(name_or_path).read_text(encoding="utf-8")
        except UnicodeDecodeError as error:
            raise RecipeError(f"{name_or_path}: expected UTF-8, {error}") from None
    elif name_or_path in [*recipe_names(), *recipe_names(ABLATIONS), *recipe_names(SHARES)]:
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
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise RecipeError(f"{place}: {' '.join(str(error).split())[:200]}") from error
    except RecursionError:
        raise RecipeError(f"{place}: nested too deeply") from None


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
    keys = path.strip().split(".")
    if len(keys) > 16 or not all(keys):
        raise RecipeError(f"--set: expected section.key=value, got {override[:60]!r}")
    nested: Any = _parse(text, f"--set {path}")
    for key in reversed(keys):
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
