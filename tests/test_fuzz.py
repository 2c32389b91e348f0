"""Mutated input of every format: read, or refused with a PushdownError, each within a time limit.

`make test-slow` runs 100,000 inputs in all; an ordinary run has a few hundred others.
PUSHDOWN_FUZZ=N multiplies the numbers.
"""

from __future__ import annotations

import gzip
import json
import os
import random
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pushdown_lm.data.dataset import read_card
from pushdown_lm.errors import PushdownError
from pushdown_lm.evals.sg import load_suite
from pushdown_lm.training.recipe import load_recipe
from pushdown_lm.trees import binarize, draw, parse_trees, read_trees, to_brackets
from tests.cli.test_bad_input import conllu, suite

SECONDS = 20.0
"""Generous: other processes may hold the machine."""
PIECES = [b"(", b")", b" ", b"\n", b"\t", b"\x00", b"\xff", b"-NONE-", b"-LRB-", b"((", b"))",
          b"{", b"}", b"[", b"]", b'"', b":", b"&a", b"*a", b"null", b"1e999", b"-1", b"9" * 400,
          b"(ROOT", b"%", b";", b"<", b"e\xcc\x81", b"\xf0\x9f\x90\xb6", b"\r"]  # fmt: skip

CARD = json.dumps(
    {
        "format_version": 1,
        "fingerprint": "0",
        "splits": {"train": dict.fromkeys(("examples", "sentences", "words", "tokens"), 1)},
        "sources": [],
        "tokenizer": "word",
        "vocab_size": 5,
        "text": "tokenized",
        "window": None,
    }
)
RECIPE = "inherits: demo\nmodel:\n  decoder: {num_hidden_layers: 2}\ntraining: {lr: 1e-3}\n"
TREES = (
    "(ROOT (S (NP-SBJ (DT The) (NN dog)) (VP (VBZ is) (-NONE- *T*) (ADJP (JJ happy))) (. .)))\n"
    "(S (NP\n(DT A) (NN cat)) (VP sleeps))\n( ( two women ) ( are here ) )\n"
)


def _trees(content: bytes, _: Path) -> None:
    for tree in parse_trees(content.decode("utf-8", "replace")):
        assert list(parse_trees(to_brackets(binarize(tree)), format="penn"))
        draw(tree)


def _file(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    for tree in read_trees(path):
        assert tree.words


def _recipe(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    load_recipe(path)


def _suite(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    load_suite(path)


def _card(content: bytes, path: Path) -> None:
    path.write_bytes(content)
    read_card(path.parent)


KINDS: dict[str, tuple[str, bytes, Callable[[bytes, Path], None], int]] = {
    "trees": ("x.trees", TREES.encode(), _trees, 50_000),
    "conllu": ("x.conllu", conllu() + b"\n\n" + conllu(head="1") + b"\n", _file, 20_000),
    "gzip": ("x.trees.gz", gzip.compress(TREES.encode(), mtime=0), _file, 10_000),
    "recipe": ("x.yaml", RECIPE.encode(), _recipe, 5_000),
    "suite": ("x.json", suite(), _suite, 10_000),
    "card": ("card.json", CARD.encode(), _card, 5_000),
}


def mutate(seed: bytes, generator: random.Random) -> bytes:
    """A few bytes changed, cut out, repeated or put in."""
    content = bytearray(seed)
    for _ in range(generator.randint(1, 6)):
        at = generator.randrange(len(content) + 1)
        end = min(len(content), at + generator.randint(0, 12))
        kind = generator.randrange(5)
        if kind == 0:
            content[at:end] = b""
        elif kind == 1:
            content[at:at] = generator.choice(PIECES)
        elif kind == 2:
            content[at:at] = content[at:end] * generator.randint(1, 40)
        elif kind == 3 and at < len(content):
            content[at] = generator.randrange(256)
        else:
            content = content[:at] if generator.random() < 0.1 else content
    return bytes(content)


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    def stop(*_: object) -> None:
        raise AssertionError(f"took more than {seconds} s")

    before = signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)


def fuzz(kind: str, folder: Path, count: int, first: int) -> None:
    name, seed, read, _ = KINDS[kind]
    for number in range(first, first + count):
        content = mutate(seed, random.Random(f"{kind} {number}"))
        try:
            with time_limit(SECONDS):
                read(content, folder / name)
        except PushdownError:
            continue
        except Exception as error:
            raise AssertionError(f"{kind} {number}: {content[:300]!r}") from error


@pytest.mark.parametrize("kind", KINDS)
def test_a_few_mutations(kind: str, tmp_path: Path) -> None:
    fuzz(kind, tmp_path, 40, first=10**6)


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
def test_mutations(kind: str, tmp_path: Path) -> None:
    fuzz(kind, tmp_path, KINDS[kind][3] * int(os.environ.get("PUSHDOWN_FUZZ", "1")), first=0)
