"""Tiny datasets and recipes, on which a training run takes a second."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from pushdown_lm.corpora.grammar import generate, vocabulary
from pushdown_lm.data.build import DataOptions, build_data
from pushdown_lm.data.dataset import Data
from pushdown_lm.training.monitor import ProgressCallback
from pushdown_lm.training.recipe import Recipe, load_recipe
from pushdown_lm.trees import Tree

TINY = Path(__file__).with_name("tiny.yaml")


def tiny_data(
    folder: Path, *, seed: int = 1, window: int | None = None, labels: bool = False
) -> Data:
    """A few hundred sentences of the built-in grammar over its whole vocabulary."""
    words = Tree(vocabulary(), ((0, len(vocabulary())),))
    train = [words, *generate(150, seed=seed)] if window is None else list(generate(150, seed=seed))
    options = DataOptions(
        tokenizer="word",
        window=window,
        allow_unknown=True,
        max_length=40,
        errors="skip",
        labels=labels,
    )
    return build_data({"train": train, "valid": list(generate(40, seed=99))}, folder, options)


def tiny_recipe(*overrides: str, steps: int = 6) -> Recipe:
    return load_recipe(TINY, [f"training.steps={steps}", *overrides])


def read_log(run: Path, kind: str | None = None) -> list[dict[str, Any]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [record for line in lines if kind in (None, (record := json.loads(line))["kind"])]


def at_step(step: int, act: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Do something at the end of a step."""
    original = ProgressCallback.on_step_end

    def on_step_end(self: Any, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        original(self, args, state, control, **kwargs)
        if state.global_step == step:
            act()

    monkeypatch.setattr(ProgressCallback, "on_step_end", on_step_end)
