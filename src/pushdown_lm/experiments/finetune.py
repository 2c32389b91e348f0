"""Fine-tuning on the tasks of :mod:`~pushdown_lm.corpora.glue`, with the model's own parses.

Shapes: B prompts, T positions, V vocabulary.

1. Before any training the model parses every sentence of every prompt by beam search, and the
   parses are kept on disk (:mod:`~pushdown_lm.search.parse_cache`). The tapes stay what they are,
   whatever becomes of the weights. Tokens of the label shift: no parse depends on the answer. A
   model without pushdown layers (Base-LM, plain LM) sees no tape, so nothing is parsed for it.
2. Training continues as a language model on whole prompts. The loss is the sum of two means: the
   cross-entropy of the answer (the tokens of the label and the EOS after them) and, weighted by
   ``lm_weight``, that of all other tokens. For STS-B the squared error takes the place of the
   former. The attachment head is left alone, since its choices have been made.
3. The answer to a prompt is the class whose first token is the most probable after the question.
   No model is chosen by its score: the numbers are those of the last step. With early stopping
   they are those of the epoch with the lowest loss on training examples that were held out; the
   examples that are evaluated decide nothing.
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import statistics
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from accelerate.utils import set_seed  # type: ignore[import-untyped]
from torch import Tensor, nn
from transformers import (
    PreTrainedTokenizerFast,
    get_constant_schedule_with_warmup,
    get_linear_schedule_with_warmup,
)

from pushdown_lm.console import progress
from pushdown_lm.corpora.glue import (
    Preset,
    Split,
    Task,
    evaluation_split,
    load_examples,
)
from pushdown_lm.data.batching import IGNORED, Collator, RandomBatches
from pushdown_lm.experiments.early_stopping import EarlyStopping
from pushdown_lm.experiments.prompts import FinetuneError, Prompt, PromptEncoder
from pushdown_lm.files import MANIFEST, verify_manifest, whole_folder, write_json
from pushdown_lm.machine import peak_memory_megabytes
from pushdown_lm.model.classification import PushdownForSequenceClassification
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.search.parse_cache import ParseCache
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from pushdown_lm.search.scorer import weights_fingerprint
from pushdown_lm.training.lora import choose_trainable, merge_lora
from pushdown_lm.training.recipe import LoraSection

PARSES = "parses.jsonl"
RESULTS = "results.json"


@dataclass(frozen=True, slots=True)
class FinetuneOptions:
    """How to fine-tune."""

    epochs: float = 3.0
    batch_size: int = 16
    lr: float = 2e-5
    """The highest learning rate."""
    warmup: float = 0.06
    """The share of the steps in which it grows."""
    schedule: Literal["linear", "constant"] = "linear"
    """Whether it goes down to 0 after that, or stays."""
    patience: int | None = None
    """Epochs without a lower loss on held-out training examples after which training stops; None
    for no early stopping."""
    held_out: float = 0.1
    """The share of the training examples that early stopping holds out."""
    weight_decay: float = 0.01
    clip: float = 1.0
    lm_weight: float = 1.0
    """Weight of the language-model loss on the prompts, without the answer."""
    beam: int = 10
    """Entries of the search for parses."""
    split: Split | None = None
    """What is evaluated; dev if left out, or test where there is no dev."""
    max_train: int | None = None
    max_eval: int | None = None
    freeze: str = "none"
    """As :func:`pushdown_lm.training.freezing.freeze` takes it."""
    lora_rank: int | None = None
    """Train low-rank adapters instead."""
    gradient_checkpointing: bool = False
    bf16: bool = False

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "lr", "beam", "patience"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise FinetuneError(f"{name}: expected more than 0, got {getattr(self, name)}")
        if self.lora_rank is not None and self.freeze != "none":
            raise FinetuneError("freeze, lora_rank: adapters leave all else frozen; choose one")


PRESETS: dict[Preset, FinetuneOptions] = {
    "paper": FinetuneOptions(
        epochs=20, batch_size=256, lr=3e-5, warmup=0.0, schedule="constant", patience=3
    ),
    "quick": FinetuneOptions(),
}
"""The settings of the paper's appendix A, where it gives them (batch size, a constant learning
rate, early stopping), and cheaper ones."""


# ------------------------------------------------------------------ data


@dataclass(frozen=True, slots=True)
class Prepared:
    """A task as one model reads it."""

    train: list[Prompt]
    evaluation: list[Prompt]
    split: Split
    first_tokens: list[int]
    weights: str
    """A hash of the model's weights."""

    def fingerprint(self) -> str:
        """A hash of all prompts, with their parses and labels."""
        digest = hashlib.blake2b(str(len(self.train)).encode(), digest_size=16)
        for prompt in (*self.train, *self.evaluation):
            ids, attachments = list(map(int, prompt.input_ids)), list(map(int, prompt.attachments))
            digest.update(repr((ids, attachments, float(prompt.label))).encode())
        return digest.hexdigest()


