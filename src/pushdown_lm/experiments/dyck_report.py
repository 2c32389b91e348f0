"""The Dyck experiment as a table and a plot, from its results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from statistics import mean
from typing import Any

from pushdown_lm.corpora.dyck import Dyck
from pushdown_lm.evals.dyck import wilson_interval
from pushdown_lm.experiments import plots
from pushdown_lm.experiments.experiment import how_made, markdown_table
from pushdown_lm.files import atomic_write

Results = dict[str, Any]
Rows = Sequence[dict[str, Any]]

BINS = {
    "distance": (50, 75, 100, 150, 200, 300, 400, 500, 700, 1000, 1400, 2001),
    "nesting": (15, 20, 25, 30, 40, 51, 75, 101, 150, 201),
}
"""Bounds of the bins of the plot, half-open."""
TICKS = {"distance": (50, 100, 200, 500, 1000, 2000), "nesting": (15, 25, 50, 100, 200)}
LABELS = {
    "distance": "distance to the matching bracket",
    "nesting": "nesting (in training: at most 10)",
}


ANSWERS = {"mixture": "the mixture over the beam", "best": "its best parse"}
DIFFERENCES = """\
What differs from the authors' experiment, besides the number of symbols read (theirs: about 32
million, 10,000 batches of 64 strings, learning rate 1e-4):

- positions in attention are rotary or left out, theirs sinusoidal and relative; the attachment head
  of the models that are named after the paper's has the authors' form, with its relative positions;
- the head's softmax runs over legal attachments, theirs over all positions;
- depth embeddings start at 0, theirs are drawn from N(0, 1);
- prefixes are drawn anew for every seed over all 20 types of brackets, theirs are about 50 a row
  from one set, of 10 types in the row of deep nesting; their beam is 50, its best parse answers.

The tape of the published model tells open tokens from closed ones, "depths" has the depths of the
paper's section 3, and "open distance" is ours: the number of open tokens to the top of the stack,
without positions in attention or head. In all models a token attaches to open tokens only, as in
the authors' search.
"""


def _rows(results: Results, model: str, row: str) -> list[dict[str, Any]]:
    """The results of a row, one for each seed that has them."""
    return [
        of_seed[model]["rows"][row]
        for of_seed in results["seeds"].values()
        if row in of_seed.get(model, {}).get("rows", {})
    ]


def _share(rows: Rows, key: str) -> str:
    """Accuracy over the items of all seeds, in percent, with its 95% interval."""
    if not rows:
        return ""
    right, items = sum(row[key] for row in rows), sum(row["items"] for row in rows)
    low, high = wilson_interval(right, items)
    return f"{100 * right / items:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def _range(rows: Rows, key: str) -> str:
    """Lowest and highest accuracy of a seed, in percent."""
    shares = [100 * row[key] / row["items"] for row in rows]
    return f"{min(shares):.1f} to {max(shares):.1f}" if shares else ""


def _mean(rows: Rows, key: str) -> str:
    return f"{100 * mean(row[key] for row in rows):.2f}" if rows else ""


def _errors_beyond_training(rows: Rows) -> str:
    """Of the parses that go wrong, the share that do so in deeper nesting than was trained on."""
    nesting = [n for row in rows for n in row.get("first_wrong_nesting", [])]
    deep = sum(n > Dyck().max_nesting for n in nesting)
    return f"{100 * deep / len(nesting):.0f} of {len(nesting)}" if nesting else ""


def _by_model(results: Results, title: str, cell: Callable[[Rows], str]) -> str:
    """A table with a line for each model and a column for each row of the test."""
    lines = [
        [model["title"], *(cell(_rows(results, name, row)) for row in results["rows"])]
        for name, model in results["models"].items()
    ]
    return markdown_table([title, *results["rows"].values()], lines)


def paper_table(results: Results) -> str:
    """Our accuracies beside the paper's, where the paper has the model; ablations left out."""
    header, columns = ["accuracy, %"], []
    for name, model in results["models"].items():
        if model["is_ablation"]:
            continue
        paper = model["paper"]
        if paper:
            header.append(f"{model['title']} (paper)")
            columns.append([f"{paper[row]:.1f}" if row in paper else "" for row in results["rows"]])
        header.append(f"{model['title']} (here)" if paper else model["title"])
        columns.append([_share(_rows(results, name, row), "correct") for row in results["rows"]])
    return markdown_table(header, list(zip(results["rows"].values(), *columns, strict=True)))


