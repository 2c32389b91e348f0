"""The models in the box: trained models as a small data package, found by name.

    python -m pushdown_lm.experiments.box_model \\
        models/english-base english-base --runs runs/english/seed0 --results results/english

writes ``models/english-base/src/pushdown_lm_english_base/english_base``: weights in float16,
tokenizer and provenance. ``models/english-base/README.md`` is the card: the words of ``card.md``,
with the scores that the experiment has found. The rest of the package is kept by hand.

    python -m pushdown_lm.experiments.box_model models/smollm2 --results results/pretrained

writes the card alone, here of adapters, which `pushdown adapter save` has put there.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from string import Template

from pushdown_lm.errors import PushdownError
from pushdown_lm.experiments.results_page import read_table
from pushdown_lm.files import atomic_write, whole_folder, write_json
from pushdown_lm.search.packaged import PROVENANCE
from pushdown_lm.training.checkpoint import load_model
from pushdown_lm.training.run import METRICS, MODEL, describe_training

MEGABYTES = 25
"""The largest size of a model that is kept in the repository."""
CARD, CARD_TEMPLATE = "README.md", "card.md"


class BoxError(PushdownError):
    """A model that cannot be packed."""


def pack_model(run: str | Path, folder: str | Path) -> Path:
    """Write the model of a finished run to ``folder``: float16 weights and tokenizer.

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
    with whole_folder(folder) as staging:
        model.save_pretrained(staging)
        tokenizer.save_pretrained(staging)
        write_json(staging / PROVENANCE, describe_training(run))
    return folder


def write_card(package: Path, results: Path) -> None:
    """The card of a package: its template with the table of an experiment."""
    template = Template((package / CARD_TEMPLATE).read_text(encoding="utf-8"))
    with atomic_write(package / CARD) as file:
        file.write(template.substitute(scores=read_table(results)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("package", type=Path, help="the package's folder, such as models/english")
    parser.add_argument("models", nargs="*", help="runs to pack, such as english")
    parser.add_argument("--runs", type=Path, help="the folder of the runs")
    parser.add_argument("--results", type=Path, required=True, help="of an experiment")
    given = parser.parse_args()
    module = given.package / "src" / f"pushdown_lm_{given.package.name}".replace("-", "_")
    for name in given.models:
        print(pack_model(given.runs / name, module / name.replace("-", "_")))
    write_card(given.package, given.results)


if __name__ == "__main__":
    main()