def prepare(
    folder: str | Path,
    task: Task,
    data: str | Path,
    parses: str | Path,
    options: FinetuneOptions,
) -> Prepared:
    """Read a task's files and parse their sentences with the model of a folder."""
    scorer = PushdownScorer.from_pretrained(folder, allow_unknown=True)
    model = scorer.model.to(_device())
    split = options.split or evaluation_split(task, data)
    encoder = PromptEncoder(scorer, task)
    cache = None
    if model.config.pushdown_layers:
        if model.head is None:
            raise FinetuneError(f"{folder}: expected an attachment head, which parses, found none")
        cache = ParseCache(parses, model, beam=options.beam)
    return Prepared(
        train=encoder.encode(load_examples(task, data, "train", options.max_train), cache),
        evaluation=encoder.encode(load_examples(task, data, split, options.max_eval), cache),
        split=split,
        first_tokens=encoder.first_tokens,
        weights=weights_fingerprint(model),
    )


# ------------------------------------------------------------------ one run


@dataclass(frozen=True, slots=True)
class Run:
    """One fine-tuned model."""

    seed: int
    metrics: dict[str, float]
    steps: int
    seconds: float
    trainable_parameters: int
    parameters: int
    peak_memory_megabytes: float | None


def finetune(
    folder: str | Path,
    task: Task,
    prepared: Prepared,
    options: FinetuneOptions,
    *,
    seed: int = 0,
    save_to: str | Path | None = None,
) -> Run:
    """Fine-tune the model of a folder on a prepared task, and evaluate it.

    Args:
        save_to: a folder for the fine-tuned model and its tokenizer.
    """
    set_seed(seed)
    model, tokenizer = _load(Path(folder), task, prepared)
    device = _device()
    model.to(device)  # type: ignore[arg-type]
    lora = None if options.lora_rank is None else LoraSection(rank=options.lora_rank)
    trainable = choose_trainable(model, options.freeze, lora)
    if options.gradient_checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    began = time.monotonic()
    steps = _train(model, prepared, options, seed, f"{task.title}, seed {seed}")
    predictions = predict(model, prepared, options)
    labels = np.array([prompt.label for prompt in prepared.evaluation])
    if save_to is not None:
        merge_lora(model)
        with whole_folder(save_to) as staging:
            model.save_pretrained(staging)
            tokenizer.save_pretrained(staging)
    return Run(
        seed=seed,
        metrics={name: metric(predictions, labels) for name, metric in task.metrics.items()},
        steps=steps,
        seconds=time.monotonic() - began,
        trainable_parameters=trainable.trained,
        parameters=trainable.total,
        peak_memory_megabytes=peak_memory_megabytes(device),
    )


def _device() -> torch.device:
    return torch.accelerator.current_accelerator(check_available=True) or torch.device("cpu")


def _load(
    folder: Path, task: Task, prepared: Prepared
) -> tuple[PushdownForCausalLM, PreTrainedTokenizerFast]:
    from pushdown_lm.data.tokenization import load_tokenizer

    if (folder / MANIFEST).is_file():
        verify_manifest(folder)
    model: PushdownForCausalLM
    if task.is_regression:
        model = PushdownForSequenceClassification.from_pretrained(
            folder, num_labels=1, dtype=torch.float32
        )
        mean = statistics.fmean(prompt.label for prompt in prepared.train)
        nn.init.constant_(model.score.bias, mean)
    else:
        model = PushdownForCausalLM.from_pretrained(folder, dtype=torch.float32)
    return model, load_tokenizer(folder)


