"""Text classification in prompts: task files, prompts and metrics (section 4.3, Table 3).

A prompt is a window of sentences, as the model is trained on (every sentence with its own ROOT and
EOS, see :mod:`pushdown_lm.trees.oracle`). Each text is one sentence together with the words that
introduce it, even where it is several sentences in truth; the last sentence asks for the label:

    RTE     Premise: {0}. | Hypothesis: {1}. | Label: {entailment, not entailment}
    SST-5   Sentence: {0}. | Sentiment: {terrible, bad, okay, good, great}
    MRPC    Sentence 1: {0}. | Sentence 2: {1}. | Label: {equivalent, not equivalent}
    STS-B   Sentence 1: {0}. | Sentence 2: {1}.

The labels above say what they mean, which helps small models. :data:`PAPER_TASKS` has those of the
paper's appendix A: Yes and No for RTE, 1 and 0 for MRPC, and "Sentence1:" and "Sentence2:". A text
that ends with a mark of its own gets no second full stop. STS-B, a similarity from 0 to 5, is a
regression on the hidden state of the window's last EOS.

Files are read as people have them: GLUE's tab-separated tables, the paraphrase corpus's `.txt`, the
STS benchmark's `.csv` (tabs, no header) and the sentiment treebank's trees, whose root carries the
label. Quotes in tables are plain characters.
"""

from __future__ import annotations

import csv
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike, NDArray

from pushdown_lm.data.text import detokenize
from pushdown_lm.errors import PushdownError
from pushdown_lm.trees import read_trees

Split = Literal["train", "dev", "test"]
Metric = Callable[[ArrayLike, ArrayLike], float]
Floats = NDArray[np.float64]

FINAL_MARKS = tuple(".?!…")
CLOSING_QUOTES = "\"'”’)"


class TaskError(PushdownError):
    """A task, or a file of one, that cannot be read: the message says where."""


@dataclass(frozen=True, slots=True)
class Example:
    """The texts of a prompt and their label: a class, or a number."""

    texts: tuple[str, ...]
    label: float
    place: str
    """`file:line`."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task: its prompt, its labels, its files and what it is measured by."""

    name: str
    title: str
    texts: tuple[str, ...]
    """A template for each text."""
    question: str | None
    """What stands before the label; None for a regression."""
    labels: tuple[str, ...]
    """The words of each class."""
    metrics: dict[str, Metric]
    files: dict[Split, tuple[str, ...]]
    """The names that a split's file goes by."""
    read: Callable[[Path], Iterator[Example]]

    @property
    def is_regression(self) -> bool:
        return self.question is None

    def sentences(self, example: Example) -> list[str]:
        """The sentences of the prompt, without the label's.

        >>> TASKS["rte"].sentences(Example(("Dogs bark.", "Cats bark"), 1, ""))
        ['Premise: Dogs bark.', 'Hypothesis: Cats bark.']
        """
        return [
            template.format(_close(text))
            for template, text in zip(self.texts, example.texts, strict=True)
        ]


def _close(text: str) -> str:
    """The text with a full stop, unless it ends with a mark of its own."""
    text = " ".join(text.split())
    return text if text.rstrip(CLOSING_QUOTES).endswith(FINAL_MARKS) else f"{text}."


# ------------------------------------------------------------------ files


def load_examples(
    task: Task, folder: str | Path, split: Split, limit: int | None = None
) -> list[Example]:
    """The examples of a split, or ``limit`` of them, drawn at random but always the same.

    The first ones would not do where a file is sorted: SST-5's begin with the positive examples.

    Args:
        folder: the task's own folder, or one that holds it under the task's name.
    """
    examples = list(task.read(task_file(task, folder, split)))
    if not examples:
        raise TaskError(f"{task_file(task, folder, split)}: expected examples, found none")
    if limit is not None and limit < len(examples):
        examples = random.Random(0).sample(examples, limit)
    return examples


def task_file(task: Task, folder: str | Path, split: Split) -> Path:
    """The file of a split, under any of the names it goes by."""
    found = _find(task, Path(folder), split)
    if found is None:
        if split not in task.files:
            raise TaskError(f"{task.title} has no {split} split; it has {', '.join(task.files)}")
        names = " or ".join(task.files[split])
        raise TaskError(f"{folder}: expected {names} of {task.title}")
    return found


