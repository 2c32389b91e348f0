"""Plots as PNG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import IO, Any

from matplotlib.figure import Figure

from pushdown_lm.evals.dyck import wilson_interval


def accuracy_by_depth(
    file: IO[bytes],
    depths: Sequence[int],
    curves: Mapping[str, Sequence[float]],
    trained_depth: int,
) -> None:
    """Accuracy of several models against depth; depths beyond training are shaded."""
    figure, axes = _figure(6, 4)
    for name, accuracies in curves.items():
        axes.plot(depths, [100 * value for value in accuracies], marker="o", label=name)
    axes.axvspan(trained_depth + 0.5, max(depths) + 0.5, alpha=0.1, color="grey")
    axes.set_xlim(min(depths) - 0.5, max(depths) + 0.5)
    axes.set_xticks(list(depths))
    axes.set_xlabel("nesting (shaded: deeper than in training)")
    axes.set_ylabel("accuracy, %")
    axes.legend()
    figure.savefig(file, format="png", dpi=150)


def shares(axes: Any, points: Sequence[tuple[float, int, int]], **style: Any) -> None:
    """A curve of accuracies with 95% intervals: places, right answers and answers."""
    places = [place for place, _, _ in points]
    accuracies = [100 * right / items for _, right, items in points]
    bounds = [wilson_interval(right, items) for _, right, items in points]
    (line,) = axes.plot(places, accuracies, marker=".", **style)
    lowest, highest = zip(*bounds, strict=True)
    axes.fill_between(
        places,
        [100 * low for low in lowest],
        [100 * high for high in highest],
        color=line.get_color(),
        alpha=0.15,
    )


def surprisals(file: IO[bytes], words: Sequence[tuple[str, float]]) -> None:
    """A bar a word."""
    figure, axes = _figure(max(4.0, 0.6 * len(words)), 3.5)
    axes.bar(range(len(words)), [bits for _, bits in words])
    axes.set_xticks(range(len(words)), [word for word, _ in words], rotation=45, ha="right")
    axes.set_ylabel("surprisal, bits")
    figure.savefig(file, format="png", dpi=150)


def training_curves(file: IO[bytes], curves: Mapping[str, Sequence[Mapping[str, float]]]) -> None:
    """Validation losses of several models against the steps of training."""
    losses = ("lm_loss", "attachment_loss")
    figure = Figure(figsize=(10, 4), layout="constrained")
    for axes, loss in zip(figure.subplots(1, 2), losses, strict=True):
        for name, records in curves.items():
            points = [(record["step"], record[loss]) for record in records if loss in record]
            if points:
                axes.plot(*zip(*points, strict=True), label=name)
        axes.set_xlabel("step")
        axes.set_ylabel(f"validation {loss.replace('_', ' ')}, nats")
        if axes.lines:
            axes.legend()
    figure.savefig(file, format="png", dpi=150)


def _figure(width: float, height: float) -> tuple[Figure, Any]:
    figure = Figure(figsize=(width, height), layout="constrained")
    return figure, figure.add_subplot()