def _train(
    model: PushdownForCausalLM, prepared: Prepared, options: FinetuneOptions, seed: int, name: str
) -> int:
    """Train in place; the number of steps."""
    train, held_out = split_off(prepared.train, options, seed)
    batches = RandomBatches(len(train), options.batch_size, seed=seed)
    steps = max(1, round(options.epochs * len(batches)))
    stopping = None
    if options.patience is not None:
        loss_now = partial(held_out_loss, model, held_out, options)
        stopping = EarlyStopping(model, loss_now, options.patience)
    parameters = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(parameters, lr=options.lr, weight_decay=options.weight_decay)
    warmup = round(options.warmup * steps)
    rates = (
        get_linear_schedule_with_warmup(optimizer, warmup, steps)
        if options.schedule == "linear"
        else get_constant_schedule_with_warmup(optimizer, warmup)
    )
    model.train()
    with progress(name, steps, "steps") as advance:
        for step, batch in zip(range(steps), _epochs(batches), strict=False):
            prompts = [train[index] for index in batch]
            with _precision(model, options):
                loss = prompt_loss(model, prompts, options.lm_weight)
            if not math.isfinite(value := loss.item()):
                raise FinetuneError(f"{name}: the loss of step {step + 1} is not finite")
            loss.backward()
            nn.utils.clip_grad_norm_(parameters, options.clip)
            optimizer.step()
            rates.step()
            optimizer.zero_grad()
            advance(1, f"loss {value:.3f}")
            ends_epoch = (step + 1) % len(batches) == 0 or step + 1 == steps
            if stopping is not None and ends_epoch and stopping.is_over():
                steps = step + 1
                break
    if stopping is not None:
        stopping.restore()
    model.eval()
    return steps


def split_off(
    prompts: Sequence[Prompt], options: FinetuneOptions, seed: int
) -> tuple[list[Prompt], list[Prompt]]:
    """Training prompts, and those that early stopping holds out, drawn at random."""
    if options.patience is None:
        return list(prompts), []
    count = max(1, round(options.held_out * len(prompts)))
    if count >= len(prompts):
        raise FinetuneError(
            f"early stopping holds out {count} of {len(prompts)} training examples, which leaves "
            "none to train on"
        )
    order = random.Random(seed).sample(range(len(prompts)), len(prompts))
    return [prompts[number] for number in order[count:]], [prompts[n] for n in order[:count]]


@torch.no_grad()
def held_out_loss(
    model: PushdownForCausalLM, prompts: Sequence[Prompt], options: FinetuneOptions
) -> float:
    """The mean loss of the answers."""
    model.eval()
    total = 0.0
    for start in range(0, len(prompts), options.batch_size):
        batch = prompts[start : start + options.batch_size]
        with _precision(model, options):
            total += len(batch) * float(prompt_loss(model, batch, lm_weight=0.0))
    model.train()
    return total / len(prompts)


def _epochs(batches: RandomBatches) -> Iterator[list[int]]:
    """The batches of one epoch after another, without end."""
    while True:
        yield from batches
        batches.set_epoch(batches.epoch + 1)


def _precision(model: nn.Module, options: FinetuneOptions) -> Any:
    if not options.bf16:
        return nullcontext()
    return torch.autocast(next(model.parameters()).device.type, torch.bfloat16)


def _collate(model: PushdownForCausalLM, prompts: Sequence[Prompt]) -> dict[str, Tensor]:
    pad = model.config.pad_token_id
    assert pad is not None
    batch = Collator(pad)([asdict(prompt) for prompt in prompts])
    return {name: tensor.to(model.device) for name, tensor in batch.items()}


