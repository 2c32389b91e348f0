"""The experiment on source code as a table and a plot, from its results."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain
from pathlib import Path

from matplotlib.figure import Figure

from pushdown_lm.evals.closing import KINDS
from pushdown_lm.evals.dyck import wilson_interval
from pushdown_lm.experiments import plots
from pushdown_lm.experiments.english import comparison_rows
from pushdown_lm.experiments.experiment import how_made, markdown_table
from pushdown_lm.experiments.sentence_tests import Report
from pushdown_lm.files import atomic_write, write_json

PARSES = {"own": "", "gold": ", gold parse"}
"""Whose parse of the prefix, and what its column is called."""
FEWEST = 5
"""Prefixes that a point of the plot stands for, at least."""
MEASURES = {
    "is_likeliest": "the most probable token, %",
    "closes_right": "the most probable of the four closing words, %",
    "surprisal": "surprisal, bits",
}
"""What is said of the words that close."""


def write_report(out: Path, results: Report) -> None:
    """The results as JSON, as a table and as a plot."""
    write_json(out / "results.json", results)
    with atomic_write(out / "table.md") as file:
        file.write(markdown(results))
    if next(_columns(results), None) is not None:
        with atomic_write(out / "closing.png", "wb") as file:
            closing_plot(results).savefig(file, format="png", dpi=150)


def comparison(results: Report) -> str:
    """The models beside each other, with closing words as deep as in training, and deeper."""
    trained = results["options"]["corpus"]["max_nesting"]
    rows = comparison_rows(results)
    for kind in KINDS:
        for measure, title in MEASURES.items():
            for is_deep in (False, True):
                cells = []
                for model in results["titles"]:
                    found = _answers(results, model, "own", kind)
                    chosen = [found[depth] for depth in found if (depth > trained) == is_deep]
                    cells.append(_cell([*chain.from_iterable(chosen)], measure))
                if any(cells):
                    where = f"nesting {'over' if is_deep else 'up to'} {trained}"
                    rows.append([f"closing {kind}, {where}: {title}", *cells])
    return markdown_table(["", *results["titles"].values()], rows)


def markdown(results: Report) -> str:
    """The whole report."""
    options, corpus = results["options"], results["corpus"]
    trees = corpus["trees"]
    source = (
        "the files " + ", ".join(options["files"])
        if options["files"]
        else (f"the standard library of Python {results['versions']['python']}")
    )
    parts = [
        "# Models of source code\n",
        f"Trained on {source}: {trees['train']['files']} files, {trees['train']['words']:,} words "
        f"in units of at most {options['corpus']['max_words']}. Units with more than "
        f"{options['corpus']['max_nesting']} brackets and blocks within each other are held out of "
        f"training. Tested with {options['units']} units of other files (test), and with "
        f"as many of those files' held-out units (deep). Seeds {', '.join(results['seeds'])}; "
        f"beam {options['beam']}, threshold {options['threshold']} nats.\n",
        comparison(results),
    ]
    for kind in KINDS:
        for measure, title in MEASURES.items():
            parts += [f"## Closing {kind}: {title}\n", _by_nesting(results, kind, measure)]
    parts += [
        "In brackets: 95% Wilson intervals. Without a note, the parse of the prefix is the model's "
        "own, summed over the beam.\n",
        how_made(results),
    ]
    return "\n".join(parts)


def _by_nesting(results: Report, kind: str, measure: str) -> str:
    """A line for each nesting, a column for each model and parse."""
    columns = {
        title: _answers(results, model, parse, kind) for model, parse, title in _columns(results)
    }
    depths = sorted({depth for found in columns.values() for depth in found})
    rows = [
        [str(depth), *(_cell(found.get(depth, []), measure) for found in columns.values())]
        for depth in depths
    ]
    return markdown_table(["nesting", *columns], rows)


def _columns(results: Report) -> Iterator[tuple[str, str, str]]:
    """Model, parse and title of everything that was asked for closing words."""
    for model, title in results["titles"].items():
        for parse, note in PARSES.items():
            found = [of_seed.get(model, {}) for of_seed in results["seeds"].values()]
            if any(parse in result.get("closing", {}) for result in found):
                yield model, parse, title + note


def _answers(results: Report, model: str, parse: str, kind: str) -> dict[int, list[Report]]:
    """What was counted at each nesting, with each seed."""
    found: dict[int, list[Report]] = {}
    for of_seed in results["seeds"].values():
        of_parse = of_seed.get(model, {}).get("closing", {}).get(parse, {})
        for depth, row in of_parse.get(kind, {}).items():
            found.setdefault(int(depth), []).append(row)
    return found


def _count(rows: Sequence[Report], measure: str) -> tuple[int, int]:
    """Right answers, and all."""
    return sum(row[measure] for row in rows), sum(row["items"] for row in rows)


def _cell(rows: Sequence[Report], measure: str) -> str:
    """An accuracy with its interval, or a mean."""
    if not rows:
        return ""
    if measure == "surprisal":
        total = sum(row["surprisal"] * row["items"] for row in rows)
        return f"{total / sum(row['items'] for row in rows):.2f}"
    right, items = _count(rows, measure)
    low, high = wilson_interval(right, items)
    return f"{100 * right / items:.1f} [{100 * low:.1f}, {100 * high:.1f}]"


def closing_plot(results: Report) -> Figure:
    """Accuracy against nesting, with 95% intervals; nesting beyond training is shaded."""
    figure = Figure(figsize=(11, 4.2), layout="constrained")
    trained = results["options"]["corpus"]["max_nesting"]
    for axes, kind in zip(figure.subplots(1, 2, sharey=True), KINDS, strict=True):
        deepest = trained
        for model, parse, title in _columns(results):
            counts = {
                depth: _count(rows, "is_likeliest")
                for depth, rows in sorted(_answers(results, model, parse, kind).items())
            }
            points = [(n, right, items) for n, (right, items) in counts.items() if items >= FEWEST]
            if points:
                style = "-" if parse == "own" else "--"
                plots.shares(axes, points, label=title, linestyle=style)
                deepest = max(deepest, points[-1][0])
        axes.axvspan(trained + 0.5, deepest + 0.5, alpha=0.1, color="grey")
        axes.set_xlim(0.5, deepest + 0.5)
        axes.set_xlabel(f"nesting of the closed {kind} (shaded: deeper than in training)")
        axes.set_ylabel(f"closing {kind} predicted, %")
    if figure.axes[0].lines:
        figure.axes[0].legend()
    return figure
