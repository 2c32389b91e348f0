"""The Trainer for prompts that end with an answer: its losses, and what it predicts.

Shapes: B prompts, T positions, V vocabulary.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from accelerate.utils import gather_object  # type: ignore[import-untyped]
from datasets import Dataset
from torch import Tensor
from torch.utils.data import DataLoader
from transformers import PreTrainedTokenizerFast
from transformers.trainer_utils import EvalLoopOutput

from pushdown_lm.data.batching import IGNORED, Collator, Share
from pushdown_lm.experiments.prompts import Prompt
from pushdown_lm.model.classification import PushdownForSequenceClassification
from pushdown_lm.model.cross_entropy import cross_entropies
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.model.output import next_tokens
from pushdown_lm.training.lower_output import LowerOutput, OutputCollator
from pushdown_lm.training.recipe import Recipe
from pushdown_lm.training.trainer import Batch, PushdownTrainer

BEST_METRIC = "eval_answer_loss"


@dataclass(frozen=True)
class PromptData:
    """Prompts to train on, and others that are held out for early stopping."""

    train: Dataset
    valid: Dataset | None
    tokenizer: PreTrainedTokenizerFast
    folder: Path
    """Where the output of lower layers is kept, if it is."""

    @classmethod
    def of(
        cls,
        train: Sequence[Prompt],
        held_out: Sequence[Prompt],
        tokenizer: PreTrainedTokenizerFast,
        folder: Path,
    ) -> PromptData:
        return cls(_dataset(train), _dataset(held_out) if held_out else None, tokenizer, folder)

    @property
    def splits(self) -> dict[str, Dataset]:
        return {"train": self.train} | ({} if self.valid is None else {"valid": self.valid})

    @property
    def fingerprint(self) -> str:
        """A hash of the tokens, which is all that lower layers see."""
        tokens = {name: split["input_ids"][:] for name, split in self.splits.items()}
        return hashlib.sha256(json.dumps(tokens).encode()).hexdigest()


def _dataset(prompts: Sequence[Prompt]) -> Dataset:
    rows = [{**asdict(prompt), "length": len(prompt.input_ids)} for prompt in prompts]
    return Dataset.from_list(rows)


class PromptCollator(Collator):
    """Batches with two more entries: where the answer starts, and what it is. ``(B,)``"""

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        return {
            **super().__call__(examples),
            "answer": torch.tensor([example["answer"] for example in examples]),
            "label": torch.tensor([float(example["label"]) for example in examples]),
        }


# ------------------------------------------------------------------ losses


def prompt_targets(model: PushdownForCausalLM, batch: Batch) -> tuple[Tensor, Tensor]:
    """The tokens of the answers, and all others, that are predicted: ``(B, T)`` both.

    The answer is the tokens of the label and the EOS after them. A ROOT that no token predicts is
    not scored.
    """
    targets = batch["labels"]
    if not model.config.shared_boundary:
        roots = batch["input_ids"].eq(model.config.bos_id)
        targets = targets.masked_fill(roots, IGNORED)
    position = torch.arange(targets.shape[1], device=targets.device)
    is_answer = position >= batch["answer"][:, None]
    return targets.masked_fill(~is_answer, IGNORED), targets.masked_fill(is_answer, IGNORED)


def count_prompt_targets(model: PushdownForCausalLM, batch: Batch) -> Tensor:
    """How many answers' tokens and how many others a batch has: ``(2,)``.

    A regression has one answer per prompt.
    """
    answers, others = ((part[:, 1:] != IGNORED).sum() for part in prompt_targets(model, batch))
    if isinstance(model, PushdownForSequenceClassification):
        answers = torch.full_like(answers, len(batch["input_ids"]))
    return torch.stack([answers, others])


def prompt_losses(model: Any, batch: Batch, bare: PushdownForCausalLM) -> Tensor:
    """The summed losses of the answers, and of all other tokens: ``(2,)``.

    The loss of an answer is the cross-entropy of its tokens, or the squared error of a regression.

    Args:
        model: called for the outputs; may be wrapped.
        bare: the same model, not wrapped.
    """
    answers, others = (next_tokens(part) for part in prompt_targets(bare, batch))
    names = ("input_ids", "attachments", "attention_mask")
    output = model(**{name: batch[name] for name in names})
    if isinstance(bare, PushdownForSequenceClassification):
        errors = output.logits[:, 0].float() - batch["label"]
        return torch.stack([errors.square().sum(), _token_losses(output.lm_logits, others).sum()])
    losses = _token_losses(output.logits, torch.maximum(answers, others))
    is_answer = answers != IGNORED
    return torch.stack([losses[is_answer].sum(), losses[~is_answer].sum()])


def _token_losses(logits: Tensor, targets: Tensor) -> Tensor:
    """Of the targets ``(B, T)``, under the logits ``(B, T, V)``."""
    return cross_entropies(logits.flatten(0, 1), targets.flatten()).view_as(targets)


# ------------------------------------------------------------------ the trainer


class PromptTrainer(PushdownTrainer):
    """Minimizes the mean loss of the answers plus ``lm_weight`` times that of all other tokens.

    Early stopping goes by the mean loss of the held-out answers.
    """

    def __init__(
        self,
        model: PushdownForCausalLM,
        recipe: Recipe,
        data: PromptData,
        run: str | Path,
        lower: LowerOutput | None = None,
        *,
        lm_weight: float,
        label: str,
    ) -> None:
        super().__init__(model, recipe, cast(Any, data), run, lower, label=label)
        self.lm_weight = lm_weight
        self.collate = PromptCollator(model.config.pad_id)
        self.data_collator = self.collate if lower is None else OutputCollator(self.collate)
        if self.args.metric_for_best_model is not None:
            self.args.metric_for_best_model = BEST_METRIC

    @property
    def bare_model(self) -> PushdownForCausalLM:
        return cast(PushdownForCausalLM, self.accelerator.unwrap_model(self.model))

    def _get_num_items_in_batch(self, batch_samples: list[Batch], device: torch.device) -> Any:
        """The targets of the whole optimizer step, over all its parts and processes: ``(2,)``."""
        counts = sum(count_prompt_targets(self.bare_model, batch) for batch in batch_samples)
        return self.accelerator.reduce(cast(Tensor, counts).to(device), "sum")

    def compute_loss(
        self,
        model: Any,
        inputs: Batch,
        return_outputs: bool = False,
        num_items_in_batch: Any = None,
    ) -> Any:
        """This batch's part of the step's loss, as in :meth:`PushdownTrainer.compute_loss`."""
        with self.lower_output_used(inputs):
            losses = prompt_losses(model, inputs, self.bare_model)
        losses = losses / num_items_in_batch.clamp(min=1)
        self._step.batches.append(inputs)
        self._step.losses.append(losses.detach())
        return (losses[0] + self.lm_weight * losses[1]) * self.accelerator.num_processes

    def name_losses(self, *losses: float) -> dict[str, float]:
        answer, lm = losses
        return {"loss": answer + self.lm_weight * lm, "answer_loss": answer, "lm_loss": lm}

    @torch.no_grad()
    def evaluation_loop(
        self,
        dataloader: DataLoader[Any],
        description: str,
        prediction_loss_only: bool | None = None,
        ignore_keys: list[str] | None = None,
        metric_key_prefix: str = "eval",
    ) -> EvalLoopOutput:
        """The mean losses of held-out prompts."""
        model = self.bare_model.eval()
        share = cast(Share, dataloader.batch_sampler)
        sums = torch.zeros(2, 2, dtype=torch.float64, device=self.args.device)
        for turn, inputs in enumerate(dataloader):
            batch = cast(Batch, self._prepare_inputs(inputs))
            if turn * share.world + share.rank < len(share.batches):
                with self.compute_loss_context_manager(), self.lower_output_used(batch):
                    losses = prompt_losses(model, batch, model)
                sums += torch.stack([losses.double(), count_prompt_targets(model, batch)])
        (answer, lm), (answers, others) = cast(
            Tensor, self.accelerator.reduce(sums, "sum")
        ).tolist()
        metrics = self.name_losses(answer / max(answers, 1), lm / max(others, 1))
        return EvalLoopOutput(
            predictions=cast(Any, None),
            label_ids=None,
            metrics={f"{metric_key_prefix}_{name}": value for name, value in metrics.items()},
            num_samples=len(cast(Any, dataloader.dataset)),
        )

    @torch.inference_mode()
    def answers(
        self, prompts: Sequence[Prompt], first_tokens: Sequence[int], batch_size: int
    ) -> np.ndarray[Any, np.dtype[np.float64]]:
        """The class, or the number, that the model gives each prompt.

        A class is the one whose first token is the most probable after the question.

        Args:
            first_tokens: of each class.
        """
        model = self.bare_model.eval()
        lengths = [len(prompt.input_ids) for prompt in prompts]
        order = sorted(range(len(prompts)), key=lengths.__getitem__)
        own = order[self.args.process_index :: self.args.world_size]
        found: list[tuple[int, float]] = []
        for start in range(0, len(own), batch_size):
            numbers = own[start : start + batch_size]
            examples = [asdict(prompts[number]) for number in numbers]
            batch = cast(Batch, self._prepare_inputs(self.collate(examples)))
            with self.compute_loss_context_manager():
                found += zip(numbers, _answers(model, batch, first_tokens).tolist(), strict=True)
        predictions = np.zeros(len(prompts))
        for number, answer in gather_object(found):
            predictions[number] = answer
        return predictions


def _answers(model: PushdownForCausalLM, batch: Batch, first_tokens: Sequence[int]) -> Tensor:
    names = ("input_ids", "attachments", "attention_mask")
    logits = model(**{name: batch[name] for name in names}).logits
    if isinstance(model, PushdownForSequenceClassification):
        return cast(Tensor, logits[:, 0].float())
    row = torch.arange(len(logits), device=logits.device)
    after_question = logits[row, batch["answer"] - 1]  # (B, V)
    classes = torch.tensor(list(first_tokens), device=logits.device)
    return after_question[:, classes].argmax(-1)
