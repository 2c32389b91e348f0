"""Fine-tuning on the tasks of :mod:`~pushdown_lm.corpora.glue`, with the model's own parses.

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

A run is a training run as any other (:mod:`~pushdown_lm.experiments.prompt_trainer`): in several
processes, with checkpoints, and continued where it was interrupted.

OUT/parses.jsonl               the parses
OUT/lower                      the output of frozen lower layers, if it is kept
OUT/TASK/MODEL/seed-N          a run: checkpoints while it lasts, metrics.jsonl, result.json, and
                               model/ if it is kept
OUT/results.json               all results
"""

from __future__ import annotations

import hashlib
import json
import math
import random
import shutil
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypeVar

import numpy as np
import torch
from accelerate.utils import set_seed  # type: ignore[import-untyped]
from torch import nn
from transformers import PreTrainedTokenizerFast

from pushdown_lm.corpora.glue import (
    Preset,
    Split,
    Task,
    evaluation_split,
    load_examples,
)
from pushdown_lm.data.tokenization import load_tokenizer
from pushdown_lm.errors import PushdownError
from pushdown_lm.evals.sharding import processes
from pushdown_lm.experiments.prompt_trainer import PromptData, PromptTrainer
from pushdown_lm.experiments.prompts import FinetuneError, Prompt, PromptEncoder
from pushdown_lm.files import check_folder_writable, locked, write_json
from pushdown_lm.machine import peak_memory_megabytes
from pushdown_lm.model.classification import PushdownForSequenceClassification
from pushdown_lm.model.loading import load_weights
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.search.loading import model_names
from pushdown_lm.search.packaged import find_model
from pushdown_lm.search.parse_cache import ParseCache
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from pushdown_lm.search.scorer import weights_fingerprint
from pushdown_lm.training.arguments import uses_bf16
from pushdown_lm.training.checkpoint import checkpoints, last_checkpoint
from pushdown_lm.training.freezing import Trainable, trainable_parameters
from pushdown_lm.training.lora import choose_trainable
from pushdown_lm.training.lower_output import frozen_layers, keep_lower_output
from pushdown_lm.training.recipe import LoraSection, Precision, Recipe, TrainingSection
from pushdown_lm.training.run import MODEL

PARSES, RESULTS = "parses.jsonl", "results.json"
STARTED, RESULT = "started.json", "result.json"
"""In a run's folder: what it was started with, and what it has found."""


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
    threshold: float | None = 6.0
    """Nats below the best entry at which the search drops others."""
    split: Split | None = None
    """What is evaluated; dev if left out, or test where there is no dev."""
    max_train: int | None = None
    max_eval: int | None = None
    freeze: str = "none"
    """As :func:`pushdown_lm.training.freezing.freeze` takes it."""
    cache_lower: bool = False
    """Compute the output of frozen lower layers once
    (:mod:`pushdown_lm.training.lower_output`)."""
    lora_rank: int | None = None
    """Train low-rank adapters instead."""
    gradient_accumulation: int = 1
    """Into how many parts, of prompts of like length, a step is cut: less memory, less padding."""
    gradient_checkpointing: bool = False
    precision: Precision = "float32"
    """As in a recipe's training section."""

    def __post_init__(self) -> None:
        for name in ("epochs", "batch_size", "lr", "beam", "patience", "gradient_accumulation"):
            if getattr(self, name) is not None and not getattr(self, name) > 0:
                raise FinetuneError(f"{name}: expected more than 0, got {getattr(self, name)}")
        if self.lora_rank is not None and self.freeze != "none":
            raise FinetuneError("freeze, lora_rank: adapters leave all else frozen; choose one")


Item = TypeVar("Item")

PRESETS: dict[Preset, FinetuneOptions] = {
    "paper": FinetuneOptions(
        epochs=20, batch_size=256, lr=3e-5, warmup=0.0, schedule="constant", patience=3
    ),
    "quick": FinetuneOptions(),
}
"""The settings of the paper's appendix A, where it gives them (batch size, a constant learning
rate, early stopping), and cheaper ones."""


