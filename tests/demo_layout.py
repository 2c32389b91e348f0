"""What `make demo` leaves behind, which examples in help texts and documents may name."""

from __future__ import annotations

from pathlib import Path

from pushdown_lm.corpora.grammar_suites import write_suites
from pushdown_lm.data.dataset import load_data
from pushdown_lm.experiments import demo
from pushdown_lm.training.recipe import load_recipe
from pushdown_lm.training.run import run_recipe

DEMO = Path("runs/demo")
FILES = ("results.json", "table.md", "accuracy.png", "surprisals.png")
FOLDERS = (
    *(f"suites/depth{depth}" for depth in (1, 2, 3, 4, 5)),
    "seed0/data",
    "seed0/vocabulary",
    "seed0/demo-base/model",
    "seed0/demo/model",
)
"""The folders of the demo, relative to its own."""
TINY = (
    "training.steps=3",
    "training.warmup_steps=1",
    "model.decoder.num_hidden_layers=1",
    "model.decoder.hidden_size=16",
    "model.decoder.no_rope_layers=[0]",
)
"""Overrides under which a model of the demo takes a second."""


def build_tiny_demo(out: Path) -> None:
    """The folders of the demo, with models that have hardly been trained."""
    options = demo.DemoOptions(sentences=150)
    for depth in options.depths:
        write_suites(demo.suites_folder(out, depth), depth=depth, items=2, seed=depth)
    folder = out / "seed0"
    demo.build_corpus(folder / "data", 0, options)
    for recipe in demo.MODELS.values():
        run_recipe(load_recipe(recipe, TINY), load_data(folder / "data"), folder / recipe)
