"""The model in the box: a trained model as a small data package that is found by name.

    python -m pushdown_lm.experiments.box_model \\
        runs/english/seed0/english models/english english --results results/english

writes ``models/english/src/pushdown_lm_english/english``: the weights in float16, the tokenizer,
and a model card whose scores come from the results of the English experiment. The package around it
(``pyproject.toml``, the words of the card) is kept in the repository by hand.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from string import Template
from typing import Any

from pushdown_lm.errors import PushdownError
from pushdown_lm.experiments.english import comparison
from pushdown_lm.files import atomic_write, whole_folder, write_json
from pushdown_lm.training.checkpoint import load_model
from pushdown_lm.training.recipe import load_recipe
from pushdown_lm.training.run import METRICS, MODEL, RECIPE

MEGABYTES = 25
"""The largest size of a model that is kept in the repository."""
CARD = "README.md"
PROVENANCE = "training.json"


class BoxError(PushdownError):
    """A model that cannot be packed."""


def pack_model(run: str | Path, folder: str | Path, card: str = "") -> Path:
    """Write the model of a finished run to ``folder``: float16 weights, tokenizer, card.

    The folder also holds the recipe and the final metrics of the run, and a manifest.
    """
    run, folder = Path(run), Path(folder)
    if not (run / METRICS).exists():
        raise BoxError(f"{run}: expected a finished run, found no {METRICS}")
    model, tokenizer = load_model(run / MODEL)
    model.half()
    size = sum(parameter.numel() for parameter in model.parameters()) * 2
    if size > MEGABYTES * 2**20:
        raise BoxError(f"{run}: {size / 2**20:.1f} MB of weights, more than {MEGABYTES} MB")
    metrics = json.loads((run / METRICS).read_text(encoding="utf-8"))
    with whole_folder(folder) as staging:
        model.save_pretrained(staging)
        tokenizer.save_pretrained(staging)
        recipe = load_recipe(run / RECIPE)
        write_json(staging / PROVENANCE, {"recipe": recipe.model_dump(), "metrics": metrics})
        if card:
            with atomic_write(staging / CARD) as file:
                file.write(card)
    return folder


def fill_card(template: str, results: dict[str, Any]) -> str:
    """The words of a card with ``$scores`` replaced by the table of the English experiment."""
    return Template(template).substitute(scores=comparison(results))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", type=Path, help="a finished training run")
    parser.add_argument("package", type=Path, help="the package's folder, such as models/english")
    parser.add_argument("name", help="the name of the model, such as english")
    parser.add_argument("--results", type=Path, required=True, help="of the English experiment")
    given = parser.parse_args()
    results = json.loads((given.results / "results.json").read_text(encoding="utf-8"))
    card = fill_card((given.package / "card.md").read_text(encoding="utf-8"), results)
    module = f"pushdown_lm_{given.package.name}"
    folder = given.package / "src" / module / given.name.replace("-", "_")
    print(pack_model(given.run, folder, card))


if __name__ == "__main__":
    main()