def preset_options(preset: Preset, **changes: Any) -> FinetuneOptions:
    """The options of a preset, changed where a change is not None."""
    given = {name: value for name, value in changes.items() if value is not None}
    return replace(PRESETS[preset], **given)


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
    folder: Path
    """Where parses are kept, and the output of frozen lower layers."""

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
    model = scorer.model.to(processes().device)
    split = options.split or evaluation_split(task, data)
    encoder = PromptEncoder(scorer, task)
    cache = None
    if model.config.pushdown_layers:
        cache = ParseCache(parses, model, beam=options.beam, threshold=options.threshold)
    return Prepared(
        train=encoder.encode(load_examples(task, data, "train", options.max_train), cache),
        evaluation=encoder.encode(load_examples(task, data, split, options.max_eval), cache),
        split=split,
        first_tokens=encoder.first_tokens,
        weights=weights_fingerprint(model),
        folder=Path(parses).parent,
    )


def check(
    tasks: Sequence[Task],
    folders: Iterable[str | Path],
    data: str | Path,
    out: str | Path,
    options: FinetuneOptions,
) -> None:
    """Find out before the work starts what would end it later.

    Reads all files of the tasks, and loads every model: whether it can parse, whether its tokenizer
    keeps the labels apart, whether all prompts fit, and whether it has the layers to be frozen.
    """
    check_folder_writable(out)
    examples = {}
    for task in tasks:
        split = options.split or evaluation_split(task, data)
        train = load_examples(task, data, "train", options.max_train)
        examples[task.name] = [*train, *load_examples(task, data, split, options.max_eval)]
        split_off(train, options, seed=0)
    for folder in folders:
        scorer = PushdownScorer.from_pretrained(folder, allow_unknown=True)
        if scorer.model.config.pushdown_layers and scorer.model.head is None:
            raise FinetuneError(f"{folder}: expected an attachment head, which parses, found none")
        for task in tasks:
            try:
                PromptEncoder(scorer, task).encode(examples[task.name], None)
            except PushdownError as error:
                raise FinetuneError(f"{folder}: {error}") from error
        _choose_trainable(scorer.model, options)
        if options.cache_lower:
            frozen_layers(scorer.model)


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
    run: str | Path,
    *,
    seed: int = 0,
    save: bool = False,
) -> Run:
    """Fine-tune the model of a folder on a prepared task, and evaluate it.

    Args:
        run: the folder of the run; continued from its last checkpoint, if it has one.
        save: keep the fine-tuned model and its tokenizer in ``model/``.
    """
    set_seed(seed)
    model, tokenizer = _load(Path(folder), task, prepared)
    trainable = _choose_trainable(model, options)
    train, held_out = split_off(prepared.train, options, seed)
    data = PromptData.of(train, held_out, tokenizer, prepared.folder)
    lower = None
    if options.cache_lower:
        lower = keep_lower_output(model, data, bf16=uses_bf16(options.precision))
    trainer = PromptTrainer(
        model,
        _recipe(task, options, len(train), seed),
        data,
        run,
        lower,
        lm_weight=options.lm_weight,
        label=f"{task.title}, seed {seed}",
    )
    found = checkpoints(run)
    trainer.train_from(last_checkpoint(run) if found else None, "the same command continues")
    predictions = trainer.answers(prepared.evaluation, prepared.first_tokens, options.batch_size)
    labels = np.array([prompt.label for prompt in prepared.evaluation])
    if save:
        trainer.save_final()
    return Run(
        seed=seed,
        metrics={name: metric(predictions, labels) for name, metric in task.metrics.items()},
        steps=trainer.state.global_step,
        seconds=trainer.seconds(),
        trainable_parameters=trainable.trained,
        parameters=trainable.total,
        peak_memory_megabytes=peak_memory_megabytes(trainer.args.device),
    )


def _load(
    folder: Path, task: Task, prepared: Prepared
) -> tuple[PushdownForCausalLM, PreTrainedTokenizerFast]:
    if not task.is_regression:
        model = load_weights(PushdownForCausalLM, folder, dtype=torch.float32)
        return model, load_tokenizer(folder)
    scores = load_weights(
        PushdownForSequenceClassification,
        folder,
        new=("score.weight", "score.bias"),
        num_labels=1,
        dtype=torch.float32,
    )
    mean = statistics.fmean(prompt.label for prompt in prepared.train)
    nn.init.constant_(scores.score.bias, mean)
    return scores, load_tokenizer(folder)


