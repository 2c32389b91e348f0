"""Reading trees, and building tapes.

Rates are of one core's processor time, so that other work on the machine does not count. Without
files, the trees are drawn from the built-in grammar and written out in brackets.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from time import process_time

import torch

from pushdown_lm.bench.measure import Result
from pushdown_lm.bench.train import random_attachments
from pushdown_lm.corpora.grammar import generate
from pushdown_lm.trees import read_trees, to_brackets
from pushdown_lm.trees.oracle import attachments_from_tree, stack_tape

ROUNDS = 5


def run(paths: list[Path]) -> Iterator[Result]:
    """Trees read, binarized and attached per second; milliseconds per sentence of tapes."""
    with tempfile.TemporaryDirectory() as folder:
        yield _reading(paths or [_write_generated(Path(folder))])
    yield _tapes(sentences=64, length=64)


def _write_generated(folder: Path) -> Path:
    path = folder / "generated.trees"
    trees = generate(5000, seed=0, max_nesting=5, min_nesting=3)
    path.write_text("\n".join(to_brackets(tree, tag="X") for tree in trees), encoding="utf-8")
    return path


def _reading(paths: list[Path]) -> Result:
    trees = words = 0

    def read() -> None:
        nonlocal trees, words
        trees = words = 0
        for tree in read_trees(paths, errors="skip"):
            trees += 1
            words += len(attachments_from_tree(tree)) - 2

    seconds = _fastest(read)
    return {
        "bench": "trees",
        "case": "read+binarize+attach",
        "source": ", ".join(path.name for path in paths),
        "trees": trees,
        "words": words,
        "trees_per_second": round(trees / seconds),
        "words_per_second": round(words / seconds),
    }


def _tapes(sentences: int, length: int) -> Result:
    attachments = torch.stack([random_attachments(length) for _ in range(sentences)])
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    seconds = _fastest(lambda: stack_tape(attachments))
    torch.set_num_threads(threads)
    return {
        "bench": "trees",
        "case": "tapes",
        "source": f"{sentences} sentences of {length} tokens",
        "milliseconds_per_sentence": round(1000 * seconds / sentences, 4),
    }


def _fastest(function: Callable[[], object]) -> float:
    """Processor seconds of the fastest of a few rounds."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = process_time()
        function()
        best = min(best, process_time() - began)
    return best