def prompt_loss(model: PushdownForCausalLM, prompts: Sequence[Prompt], lm_weight: float) -> Tensor:
    """The loss of a batch: of the answers, and of the rest as a language model."""
    batch = _collate(model, prompts)
    targets = batch.pop("labels")  # (B, T)
    if not model.config.shared_boundary:
        targets[batch["input_ids"] == model.config.bos_token_id] = IGNORED
    position = torch.arange(targets.shape[1], device=model.device)
    start = torch.tensor([prompt.answer for prompt in prompts], device=model.device)
    answers = position >= start[:, None]
    rest = targets.masked_fill(answers, IGNORED)
    if isinstance(model, PushdownForSequenceClassification):
        labels = torch.tensor([prompt.label for prompt in prompts], device=model.device)
        scored = model(**batch, labels=labels)
        return scored.loss + lm_weight * _cross_entropy(scored.lm_logits, rest)
    logits = model(**batch).logits
    answer_loss = _cross_entropy(logits, targets.masked_fill(~answers, IGNORED))
    return answer_loss + lm_weight * _cross_entropy(logits, rest)


def _cross_entropy(logits: Tensor, targets: Tensor) -> Tensor:
    """Mean over the targets ``(B, T)`` of the tokens that the logits ``(B, T, V)`` predict."""
    return nn.functional.cross_entropy(
        logits[:, :-1].flatten(0, 1).float(), targets[:, 1:].flatten(), ignore_index=IGNORED
    )


@torch.inference_mode()
def predict(
    model: PushdownForCausalLM, prepared: Prepared, options: FinetuneOptions
) -> np.ndarray[Any, np.dtype[np.float64]]:
    """The class, or the number, that the model gives each prompt of the evaluation."""
    prompts = prepared.evaluation
    order = sorted(range(len(prompts)), key=lambda number: len(prompts[number].input_ids))
    predictions = np.zeros(len(prompts))
    classes = torch.tensor(prepared.first_tokens, dtype=torch.long, device=model.device)
    for start in range(0, len(order), options.batch_size):
        numbers = order[start : start + options.batch_size]
        batch = _collate(model, [prompts[number] for number in numbers])
        del batch["labels"]
        with _precision(model, options):
            output = model(**batch)
        if isinstance(model, PushdownForSequenceClassification):
            predictions[numbers] = output.logits[:, 0].float().cpu().numpy()
            continue
        question_end = torch.tensor([prompts[number].answer - 1 for number in numbers])
        after_question = output.logits[torch.arange(len(numbers)), question_end]  # (B, V)
        predictions[numbers] = after_question[:, classes].argmax(-1).cpu().numpy()
    return predictions


# ------------------------------------------------------------------ tasks x models x seeds


@dataclass(frozen=True, slots=True)
class Result:
    """All runs of one model on one task."""

    task: str
    model: str
    kind: str
    """`pushdown`, or `base` for a model without pushdown layers."""
    split: Split
    num_train: int
    num_eval: int
    majority: dict[str, float]
    """What the most frequent class of the training examples scores; nothing for a regression."""
    runs: list[Run]

    def summary(self) -> dict[str, tuple[float, float | None]]:
        """Mean and standard deviation over the seeds; one seed has no deviation.

        >>> runs = [Run(seed, {"f1": float(seed)}, 1, 1.0, 1, 1, 1.0) for seed in range(2)]
        >>> Result("MRPC", "m", "base", "test", 1, 1, {}, runs).summary()["f1"]
        (0.5, 0.7071067811865476)
        """
        values = {name: [run.metrics[name] for run in self.runs] for name in self.runs[0].metrics}
        return {
            name: (
                statistics.fmean(numbers),
                statistics.stdev(numbers) if len(numbers) > 1 else None,
            )
            for name, numbers in values.items()
        }

    def to_json(self) -> dict[str, Any]:
        return asdict(self) | {"summary": self.summary()}