def accuracy_table(results: Results) -> str:
    """Accuracy of all models, ablations too, with their own parses."""
    return _by_model(results, "own parse, %", lambda rows: _share(rows, "correct"))


def markdown(results: Results) -> str:
    """The whole report."""
    seeds, options = ", ".join(results["seeds"]), results["options"]
    overrides = f" Overrides: {', '.join(options['overrides'])}." if options["overrides"] else ""
    parts = [
        "# Dyck languages\n",
        f"Trained on {options['strings']:,} strings of Dyck_{{20,10}}, seeds {seeds}; "
        f"{options['items']} test prefixes per row and seed.{overrides} The closing bracket is "
        "chosen among 20. In brackets: 95% Wilson intervals over the prefixes of all seeds.\n",
        "## Accuracy with the model's own parse\n",
        f"Beam {options['beam']}, threshold {options['threshold']} nats; "
        f"{ANSWERS[options['answer']]} answers.\n",
        paper_table(results),
        DIFFERENCES,
        "## Accuracy of all models\n",
        accuracy_table(results),
        "Lowest and highest seed:\n",
        _by_model(results, "own parse, %", lambda rows: _range(rows, "correct")),
        "With the gold parse:\n",
        _by_model(results, "gold parse, %", lambda rows: _share(rows, "correct_with_gold")),
        "## Attachments\n",
        "Right attachments of the best parse, and prefixes whose whole parse is right.\n",
        _by_model(results, "attachments, %", lambda rows: _mean(rows, "attachment_accuracy")),
        _by_model(results, "whole parses, %", lambda rows: _mean(rows, "whole_parses")),
        "Wrong parses whose first wrong attachment is in deeper nesting than trained on, in %:\n",
        _by_model(results, "errors, %", _errors_beyond_training),
        "## Training\n",
        _training_table(results),
        how_made(results),
    ]
    return "\n".join(parts)


def _training_table(results: Results) -> str:
    columns: dict[str, tuple[str, str]] = {
        "steps": ("steps", ",.0f"),
        "tokens": ("symbols", ",.0f"),
        "training_seconds": ("seconds", ",.0f"),
        "perplexity": ("perplexity", ".3f"),
        "attachment_accuracy": ("attachments, share", ".4f"),
    }
    lines = []
    for name, model in results["models"].items():
        metrics = [
            of_seed[name]["training"] for of_seed in results["seeds"].values() if name in of_seed
        ]
        cells = [
            format(mean(values), pattern)
            if (values := [run[key] for run in metrics if key in run])
            else ""
            for key, (_, pattern) in columns.items()
        ]
        recipe = " ".join([model["recipe"], *(f"`{change}`" for change in model["overrides"])])
        lines.append([model["title"], recipe, str(len(metrics)), *cells])
    return markdown_table(
        ["model", "recipe", "seeds", *(title for title, _ in columns.values())], lines
    )


# ------------------------------------------------------------------ plot


def curve(results: Results, model: str, kind: str) -> list[tuple[float, int, int]]:
    """Of each bin that has prefixes: its middle, the right answers and the prefixes."""
    answers = [
        (int(difficulty), int(answer))
        for row in results["rows"]
        if row.startswith(kind)
        for result in _rows(results, model, row)
        for difficulty, answer in zip(result["difficulty"].split(), result["answers"], strict=True)
    ]
    points = []
    for low, high in pairwise(BINS[kind]):
        inside = [answer for difficulty, answer in answers if low <= difficulty < high]
        if inside:
            points.append(((low + high - 1) / 2, sum(inside), len(inside)))
    return points


def write_plot(path: Path, results: Results) -> None:
    """Accuracy against distance and against nesting, with 95% intervals, as PNG."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    for axes, kind in zip(figure.subplots(1, 2, sharey=True), BINS, strict=True):
        for name, model in results["models"].items():
            if points := curve(results, name, kind):
                plots.shares(axes, points, label=model["title"])
        axes.axhline(5, linestyle=":", color="grey")
        axes.set_xscale("log")
        axes.set_xticks(TICKS[kind], [str(tick) for tick in TICKS[kind]])
        axes.minorticks_off()
        axes.set_xlabel(LABELS[kind])
    figure.axes[0].set_ylabel("accuracy, % (dotted: chance)")
    lines = {str(line.get_label()): line for axes in figure.axes for line in axes.get_lines()[:-1]}
    figure.legend([*lines.values()], [*lines], loc="outside lower center", ncols=3)
    with atomic_write(path, "wb") as file:
        figure.savefig(file, format="png", dpi=150)
