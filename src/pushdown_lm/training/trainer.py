"""Training: Transformers' ``Trainer`` for models that predict tokens and attachments.

What this adds to the Trainer: batches by token budget, both losses averaged over all targets of an
optimizer step whatever the number of processes and accumulated parts, evaluation in sums over
tokens, checkpoints that are whole or not there, a log of every step that a resumed run continues
number for number, and a clean stop at Ctrl-C, SIGTERM or a loss that is not finite.
"""

from __future__ import annotations

import json
import math
import signal
import time
from collections.abc import Mapping
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NoReturn, cast

import torch
from accelerate.utils import set_seed  # type: ignore[import-untyped]
from safetensors.torch import save_file
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import (
    EarlyStoppingCallback,
    PrinterCallback,
    Trainer,
    TrainerCallback,
)
from transformers.trainer_callback import ExportableState, TrainerState
from transformers.trainer_utils import EvalLoopOutput, rotate_checkpoints
from transformers.utils.logging import disable_progress_bar

from pushdown_lm.data.batching import Collator, RandomBatches, Share, TokenBudgetBatches
from pushdown_lm.data.bracketing import BracketCollator, bracketed_lengths
from pushdown_lm.data.dataset import Data
from pushdown_lm.data.tokenization import model_tokenizer
from pushdown_lm.errors import Interrupted, PushdownError
from pushdown_lm.files import (
    FolderError,
    remove_unfinished,
    verify_manifest,
    whole_folder,
    write_json,
)
from pushdown_lm.machine import reset_peak_memory
from pushdown_lm.model.bracket_modeling import BracketForCausalLM
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.training.adapters import has_adapters, save_adapter
from pushdown_lm.training.arguments import training_arguments, uses_bf16
from pushdown_lm.training.checkpoint import (
    checkpoints,
    load_state,
    random_state,
    save_state,
    set_random_state,
)
from pushdown_lm.training.lora import merge_lora
from pushdown_lm.training.lower_output import LowerOutput, OutputCollator
from pushdown_lm.training.monitor import MetricsLog, ProgressCallback, StopSignals
from pushdown_lm.training.optimizers import muon_with_adamw
from pushdown_lm.training.recipe import Recipe, RecipeError

Batch = dict[str, Tensor]

SECONDS = "seconds.json"
"""In a checkpoint, how long training has taken to get there."""
METRICS_LOG = "metrics.jsonl"
"""One line per step and per evaluation of a run."""


class TrainingError(PushdownError):
    """Training cannot start or continue; the message says why and what is safe on disk."""


# ------------------------------------------------------------------ batches


class _EpochLoader(DataLoader[Any]):
    """A loader whose batch sampler can be told the epoch, as the Trainer does."""

    def set_epoch(self, epoch: int) -> None:
        cast(Share, self.batch_sampler).set_epoch(epoch)


@dataclass
class _Step:
    """One optimizer step, kept on the device until the losses are looked at."""

    number: int = 0
    learning_rate: float = 0.0
    gradient_norm: Tensor | None = None
    losses: list[Tensor] = field(default_factory=list)
    """``(2,)`` for each accumulated part: this process's share of both losses."""
    batches: list[Batch] = field(default_factory=list)


# ------------------------------------------------------------------ the trainer


