"""A training run: one folder from recipe to trained model.

OUT/recipe.yaml      the recipe, nothing inherited
OUT/versions.json    software, machine and data that the run was started with
OUT/metrics.jsonl    one line per step and per evaluation
OUT/checkpoint-N     where --resume continues
OUT/model            the trained model and its tokenizer
OUT/adapter          low-rank adapters alone, if a pretrained model was trained with them
OUT/metrics.json     how good it is, and how long it took
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import torch
from accelerate import PartialState  # type: ignore[import-untyped]
from accelerate.utils import set_seed  # type: ignore[import-untyped]

from pushdown_lm.console import error_console
from pushdown_lm.data.bracketing import bracket_data, longest_bracketed
from pushdown_lm.data.dataset import Data
from pushdown_lm.files import (
    LOCK,
    atomic_write,
    locked,
    verify_manifest,
    write_json,
)
from pushdown_lm.machine import peak_memory_megabytes, versions
from pushdown_lm.model.bracket_configuration import BracketConfig
from pushdown_lm.model.bracket_modeling import BracketForCausalLM
from pushdown_lm.model.configuration import PushdownConfig
from pushdown_lm.training.arguments import uses_bf16
from pushdown_lm.training.checkpoint import checkpoints, last_checkpoint
from pushdown_lm.training.lora import choose_trainable
from pushdown_lm.training.lower_output import keep_lower_output
from pushdown_lm.training.recipe import Recipe, RecipeError, load_recipe
from pushdown_lm.training.trainer import PushdownTrainer, TrainingError

RECIPE, VERSIONS, METRICS, MODEL = "recipe.yaml", "versions.json", "metrics.json", "model"


def run_recipe(
    recipe: Recipe, data: Data, out: str | Path, *, resume: bool = False
) -> dict[str, Any]:
    """Train the model of a recipe on a dataset, and return the metrics of the trained model.

    Args:
        out: the run folder; new or empty, unless ``resume`` continues the run in it.

    Raises:
        Interrupted: by SIGINT or SIGTERM, after saving a checkpoint.
        TrainingError, RecipeError, CheckpointError: the message says what is safe on disk.
    """
    run = Path(out).resolve()
    lock = locked(run, "run") if is_main_process() else nullcontext()
    with lock:
        return _run(recipe, data, run, resume=resume)


def _run(recipe: Recipe, data: Data, run: Path, *, resume: bool) -> dict[str, Any]:
    set_seed(recipe.training.seed)
    check_data(recipe, data)
    data.verify()
    data = data.take(recipe.data.share)
    if recipe.model.kind != "pushdown":
        data = bracket_data(data, typed=recipe.model.kind == "tg")
    model = recipe.build_model(data.tokenizer)
    check_lengths(model.config, data)
    parameters = choose_trainable(model, recipe.training.freeze, recipe.training.lora)
    lower = None
    if recipe.training.cache_lower:
        if isinstance(model, BracketForCausalLM):
            raise RecipeError("training.cache_lower: is for models with pushdown layers")
        lower = keep_lower_output(model, data, bf16=uses_bf16(recipe.training.precision))
    trainer = PushdownTrainer(model, recipe, data, run, lower)
    checkpoint: Path | None = None
    if resume:
        if is_finished(run):
            raise TrainingError(f"{run}: the run is finished; its model is in {run / MODEL}")
        _check_same_run(run, recipe, data)
        checkpoint = last_checkpoint(run) if checkpoints(run) else None
    elif trainer.is_main:
        _start_run(run, recipe, data, trainer.args.world_size)
    if trainer.is_main and parameters.trained < parameters.total:
        error_console().print(str(parameters))
    trainer.train_from(checkpoint, "--resume continues from it")
    metrics = {
        "training_seconds": trainer.seconds(),
        "trainable_parameters": parameters.trained,
        "parameters": parameters.total,
        "peak_memory_megabytes": peak_memory_megabytes(trainer.args.device),
        **trainer.final_metrics(),
    }
    trainer.save_final()
    if trainer.is_main:
        write_json(run / METRICS, metrics)
    return metrics


def is_main_process() -> bool:
    """Whether this is the process, among those of `torchrun`, that writes the run folder."""
    return bool(PartialState(cpu=not torch.accelerator.is_available()).is_main_process)


def is_finished(run: str | Path) -> bool:
    """Whether a run folder holds a trained model."""
    if not Path(run, METRICS).exists():
        return False
    verify_manifest(Path(run, MODEL))
    return True


def describe_training(run: str | Path) -> dict[str, Any]:
    """How the model of a finished run was made: the recipe and the final metrics."""
    metrics = json.loads(Path(run, METRICS).read_text(encoding="utf-8"))
    return {"recipe": load_recipe(Path(run, RECIPE)).model_dump(), "metrics": metrics}


def check_data(recipe: Recipe, data: Data) -> None:
    """Raise :class:`RecipeError` if the dataset is not of the kind that the recipe expects."""
    wanted, window = recipe.data.window, data.card["window"]
    if wanted not in (None, window):
        found = "one sentence per example" if window is None else f"windows of {window}"
        raise RecipeError(f"data.window: expected windows of {wanted} tokens, the data has {found}")
    if recipe.model.attention == "flex" and not torch.accelerator.is_available():
        raise RecipeError("model.attention: flex trains on a GPU only, and this machine has none")
    for name, split in data.card["splits"].items():
        share = split.get("differing_sentences", 0) / max(split["sentences"], 1)
        if share > 0.01:
            error_console().print(
                f"pushdown: {share:.0%} of the {name} sentences have other tokens than their text "
                "would have; a dataset built anew has the text's",
                highlight=False,
                soft_wrap=True,
            )
    if recipe.training.eval_every is not None and data.valid is None:
        raise RecipeError("training.eval_every: the data has no validation split")


def check_lengths(config: PushdownConfig | BracketConfig, data: Data) -> None:
    """Raise :class:`RecipeError` if an example is too long; say so if some are very deep."""
    splits = data.card["splits"]
    longest = max(split["longest_example"] for split in splits.values())
    if isinstance(config, BracketConfig):
        longest = longest_bracketed(data)
    if config.max_positions is not None and longest > config.max_positions:
        raise RecipeError(
            f"model.decoder.max_position_embeddings: the longest example has {longest:,} tokens, "
            f"the decoder takes {config.max_positions:,}"
        )
    if isinstance(config, BracketConfig):
        return
    deepest = max(split["max_depth"] for split in splits.values())
    if config.uses_tape and 0 < config.num_depths <= deepest:
        error_console().print(
            f"The data has depths up to {deepest}; those above {config.num_depths - 1} share one "
            "embedding (model.num_depths)."
        )


def _start_run(run: Path, recipe: Recipe, data: Data, processes: int) -> None:
    if any(path.name != LOCK for path in run.iterdir()):
        raise TrainingError(
            f"{run}: expected a new or empty folder, found files; --resume continues a run"
        )
    with atomic_write(run / RECIPE) as file:
        file.write(recipe.to_yaml())
    write_json(
        run / VERSIONS,
        {
            **versions(),
            "device": str(torch.accelerator.current_accelerator(True) or "cpu"),
            "precision": "bf16" if uses_bf16(recipe.training.precision) else "float32",
            "processes": processes,
            "threads": torch.get_num_threads(),
            "data": data.fingerprint,
            "data_folder": str(data.folder.resolve()),
        },
    )


def started_recipe(
    out: str | Path, name: str | None = None, overrides: Sequence[str] = ()
) -> Recipe:
    """The recipe that a run was started with; what is given again must agree with it."""
    run = Path(out)
    path = run / RECIPE
    if not path.is_file():
        raise TrainingError(f"{run}: expected a run to resume, found no {RECIPE}")
    recipe = load_recipe(path)
    if name is not None and (given := load_recipe(name).name) != recipe.name:
        raise RecipeError(
            f"{run}: the run was started with the recipe {recipe.name!r}, not {given!r}"
        )
    for override in overrides:
        changed = _differences(recipe, load_recipe(path, [override]))
        if changed:
            raise RecipeError(f"{run}: the run was started with another recipe: {changed}")
    return recipe


def started_data(out: str | Path) -> Path:
    """The folder of the dataset that a run was started with."""
    folder = _read_start(Path(out)).get("data_folder")
    if folder is None:
        raise TrainingError(f"{out}: {VERSIONS} does not name the dataset's folder; give --data")
    return Path(folder)


def _read_start(run: Path) -> dict[str, Any]:
    """What ``versions.json`` of a run says."""
    path = run / VERSIONS
    try:
        started = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(started, dict) and isinstance(started.get("data"), str):
            return started
    except FileNotFoundError:
        raise TrainingError(f"{path}: missing, so the run cannot be resumed") from None
    except (ValueError, RecursionError):
        pass
    raise TrainingError(f"{path}: expected the versions of a run, found other content")


def _differences(earlier: Recipe, now: Recipe) -> str:
    """The keys in which two recipes differ, with both values."""
    before, after = earlier.model_dump(), now.model_dump()
    return "; ".join(
        f"{section}.{key} was {before[section].get(key)!r} and is {value!r}"
        for section in ("model", "training", "data")
        for key, value in after[section].items()
        if before[section].get(key) != value
    )


def _check_same_run(run: Path, recipe: Recipe, data: Data) -> None:
    """A resumed run continues with the recipe and the data that it was started with."""
    if not (run / RECIPE).exists():
        raise TrainingError(f"{run}: expected a run to resume, found no {RECIPE}")
    changed = _differences(load_recipe(run / RECIPE), recipe)
    if changed:
        raise RecipeError(f"{run}: the run was started with another recipe: {changed}")
    if _read_start(run)["data"] != data.fingerprint:
        raise TrainingError(f"{run}: the run was started with other data than {data.folder}")
