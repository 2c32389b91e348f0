"""The Trainer's own settings for a recipe."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import torch
from transformers import TrainingArguments

from pushdown_lm.machine import multiplies_bf16
from pushdown_lm.training.recipe import Recipe, RecipeError

BEST_METRIC = "eval_perplexity"


def training_arguments(recipe: Recipe, run: Path) -> TrainingArguments:
    """The Trainer's own settings for a recipe, but for the precision, which is the trainer's."""
    training = recipe.training
    for package in training.report_to:
        if find_spec(package) is None:
            raise RecipeError(
                f"training.report_to: {package} is not installed: pip install {package}"
            )
    schedule: str = training.schedule
    if schedule == "constant" and training.warmup_steps:
        schedule = "constant_with_warmup"
    elif schedule == "wsd":
        schedule = "warmup_stable_decay"
    save_every = training.save_every or training.eval_every
    stops_early = training.early_stopping_patience is not None
    return TrainingArguments(
        output_dir=str(run),
        max_steps=training.steps or -1,
        num_train_epochs=training.epochs or 1.0,
        gradient_accumulation_steps=training.gradient_accumulation,
        learning_rate=training.lr,
        lr_scheduler_type=schedule,
        warmup_steps=training.warmup_steps,
        weight_decay=training.weight_decay,
        adam_beta1=training.betas[0],
        adam_beta2=training.betas[1],
        adam_epsilon=training.epsilon,
        max_grad_norm=training.clip,
        gradient_checkpointing=training.gradient_checkpointing,
        torch_compile=training.compile,
        eval_strategy="steps" if training.eval_every else "no",
        eval_on_start=recipe.model.pretrained is not None and training.eval_every is not None,
        eval_steps=training.eval_every,
        save_strategy="steps" if save_every else "no",
        save_steps=save_every or 0,
        save_total_limit=training.keep,
        load_best_model_at_end=stops_early,
        metric_for_best_model=BEST_METRIC if stops_early else None,
        greater_is_better=False,
        restore_callback_states_from_checkpoint=True,
        logging_strategy="no",
        logging_nan_inf_filter=False,
        report_to=list(training.report_to),
        seed=training.seed,
        use_cpu=not torch.accelerator.is_available(),
        ddp_find_unused_parameters=False,
        dataloader_num_workers=training.data_workers,
        disable_tqdm=True,
        log_level="error",
        log_level_replica="error",
    )


def uses_bf16(precision: str) -> bool:
    """Whether a recipe's precision means bfloat16 on this machine."""
    device = torch.accelerator.current_accelerator(True)
    return precision == "bf16" or (
        precision == "auto" and multiplies_bf16("cpu" if device is None else device.type)
    )
