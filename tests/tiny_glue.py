"""Task files of eight examples, and random models whose tokenizer knows their words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from pushdown_lm.corpora.glue import TASKS
from pushdown_lm.data.tokenization import train_bpe
from tests.models import prompt_model

PLACES = {
    "rte": ("train.tsv", "dev.tsv"),
    "sst5": ("train.txt", "dev.txt"),
    "mrpc": ("train.txt", "test.txt"),
    "stsb": ("STSB_train.csv", "STSB_dev.csv"),
}
NOUNS = ("dog", "cat", "judge", "king", "baker", "child")


def mini_file(task: str) -> str:
    """Eight examples in the form of a task's file."""
    rows = []
    for number in range(8):
        first, second = NOUNS[number % 6], NOUNS[number * 5 % 6]
        texts = f"The {first} sleeps.\tA {second} sleeps."
        if task == "rte":
            label = "entailment" if first == second else "not_entailment"
            rows.append(f"{number}\t{texts}\t{label}")
        elif task == "mrpc":
            rows.append(f"{int(first == second)}\t1\t2\t{texts}")
        elif task == "stsb":
            rows.append(f"main\tx\t2012\t{number}\t{number % 6}.0\t{texts}")
        else:
            rows.append(f"({number % 6 % 5} (2 (2 The) (2 {first})) (2 (2 sleeps) (2 .)))")
    headers = {
        "rte": ["index\tsentence1\tsentence2\tlabel"],
        "mrpc": ["Quality\t#1 ID\t#2 ID\t#1 String\t#2 String"],
    }
    return "\n".join([*headers.get(task, []), *rows, ""])


def save_tasks(folder: Path) -> Path:
    for task, names in PLACES.items():
        (folder / task).mkdir()
        for name in names:
            (folder / task / name).write_text(mini_file(task))
    return folder


def save_model(folder: Path, **options: Any) -> Path:
    """A random model whose tokenizer knows the words of the prompts."""
    texts = [[text] for text in (*NOUNS, *map(mini_file, PLACES))]
    for task in TASKS.values():
        texts += [[template.replace("{}", "x")] for template in task.texts]
        texts += [[f"{task.question} {label}"] * 3 for label in task.labels]
    tokenizer = train_bpe(texts, vocab_size=520)
    model = prompt_model(tokenizer, **options)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