def finetune_all(
    tasks: Sequence[Task],
    folders: Sequence[str | Path],
    data: str | Path,
    out: str | Path,
    options: FinetuneOptions,
    *,
    seeds: int = 3,
    save: bool = False,
) -> list[Result]:
    """Fine-tune every model on every task with several seeds, and write ``results.json``.

    Every finished run is a file of its own, so that an interrupted command resumes where it left
    off.
    """
    out = Path(out)
    results = []
    for task in tasks:
        for name, folder in model_names(folders).items():
            prepared = prepare(folder, task, data, out / PARSES, options)
            place = out / task.name / name
            runs = [
                _run_once(place / f"seed-{seed}", folder, task, prepared, options, seed, save)
                for seed in range(seeds)
            ]
            results.append(_result(task, name, folder, prepared, runs))
    write_json(
        out / RESULTS,
        {
            "options": asdict(options),
            "results": [result.to_json() for result in results],
        },
    )
    return results


def _run_once(
    place: Path,
    folder: Path,
    task: Task,
    prepared: Prepared,
    options: FinetuneOptions,
    seed: int,
    save: bool,
) -> Run:
    """A run, or what it left if it was finished before with all the same."""
    record = place.with_suffix(".json")
    key = {
        "weights": prepared.weights,
        "prompts": prepared.fingerprint(),
        "split": prepared.split,
        "options": asdict(options),
    }
    if record.is_file() and (place.is_dir() or not save):
        earlier = json.loads(record.read_text(encoding="utf-8"))
        if earlier["key"] == key:
            return Run(**earlier["run"])
    run = finetune(folder, task, prepared, options, seed=seed, save_to=place if save else None)
    write_json(record, {"key": key, "run": asdict(run)})
    return run


def _result(task: Task, name: str, folder: Path, prepared: Prepared, runs: list[Run]) -> Result:
    from pushdown_lm.model.configuration import PushdownConfig

    layers = PushdownConfig.from_pretrained(folder).pushdown_layers
    return Result(
        task=task.title,
        model=name,
        kind="pushdown" if layers else "base",
        split=prepared.split,
        num_train=len(prepared.train),
        num_eval=len(prepared.evaluation),
        majority=majority(task, prepared),
        runs=runs,
    )


def majority(task: Task, prepared: Prepared) -> dict[str, float]:
    """The metrics of always giving the most frequent class of the training examples."""
    if task.is_regression:
        return {}
    counts = Counter(prompt.label for prompt in prepared.train)
    labels = np.array([prompt.label for prompt in prepared.evaluation])
    constant = np.full_like(labels, max(sorted(counts), key=counts.__getitem__))
    return {name: metric(constant, labels) for name, metric in task.metrics.items()}


def model_names(folders: Iterable[str | Path]) -> dict[str, Path]:
    """A short name for each folder: its own, or its parent's where that is just `model`.

    >>> list(model_names(["runs/demo/seed0/demo-base/model", "runs/demo/seed0/demo/model"]))
    ['demo-base', 'demo']
    """
    names: dict[str, Path] = {}
    for folder in map(Path, folders):
        name = folder.parent.name if folder.name == "model" else folder.name
        name = name or folder.resolve().name
        number = sum(other.split("~")[0] == name for other in names)
        names[f"{name}~{number + 1}" if number else name] = folder
    return names


def table(results: Sequence[Result]) -> list[list[str]]:
    """Rows as in the paper's Table 3: a model each, mean and deviation of every metric in %; last,
    what the most frequent class scores."""
    columns = list(
        dict.fromkeys((result.task, metric) for result in results for metric in result.summary())
    )
    rows = [["model", "kind", *(f"{task} {metric}" for task, metric in columns)]]
    for name in dict.fromkeys(result.model for result in results):
        own = [result for result in results if result.model == name]
        cells = {
            (result.task, metric): percentages(*value)
            for result in own
            for metric, value in result.summary().items()
        }
        rows.append([name, own[0].kind, *(cells.get(column, "") for column in columns)])
    constant = {
        (result.task, metric): percentages(value, None)
        for result in results
        for metric, value in result.majority.items()
    }
    if constant:
        rows.append(["most frequent class", "", *(constant.get(column, "") for column in columns)])
    return rows


def percentages(mean: float, deviation: float | None) -> str:
    """
    >>> percentages(0.5, 0.012)
    '50.0 ± 1.2'
    """
    spread = "" if deviation is None else f" ± {100 * deviation:.1f}"
    return f"{100 * mean:.1f}{spread}"