def _choose_trainable(model: PushdownForCausalLM, options: FinetuneOptions) -> Trainable:
    """What is trained; never the attachment head, whose choices have been made."""
    lora = None if options.lora_rank is None else LoraSection(rank=options.lora_rank)
    choose_trainable(model, options.freeze, lora)
    if model.head is not None:
        model.head.requires_grad_(False)
    return trainable_parameters(model)


def _recipe(task: Task, options: FinetuneOptions, num_train: int, seed: int) -> Recipe:
    """The training of a run; checkpoints and the evaluation of held-out prompts end an epoch."""
    epoch = math.ceil(num_train / options.batch_size)
    steps = max(1, round(options.epochs * epoch))
    return Recipe(
        name=task.name,
        training=TrainingSection(
            steps=steps,
            batch_size=options.batch_size,
            gradient_accumulation=options.gradient_accumulation,
            lr=options.lr,
            schedule=options.schedule,
            warmup_steps=round(options.warmup * steps),
            weight_decay=options.weight_decay,
            clip=options.clip,
            precision=options.precision,
            gradient_checkpointing=options.gradient_checkpointing,
            eval_every=None if options.patience is None else min(epoch, steps),
            save_every=min(epoch, steps),
            early_stopping_patience=options.patience,
            seed=seed,
        ),
    )


def split_off(
    items: Sequence[Item], options: FinetuneOptions, seed: int
) -> tuple[list[Item], list[Item]]:
    """What to train on, and what early stopping holds out, drawn at random."""
    if options.patience is None:
        return list(items), []
    count = max(1, round(options.held_out * len(items)))
    if count >= len(items):
        raise FinetuneError(
            f"early stopping holds out {count} of {len(items)} training examples, which leaves "
            "none to train on"
        )
    order = random.Random(seed).sample(range(len(items)), len(items))
    return [items[number] for number in order[count:]], [items[number] for number in order[:count]]


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
    report: Callable[[str], None] | None = None,
) -> list[Result]:
    """Fine-tune every model on every task with several seeds, and write ``results.json``.

    An interrupted command resumes where it left off: finished runs are kept, and a run that was
    interrupted continues from its last checkpoint.

    Args:
        report: called with what went wrong with a model on a task, which leaves the others alone;
            if left out, the first such error is raised.
    """
    out = Path(out)
    models = {name: find_model(folder) for name, folder in model_names(folders).items()}
    check(tasks, models.values(), data, out, options)
    results = []
    with locked(out, "fine-tuning") if processes().is_main_process else nullcontext():
        for task in tasks:
            for name, folder in models.items():
                place = out / task.name / name
                try:
                    with processes().main_process_first():
                        prepared = prepare(folder, task, data, out / PARSES, options)
                    runs = [
                        _run_once(place / f"seed-{n}", folder, task, prepared, options, n, save)
                        for n in range(seeds)
                    ]
                except PushdownError as error:
                    if report is None:
                        raise
                    report(f"{task.title}, {name}: {error}")
                else:
                    results.append(_result(task, name, folder, prepared, runs))
        if not results:
            raise FinetuneError("no model could be fine-tuned")
        if processes().is_main_process:
            rows = [result.to_json() for result in results]
            write_json(out / RESULTS, {"options": asdict(options), "results": rows})
    return results


def _run_once(
    run: Path,
    folder: Path,
    task: Task,
    prepared: Prepared,
    options: FinetuneOptions,
    seed: int,
    save: bool,
) -> Run:
    """A run; what it has found, if it was finished before with all the same."""
    key = {
        "weights": prepared.weights,
        "prompts": prepared.fingerprint(),
        "split": prepared.split,
        "options": asdict(options),
    }
    state = processes()
    same = _read(run / STARTED) == key
    earlier = _read(run / RESULT) if same and (not save or (run / MODEL).is_dir()) else None
    state.wait_for_everyone()
    if earlier is not None:
        return Run(**earlier)
    if state.is_main_process and not same:
        shutil.rmtree(run, ignore_errors=True)
        write_json(run / STARTED, key)
    state.wait_for_everyone()
    found = finetune(folder, task, prepared, options, run, seed=seed, save=save)
    if state.is_main_process:
        write_json(run / RESULT, asdict(found))
        for checkpoint in checkpoints(run):
            shutil.rmtree(checkpoint)
    return found


def _read(path: Path) -> dict[str, Any] | None:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


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
