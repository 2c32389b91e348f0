"""Tiny models, and a running explorer with one or two of them."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from pushdown_lm.data.tokenization import detokenize, train_bpe, train_word_vocabulary
from pushdown_lm.explorer.launch import load_library, serve_in_background
from pushdown_lm.explorer.library import Library, Limits
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from tests.models import random_model

WORDS = ["the", "dog", "that", "she", "has", "n't", "seen", "is", "here", ",", "and", "barks", "."]
LIMITS = Limits(characters=200, tokens=36, beam=100)


def save(folder: Path, tokenizer: object, seed: int, **options: object) -> Path:
    size = len(tokenizer)  # type: ignore[arg-type]
    model = random_model(seed=seed, scale=0.3, vocabulary=size, positions=40, **options)
    model.float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)  # type: ignore[attr-defined]
    return folder


@pytest.fixture(scope="session")
def word_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explorer") / "words" / "model"
    return save(folder, train_word_vocabulary([WORDS]), seed=2)


@pytest.fixture(scope="session")
def bpe_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("explorer") / "pieces"
    return save(folder, train_bpe([detokenize(WORDS)] * 3, vocab_size=280), seed=1)


@pytest.fixture(scope="session")
def base_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Base-LM: neither Pushdown Layers nor an attachment head."""
    folder = tmp_path_factory.mktemp("explorer") / "base"
    tokenizer = train_word_vocabulary([WORDS])
    return save(folder, tokenizer, seed=3, pushdown_layers=[], attachment_head=None)


@pytest.fixture(scope="session")
def bpe(bpe_folder: Path) -> PushdownScorer:
    return PushdownScorer.from_pretrained(bpe_folder)


@pytest.fixture(scope="module")
def library(bpe_folder: Path, word_folder: Path) -> Iterator[Library]:
    loaded = load_library([bpe_folder, word_folder], threshold=10.0, limits=LIMITS)
    yield loaded
    loaded.close()


@pytest.fixture(scope="module")
def address(library: Library) -> Iterator[str]:
    with serve_in_background(library) as opened:
        yield opened