class PushdownTrainer(Trainer):
    """Trains a model of this library on a dataset as a recipe says."""

    def __init__(
        self,
        model: PushdownForCausalLM | BracketForCausalLM,
        recipe: Recipe,
        data: Data,
        run: str | Path,
        lower: LowerOutput | None = None,
        *,
        label: str = "Training",
    ) -> None:
        self.recipe, self.lower = recipe, lower
        self.run_folder = Path(run).resolve()
        self.log_file = MetricsLog(self.run_folder / METRICS_LOG)
        self.signals = StopSignals()
        self._display = ExitStack()
        self._step, self._unseen = _Step(), list[_Step]()
        self._is_stopping = False
        self._began, self._seconds_before = time.monotonic(), 0.0
        self._evaluation, self._evaluated_at = dict[str, float](), -1
        callbacks: list[TrainerCallback] = [ProgressCallback(self._display, label)]
        if recipe.training.early_stopping_patience is not None:
            callbacks.append(EarlyStoppingCallback(recipe.training.early_stopping_patience))
        collator: Any = _collator(model)
        train: Any = data.train
        valid: Any = data.valid
        if lower is not None:
            collator, train = OutputCollator(collator), lower.dataset("train", train)
            valid = None if valid is None else lower.dataset("valid", valid)
        super().__init__(
            model=model,
            args=training_arguments(recipe, self.run_folder),
            data_collator=collator,
            train_dataset=train,
            eval_dataset=valid,
            processing_class=model_tokenizer(data.tokenizer),
            callbacks=callbacks,
        )
        self.remove_callback(PrinterCallback)
        disable_progress_bar()  # of writing weights
        set_seed(recipe.training.seed, device_specific=True)

    def seconds(self) -> float:
        """How long training has taken so far, in all parts of an interrupted run."""
        return self._seconds_before + time.monotonic() - self._began

    @property
    def is_main(self) -> bool:
        return self.accelerator.is_main_process

    @property
    def was_interrupted(self) -> bool:
        """Whether a signal ended training before its last step."""
        return self._is_stopping and self.state.global_step < self.state.max_steps

    def train(self, resume_from_checkpoint: Any = None, *args: Any, **kwargs: Any) -> Any:
        self._began = time.monotonic()
        if resume_from_checkpoint is not None:
            self._seconds_before = _read_seconds(Path(resume_from_checkpoint, SECONDS))
            self.args.eval_on_start = False
            state = TrainerState.load_from_json(f"{resume_from_checkpoint}/trainer_state.json")
            if state.global_step >= state.max_steps:  # killed after the last step
                self._load_from_checkpoint(resume_from_checkpoint)
                self.state = state
                if self.args.load_best_model_at_end and state.best_model_checkpoint is not None:
                    self._load_best_model()
                return None
        with self.signals.noted(), self._display:
            return super().train(resume_from_checkpoint, *args, **kwargs)

    def train_from(self, checkpoint: Path | None, how_to_continue: str) -> None:
        """Train from a checkpoint of this run, or from the start, to the end.

        Raises:
            Interrupted: a signal came; a checkpoint is saved, and the message says how to continue.
        """
        if self.is_main:
            remove_unfinished(self.run_folder)
            self.log_file.forget_after(int(checkpoint.name.split("-")[1]) if checkpoint else 0)
        reset_peak_memory(self.args.device)
        self.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
        if self.was_interrupted:
            saved = checkpoints(self.run_folder)[-1]
            raise Interrupted(
                self.signals.received or signal.SIGTERM,
                f"stopped after saving {saved}; {how_to_continue}",
            )

    def final_metrics(self) -> dict[str, Any]:
        """The metrics of the model as training has left it."""
        metrics: dict[str, Any] = {"steps": self.state.global_step}
        if self.eval_dataset is None:
            return metrics
        if self.args.load_best_model_at_end or self._evaluated_at != self.state.global_step:
            self._evaluation = self.evaluate(metric_key_prefix="final")
        return metrics | _without_prefix(self._evaluation)

    # -------------------------------------------------------------- optimizer

    def create_optimizer(self, model: Any = None) -> torch.optim.Optimizer:
        training = self.recipe.training
        if training.optimizer == "muon" and self.optimizer is None:
            bare = self.accelerator.unwrap_model(self.model if model is None else model)
            self.optimizer = muon_with_adamw(
                bare,
                self.get_decay_parameter_names(bare),
                lr=training.lr,
                weight_decay=training.weight_decay,
                betas=(training.betas[0], training.betas[1]),
                epsilon=training.epsilon,
            )
        return super().create_optimizer(model)

    def create_scheduler(self, num_training_steps: int, *args: Any, **kwargs: Any) -> Any:
        if self.recipe.training.schedule == "wsd":
            decay = round(self.recipe.training.decay_share * num_training_steps)
            self.args.lr_scheduler_kwargs = {"num_decay_steps": decay, "decay_type": "linear"}
        return super().create_scheduler(num_training_steps, *args, **kwargs)

    # -------------------------------------------------------------- batches

    def _share_of_step(self, name: str) -> int:
        """What one forward pass takes of a step's tokens or sentences."""
        whole = getattr(self.recipe.training, name)
        parts = self.args.world_size * self.args.gradient_accumulation_steps
        if whole < parts or (name == "batch_size" and whole % parts):
            raise RecipeError(
                f"training.{name}: expected a multiple of {parts} (processes x "
                f"gradient_accumulation), got {whole}"
            )
        return int(whole // parts)

    def _loader(self, dataset: Any, batches: Any) -> _EpochLoader:
        return _EpochLoader(
            dataset,
            batch_sampler=Share(batches, self.args.process_index, self.args.world_size),
            collate_fn=self.data_collator,
            num_workers=self.args.dataloader_num_workers,
            pin_memory=self.args.device.type == "cuda",
            generator=torch.Generator(),  # so that loaders leave the training's own alone
        )

    def get_train_dataloader(self) -> DataLoader[Any]:
        dataset, training = cast(Any, self.train_dataset), self.recipe.training
        if training.batch_size is not None:
            size = self._share_of_step("batch_size")
            per_step = self.args.world_size * self.args.gradient_accumulation_steps
            lengths = dataset["length"][:]
            batches: Any = RandomBatches(lengths, size, seed=training.seed, per_step=per_step)
            return self._loader(dataset, batches)
        budget = self._share_of_step("tokens_per_batch")
        is_bracketed = isinstance(self.data_collator, BracketCollator)
        batches = TokenBudgetBatches(
            dataset["length"][:],
            budget,
            seed=training.seed,
            widths=bracketed_lengths(dataset) if is_bracketed else None,
        )
        return self._loader(dataset, batches)

    def get_eval_dataloader(self, eval_dataset: Any = None) -> DataLoader[Any]:
        dataset = cast(Any, self.eval_dataset if eval_dataset is None else eval_dataset)
        lengths = dataset["length"][:]
        if self.recipe.training.batch_size is not None:
            budget = self._share_of_step("batch_size") * max(lengths)
        else:
            budget = max(self._share_of_step("tokens_per_batch"), max(lengths))
        return self._loader(dataset, TokenBudgetBatches(lengths, budget, seed=0, shuffle=False))

    # -------------------------------------------------------------- losses

    def _get_num_items_in_batch(self, batch_samples: list[Batch], device: torch.device) -> Any:
        """The targets of the whole optimizer step, over all its parts and processes: ``(2,)``."""
        model = self.accelerator.unwrap_model(self.model)
        counts = sum(model.count_targets(**batch) for batch in batch_samples)
        return self.accelerator.reduce(cast(Tensor, counts).to(device), "sum")

    def compute_loss(
        self,
        model: Any,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """This batch's part of the step's loss.

        Each process divides its sums by the step's global counts. The processes' gradients are
        averaged afterwards, so the loss is scaled by their number.
        """
        tokens, attachments = num_items_in_batch
        outputs = self._run_model(model, inputs, tokens, attachments)
        self._step.batches.append(inputs)
        losses = [outputs.lm_loss]
        if outputs.attachment_loss is not None:
            losses.append(outputs.attachment_loss)
        self._step.losses.append(torch.stack(losses).detach())
        loss = outputs.loss * self.accelerator.num_processes
        return (loss, outputs) if return_outputs else loss

    def name_losses(self, lm: float, *attachment: float) -> dict[str, float]:
        """The losses of a step for the log: the one that is minimized, and its parts."""
        config = self.accelerator.unwrap_model(self.model).config
        weight = getattr(config, "attachment_loss_weight", 0.0)
        named = {"loss": lm + weight * sum(attachment), "lm_loss": lm}
        return {**named, "attachment_loss": attachment[0]} if attachment else named

    def _run_model(self, model: Any, batch: Batch, tokens: Any, attachments: Any) -> Any:
        """The model's output, its losses divided by the numbers of targets."""
        counts = {"num_items_in_batch": tokens, "num_attachments_in_batch": attachments}
        with self.lower_output_used(batch):
            return model(**batch, **counts)

    def lower_output_used(self, batch: Batch) -> AbstractContextManager[None]:
        """Where the model runs on a batch without the layers whose output is kept, if it is."""
        if self.lower is None:
            return nullcontext()
        return self.lower.used(self.accelerator.unwrap_model(self.model), batch)

    def autocast_smart_context_manager(self, cache_enabled: bool | None = True) -> Any:
        """The recipe's precision. Outputs stay in it: Accelerate's own copies logits to float32."""
        bf16 = uses_bf16(self.recipe.training.precision)
        return torch.autocast(self.args.device.type, torch.bfloat16, enabled=bf16)

    def floating_point_ops(self, inputs: Any) -> int:
        return 0

    def _maybe_log_save_evaluate(
        self, tr_loss: Any, grad_norm: Any, *args: Any, **kwargs: Any
    ) -> None:
        if self._step.losses:
            self._step.number = self.state.global_step
            self._step.learning_rate = kwargs["learning_rate"]
            self._step.gradient_norm = _plain_tensor(grad_norm).detach()
            self._unseen.append(self._step)
            self._step = _Step()
        due = self.state.global_step % self.recipe.training.log_every == 0
        control = self.control
        if due or control.should_save or control.should_evaluate or control.should_training_stop:
            self._look_at_losses()
        if self._should_stop(due):
            self._is_stopping = control.should_save = control.should_training_stop = True
            self._look_at_losses()
        super()._maybe_log_save_evaluate(tr_loss, grad_norm, *args, **kwargs)

    def _should_stop(self, due: bool) -> bool:
        """Whether a signal came; several processes agree on it at every `log_every` steps."""
        received = self.signals.received is not None
        if self.accelerator.num_processes == 1:
            return received
        flag = torch.tensor(float(received), device=self.args.device)
        return due and bool(self.accelerator.reduce(flag, "sum") > 0)

    def _look_at_losses(self) -> None:
        """Log the losses of the steps since the last look; stop if one is not finite."""
        steps, self._unseen = self._unseen, []
        if not steps:
            return
        own = torch.stack([torch.stack(step.losses).sum(0) for step in steps])  # (steps, 2)
        norms = torch.stack([cast(Tensor, step.gradient_norm) for step in steps]).tolist()
        whole = cast(Tensor, self.accelerator.reduce(own.clone(), "sum"))
        records: list[dict[str, Any]] = []
        for step, losses, norm in zip(steps, whole.tolist(), norms, strict=True):
            record = self.name_losses(*losses)
            record |= {"gradient_norm": norm, "learning_rate": step.learning_rate}
            if not all(map(math.isfinite, record.values())):
                self._stop_at(step, record)
            records.append(record)
            if self.is_main:
                self.log_file.write({"step": step.number, "kind": "train", **record})
        mean = {name: sum(record[name] for record in records) / len(records) for name in records[0]}
        self.log({**mean, "learning_rate": steps[-1].learning_rate})

    def _stop_at(self, step: _Step, record: Mapping[str, float]) -> NoReturn:
        """Save the batch of a step whose loss or gradient is not finite, and raise."""
        process = self.args.process_index
        path = self.run_folder / f"not-finite-step{step.number}-process{process}.safetensors"
        tensors = {
            f"{part}.{name}": tensor.contiguous()
            for part, batch in enumerate(step.batches)
            for name, tensor in batch.items()
        }
        save_file(tensors, path)
        numbers = ", ".join(f"{name} {value:.4g}" for name, value in record.items())
        raise TrainingError(
            f"step {step.number}: the loss or its gradient is not finite ({numbers}); the batch is "
            f"saved in {path}; {self._last_saved()}"
        )

    def _last_saved(self) -> str:
        saved = checkpoints(self.run_folder)
        return f"the last checkpoint is {saved[-1].name}" if saved else "there is no checkpoint yet"

    # -------------------------------------------------------------- evaluation

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        metrics = super().evaluate(*args, **kwargs)
        if kwargs.get("metric_key_prefix", "eval") == "eval":
            step = self.state.global_step
            self._evaluation, self._evaluated_at = metrics, step
            if self.is_main:
                self.log_file.write({"step": step, "kind": "eval", **_without_prefix(metrics)})
        return metrics

    @torch.no_grad()
    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """Losses, perplexity given the gold parse and attachment accuracy, from sums over targets.

        No logits outlive their batch.
        """
        model: Any = self._wrap_model(cast(Any, self.model), training=False)
        if not self.accelerator._models and model is self.model:
            model = self.accelerator.prepare_model(model, evaluation_mode=True)
        model.eval()
        share = cast(Share, dataloader.batch_sampler)
        bare = self.accelerator.unwrap_model(self.model)
        config = bare.config
        sums = torch.zeros(6, dtype=torch.float64, device=self.args.device)
        for turn, inputs in enumerate(dataloader):
            batch = self._prepare_inputs(inputs)
            with self.compute_loss_context_manager():
                outputs = self._run_model(model, batch, 1, 1)
            if turn * share.world + share.rank < len(share.batches):
                sums += _evaluation_sums(batch, outputs, bare)
        lm, tokens, attachment, attachments, correct, examples = cast(
            Tensor, self.accelerator.reduce(sums, "sum")
        ).tolist()
        metrics = {"lm_loss": lm / max(tokens, 1)}
        metrics["loss"] = metrics["lm_loss"]
        metrics["perplexity"] = math.exp(min(metrics["lm_loss"], 700.0))
        if getattr(config, "attachment_head", None) is not None:
            metrics["attachment_loss"] = attachment / max(attachments, 1)
            metrics["attachment_accuracy"] = correct / max(attachments, 1)
            metrics["loss"] += config.attachment_loss_weight * metrics["attachment_loss"]
        return EvalLoopOutput(
            predictions=cast(Any, None),
            label_ids=None,
            metrics={f"{metric_key_prefix}_{name}": value for name, value in metrics.items()},
            num_samples=int(examples),
        )

    # -------------------------------------------------------------- checkpoints

    def _save_checkpoint(self, model: Any, trial: Any) -> None:
        folder = self.run_folder / f"checkpoint-{self.state.global_step}"
        if self.state.best_global_step == self.state.global_step:
            self.state.best_model_checkpoint = str(folder)
        try:
            with self._whole_folder(folder) as staging:
                self.save_model(str(staging), _internal_call=True)
                self._save_optimizer_and_scheduler(str(staging))
                self._save_rng_state(str(staging))
                if self.args.should_save:
                    write_json(staging / SECONDS, self.seconds())
                    self._note_callbacks()
                    self.state.save_to_json(str(staging / "trainer_state.json"))
        except FolderError as error:
            raise TrainingError(f"{error}; {self._last_saved()}, intact") from error
        if self.args.should_save:
            rotate_checkpoints(
                str(self.run_folder),
                save_total_limit=self.args.save_total_limit,
                best_model_checkpoint=self.state.best_model_checkpoint,
            )

    def _whole_folder(self, folder: Path) -> Any:
        return whole_folder(
            folder, is_main=self.is_main, barrier=self.accelerator.wait_for_everyone
        )

    def _note_callbacks(self) -> None:
        noted = cast(dict[str, Any], self.state.stateful_callbacks)
        for part in (*self.callback_handler.callbacks, self.control):
            if isinstance(part, ExportableState):
                noted[type(part).__name__] = part.state()

    def save_final(self) -> Path:
        """Write the model and its tokenizer to ``model/``, low-rank adapters to ``adapter/``."""
        if self.is_fsdp_enabled:  # whole weights, whatever the checkpoints hold
            self.accelerator.state.fsdp_plugin.set_state_dict_type("FULL_STATE_DICT")
        bare, base = self.accelerator.unwrap_model(self.model), self.recipe.model.pretrained
        if self.is_main and base is not None and has_adapters(bare) and not self._is_sharded:
            tokenizer = cast(Any, self.processing_class)
            save_adapter(bare, tokenizer, base, self.run_folder / "adapter")
        merge_lora(bare)
        with self._whole_folder(self.run_folder / "model") as staging:
            self.save_model(str(staging), _internal_call=True)
        return self.run_folder / "model"

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        super()._save(output_dir, state_dict)
        if output_dir is not None:
            Path(output_dir, "training_args.bin").unlink(missing_ok=True)  # a pickle

    def _load_best_model(self) -> None:
        verify_manifest(str(self.state.best_model_checkpoint))
        super()._load_best_model()

    @property
    def _is_sharded(self) -> bool:
        """Whether Accelerate itself keeps the optimizer, in pieces."""
        return bool(self.is_fsdp_enabled or self.is_deepspeed_enabled)

    def _save_optimizer_and_scheduler(self, output_dir: str) -> None:
        if self._is_sharded:
            super()._save_optimizer_and_scheduler(output_dir)
        elif self.args.should_save:
            for name in ("optimizer", "lr_scheduler"):
                state = getattr(self, name).state_dict()
                save_state(Path(output_dir, f"{name}.safetensors"), state)

    def _load_optimizer_and_scheduler(self, checkpoint: str | None) -> None:
        if checkpoint is None or self._is_sharded:
            super()._load_optimizer_and_scheduler(checkpoint)
            return
        for name in ("optimizer", "lr_scheduler"):
            getattr(self, name).load_state_dict(load_state(Path(checkpoint, f"{name}.safetensors")))

    def _rng_file(self, folder: str) -> Path:
        return Path(folder, f"random-{self.args.process_index}.safetensors")

    def _save_rng_state(self, output_dir: str) -> None:
        save_state(self._rng_file(output_dir), random_state(self.args.device))

    def _load_rng_state(self, checkpoint: str | None) -> None:
        if checkpoint is not None and self._rng_file(checkpoint).exists():
            set_random_state(load_state(self._rng_file(checkpoint)), self.args.device)


def _collator(model: PushdownForCausalLM | BracketForCausalLM) -> Collator | BracketCollator:
    pad_id = cast(int, model.config.pad_token_id)
    if isinstance(model, BracketForCausalLM):
        return BracketCollator(model.config.nonterminals, pad_id)
    return Collator(pad_id)


def _read_seconds(path: Path) -> float:
    """Checkpoints of older versions do not say."""
    return float(json.loads(path.read_text(encoding="utf-8"))) if path.is_file() else 0.0


def _without_prefix(metrics: Mapping[str, float]) -> dict[str, float]:
    """Metrics of an evaluation by their own names, without times, which are never the same."""
    names = (
        "loss",
        "answer_loss",
        "lm_loss",
        "attachment_loss",
        "perplexity",
        "attachment_accuracy",
    )
    plain = {name.partition("_")[2]: value for name, value in metrics.items()}
    return {name: plain[name] for name in names if name in plain}


def _plain_tensor(value: Any) -> Tensor:
    """A gradient norm as an ordinary tensor, also from sharded parameters."""
    return value.full_tensor() if hasattr(value, "full_tensor") else torch.as_tensor(value)


def _evaluation_sums(batch: Batch, outputs: Any, model: Any) -> Tensor:
    """Loss and number of tokens, of attachments, right attachments, examples: ``(6,)``."""
    tokens, attachments = model.count_targets(**batch)
    zero = torch.zeros_like(outputs.lm_loss)
    attachment_loss = correct = zero
    if outputs.attachment_loss is not None:
        attachment_loss = outputs.attachment_loss
        correct = (outputs.attachment_logits.argmax(-1) == outputs.attachment_targets).sum()
    sums = (
        outputs.lm_loss,
        tokens,
        attachment_loss,
        attachments,
        correct,
        zero + len(batch["input_ids"]),
    )
    return torch.stack([value.double() for value in sums])