def evaluation_split(task: Task, folder: str | Path) -> Split:
    """dev, or test where there is no dev file (as in the paraphrase corpus)."""
    return "dev" if _find(task, Path(folder), "dev") is not None else "test"


def _find(task: Task, folder: Path, split: Split) -> Path | None:
    places = (folder, folder / task.name, folder / task.title)
    paths = (place / name for place in places for name in task.files.get(split, ()))
    return next((path for path in paths if path.is_file()), None)


def _rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    """The rows of a tab-separated file with their places."""
    with path.open(encoding="utf-8-sig", newline="") as file:
        reader = csv.reader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        try:
            for row in reader:
                if row:
                    yield f"{path}:{reader.line_num}", row
        except (UnicodeDecodeError, csv.Error) as error:
            raise TaskError(
                f"{path}:{reader.line_num + 1}: expected a table in UTF-8: {error}"
            ) from None


def _table(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """Those columns of the rows of a table with a header."""
    rows = _rows(path)
    place, header = next(rows, (f"{path}:1", []))
    missing = [column for column in columns if column not in header]
    if missing:
        raise TaskError(f"{place}: expected a header with {', '.join(columns)}, found {header}")
    indices = [header.index(column) for column in columns]
    for place, row in rows:
        if len(row) != len(header):
            raise TaskError(f"{place}: expected {len(header)} columns, found {len(row)}")
        yield place, [row[index] for index in indices]


def _class(place: str, value: str, classes: Sequence[str]) -> int:
    if value not in classes:
        raise TaskError(
            f"{place}: expected one of the labels {', '.join(classes)}, found {value!r}"
        )
    return classes.index(value)


def _read_rte(path: Path) -> Iterator[Example]:
    for place, (premise, hypothesis, label) in _table(path, ("sentence1", "sentence2", "label")):
        number = _class(place, label, ("entailment", "not_entailment"))
        yield Example((premise, hypothesis), number, place)


def _read_mrpc(path: Path) -> Iterator[Example]:
    for place, (first, second, label) in _table(path, ("#1 String", "#2 String", "Quality")):
        yield Example((first, second), _class(place, label, ("0", "1")), place)


def _read_sst5(path: Path) -> Iterator[Example]:
    trees = read_trees(path, format="penn", labels=True)
    for number, tree in enumerate(trees, start=1):
        assert tree.labels is not None
        place = f"{path}, tree {number}"
        text = "".join(detokenize(tree.words))
        yield Example((text,), _class(place, tree.labels[-1], "01234"), place)


def _read_stsb(path: Path) -> Iterator[Example]:
    for place, (score, first, second) in _stsb_rows(path):
        try:
            similarity = float(score)
        except ValueError:
            similarity = -1.0
        if not 0 <= similarity <= 5:
            raise TaskError(f"{place}: expected a similarity from 0 to 5, found {score!r}")
        yield Example((first, second), similarity, place)


def _stsb_rows(path: Path) -> Iterator[tuple[str, list[str]]]:
    """GLUE's table, whose header names its columns, or the benchmark's, which has none."""
    _, head = next(_rows(path), ("", []))
    if "sentence1" in head:
        yield from _table(path, ("score", "sentence1", "sentence2"))
        return
    for place, row in _rows(path):
        if len(row) < 7:
            raise TaskError(
                f"{place}: expected at least 7 columns, the score in the 5th and the sentences in "
                f"the 6th and 7th, found {len(row)}"
            )
        yield place, row[4:7]


# ------------------------------------------------------------------ metrics


def accuracy(predictions: ArrayLike, labels: ArrayLike) -> float:
    """The share of right predictions."""
    return float(np.mean(np.asarray(predictions) == np.asarray(labels)))


def f1(predictions: ArrayLike, labels: ArrayLike) -> float:
    """F1 of class 1: 2 TP / (2 TP + FP + FN), and 0 where nothing is predicted nor there.

    >>> f1([1, 1, 0], [1, 0, 1])
    0.5
    """
    found, wanted = np.asarray(predictions) == 1, np.asarray(labels) == 1
    both = int(found.sum() + wanted.sum())
    return 2 * int((found & wanted).sum()) / both if both else 0.0


def pearson(predictions: ArrayLike, labels: ArrayLike) -> float:
    """The correlation of two variables; 0 if one of them is constant."""
    left, right = _center(predictions), _center(labels)
    scale = float(np.linalg.norm(left) * np.linalg.norm(right))
    return float(left @ right) / scale if scale > 0 else 0.0


def spearman(predictions: ArrayLike, labels: ArrayLike) -> float:
    """The correlation of ranks; equal values share the mean of theirs."""
    return pearson(_ranks(predictions), _ranks(labels))


def _center(values: ArrayLike) -> Floats:
    array = np.asarray(values, dtype=np.float64)
    centred = array - array.mean()
    return np.where(np.abs(centred) <= 1e-12 * np.abs(array).max(initial=0.0), 0.0, centred)


def _ranks(values: ArrayLike) -> Floats:
    _, inverse, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    ends = np.cumsum(counts)
    return np.asarray(((ends - counts + ends - 1) / 2)[inverse], dtype=np.float64)


# ------------------------------------------------------------------ tasks

_GLUE_FILES: dict[Split, tuple[str, ...]] = {"train": ("train.tsv",), "dev": ("dev.tsv",)}
_PAIR = ("Sentence 1: {}", "Sentence 2: {}")

TASKS = {
    task.name: task
    for task in (
        Task(
            name="rte",
            title="RTE",
            texts=("Premise: {}", "Hypothesis: {}"),
            question="Label:",
            labels=("entailment", "not entailment"),
            metrics={"accuracy": accuracy},
            files=_GLUE_FILES,
            read=_read_rte,
        ),
        Task(
            name="sst5",
            title="SST-5",
            texts=("Sentence: {}",),
            question="Sentiment:",
            labels=("terrible", "bad", "okay", "good", "great"),
            metrics={"accuracy": accuracy},
            files={"train": ("train.txt",), "dev": ("dev.txt",), "test": ("test.txt",)},
            read=_read_sst5,
        ),
        Task(
            name="mrpc",
            title="MRPC",
            texts=_PAIR,
            question="Label:",
            labels=("not equivalent", "equivalent"),
            metrics={"f1": f1, "accuracy": accuracy},
            files={
                "train": ("train.tsv", "train.txt", "msr_paraphrase_train.txt"),
                "dev": ("dev.tsv",),
                "test": ("test.txt", "msr_paraphrase_test.txt"),
            },
            read=_read_mrpc,
        ),
        Task(
            name="stsb",
            title="STS-B",
            texts=_PAIR,
            question=None,
            labels=(),
            metrics={"spearman": spearman, "pearson": pearson},
            files={
                "train": ("train.tsv", "STSB_train.csv", "sts-train.csv"),
                "dev": ("dev.tsv", "STSB_dev.csv", "sts-dev.csv"),
                "test": ("STSB_test.csv", "sts-test.csv"),
            },
            read=_read_stsb,
        ),
    )
}
"""The tasks of Table 3, by name; the first metric of each is the one in the table."""

_PAPER_PAIR = ("Sentence1: {}", "Sentence2: {}")

PAPER_TASKS = {
    **TASKS,
    "rte": replace(TASKS["rte"], labels=("Yes", "No")),
    "mrpc": replace(TASKS["mrpc"], texts=_PAPER_PAIR, labels=("0", "1")),
    "stsb": replace(TASKS["stsb"], texts=_PAPER_PAIR),
}
"""The same with the prompts and labels of the paper's appendix A."""

Preset = Literal["paper", "quick"]
TASK_SETS: dict[Preset, dict[str, Task]] = {"paper": PAPER_TASKS, "quick": TASKS}


def find_task(name: str, preset: Preset = "quick") -> Task:
    """A task by its name, in any spelling: `STS-B`, `stsb`.

    >>> find_task("SST-5").name
    'sst5'
    >>> find_task("RTE", "paper").labels
    ('Yes', 'No')
    """
    key = name.lower().replace("-", "").replace("_", "")
    if key not in TASKS:
        raise TaskError(f"task: expected one of {', '.join(TASKS)}, got {name!r}")
    return TASK_SETS[preset][key]
