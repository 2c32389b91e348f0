"""Attention on the distractor noun when the verb is predicted (the paper's analysis of attention).

The agreement suites put a noun of the other number between a head noun and its verb:

    The author that hurt the senators | is good        number_src
        ^^^^^^ head          ^^^^^^^^ distractor

The query is the token before the verb, which predicts it. In number_src and number_prep it is the
distractor itself, so that its attention on itself counts; in number_orc it is the verb of the
relative clause. A noun of several tokens has the sum of their weights. Weights are averaged over
heads, then over sentences; means over layers and over suites are unweighted. A Pushdown model
reads with its own most probable parse of the words before the verb, so that nothing that follows
has a say. The conditions of an item that differ in the verb alone are one sentence here.

A heat map is the mean over all sentences of a suite, whose words differ but whose regions do not:
the attention of a region, as the mean of its tokens, on each region, as the sum over its tokens,
averaged over heads, layers and sentences.

Shapes: L layers, H heads, T tokens read, BOS included; R regions before the verb, and BOS.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

import torch
from rich.table import Table
from torch import Tensor

from pushdown_lm.errors import PushdownError
from pushdown_lm.evals.sg import Suite
from pushdown_lm.files import atomic_write
from pushdown_lm.search.scorer import Progress, Scorer
from pushdown_lm.trees import Span

NOUNS = ("distractor", "head")


@dataclass(frozen=True, slots=True)
class Regions:
    """The numbers of the regions that a suite's sentences have in common."""

    head: int
    distractor: int
    verb: int


REGIONS = {
    "number_src": Regions(head=2, distractor=6, verb=7),
    "number_orc": Regions(head=2, distractor=5, verb=7),
    "number_prep": Regions(head=2, distractor=5, verb=6),
}


@dataclass(frozen=True, slots=True)
class AgreementPrefix:
    """A sentence up to its verb, with the characters of its two nouns."""

    text: str
    head: Span
    distractor: Span
    regions: tuple[tuple[int, Span], ...] = field(default=(), compare=False)
    """The numbers and the characters of all regions before the verb that have words."""


def agreement_prefixes(suite: Suite, regions: Regions) -> list[AgreementPrefix]:
    """The distinct sentences of a suite, cut before the verb.

    For the sentence above: ``AgreementPrefix("The author that hurt the senators", (4, 10),
    (25, 33))``.
    """
    prefixes: dict[AgreementPrefix, None] = {}
    for item in suite.items:
        for name, condition in item.conditions.items():
            for region in (regions.head, regions.distractor, regions.verb):
                start, end = condition.spans.get(region, (0, 0))
                if start == end:
                    raise PushdownError(
                        f"{suite.name}: item {item.number}, condition {name!r}: expected words in "
                        f"region {region}, got none"
                    )
            verb, _ = condition.spans[regions.verb]
            text = condition.sentence[:verb].rstrip()
            spans = condition.spans[regions.head], condition.spans[regions.distractor]
            if max(spans[0][1], spans[1][1]) > len(text):
                raise PushdownError(
                    f"{suite.name}: item {item.number}, condition {name!r}: expected both nouns "
                    "before the verb"
                )
            before = tuple(
                (number, span)
                for number, span in sorted(condition.spans.items())
                if span[0] < span[1] <= len(text)
            )
            prefixes[AgreementPrefix(text, *spans, before)] = None
    return list(prefixes)


# ------------------------------------------------------------------ evaluation


@dataclass(frozen=True, slots=True)
class SuiteAttention:
    """The mean attention of one model on the nouns of one suite."""

    sentences: int
    unknown_words: int
    """Sentences left out because of a word outside the vocabulary."""
    by_layer: Mapping[str, tuple[float, ...]]
    """By noun, "distractor" or "head", then by layer."""
    heat_map: Tensor
    """Attention between the regions before the verb, averaged over the sentences. ``(R, R)``"""
    regions: tuple[str, ...]
    """BOS and the words of the regions, those of the suite's first sentence. R of them."""

    def mean(self, noun: str) -> float:
        return _mean(self.by_layer[noun])

    def to_json(self) -> dict[str, Any]:
        return {
            "items": self.sentences,
            "failures": self.unknown_words,
            **{
                noun: {"mean": self.mean(noun), "by_layer": list(self.by_layer[noun])}
                for noun in NOUNS
            },
        }


@dataclass(frozen=True, slots=True)
class AttentionReport:
    """One model's attention on all suites."""

    scorer: dict[str, Any]
    suites: Mapping[str, SuiteAttention]

    def mean(self, noun: str) -> float:
        return _mean([suite.mean(noun) for suite in self.suites.values()])

    def table(self) -> Table:
        return attention_table({str(self.scorer["model"]): self})

    def to_json(self) -> dict[str, Any]:
        return {
            "evaluation": "attention",
            "scorer": self.scorer,
            "suite_set": list(self.suites),
            "query": "the token before the verb",
            "items": sum(suite.sentences for suite in self.suites.values()),
            "failures": sum(suite.unknown_words for suite in self.suites.values()),
            **{noun: self.mean(noun) for noun in NOUNS},
            "suites": {name: suite.to_json() for name, suite in self.suites.items()},
        }


def evaluate_attention(
    scorer: Scorer, suites: Sequence[Suite], *, progress: Progress | None = None
) -> AttentionReport:
    """Mean attention on the head noun and the distractor when the verb is predicted."""
    if not scorer.attends:
        raise PushdownError(
            f"{scorer.name}: expected a model whose attention is on words alone, found one that "
            "reads brackets too"
        )
    prefixes = {suite.name: agreement_prefixes(suite, _regions(suite)) for suite in suites}
    total, done = sum(map(len, prefixes.values())), 0
    results = {}
    for name, members in prefixes.items():
        weights: dict[str, list[Tensor]] = {noun: [] for noun in NOUNS}
        maps: list[Tensor] = []
        labels: tuple[str, ...] = ()
        numbers: list[int] = []
        for prefix in members:
            try:
                read = scorer.read_attention(prefix.text)
            except PushdownError:  # it cannot be read
                continue
            finally:
                done += 1
                if progress is not None:
                    progress(done, total)
            if not maps:
                numbers = [number for number, _ in prefix.regions]
                labels = (read.tokens[0], *_labels(prefix))
            if numbers == [number for number, _ in prefix.regions]:
                maps.append(read.between([span for _, span in prefix.regions]))
            weights["distractor"].append(read.on(prefix.distractor).mean(-1))
            weights["head"].append(read.on(prefix.head).mean(-1))
        if not maps:
            raise PushdownError(
                f"{name}: expected words of the vocabulary, but all {len(members)} sentences have "
                "unknown words"
            )
        results[name] = SuiteAttention(
            sentences=len(weights["head"]),
            unknown_words=len(members) - len(weights["head"]),
            by_layer={
                noun: tuple(torch.stack(rows).double().mean(0).tolist())
                for noun, rows in weights.items()
            },
            heat_map=torch.stack(maps).mean(0),
            regions=labels,
        )
    return AttentionReport(scorer.describe(), results)


def _labels(prefix: AgreementPrefix) -> list[str]:
    """The words of each region, the two nouns marked."""
    nouns = {prefix.head: " (head)", prefix.distractor: " (distractor)"}
    return [prefix.text[slice(*span)] + nouns.get(span, "") for _, span in prefix.regions]


def _regions(suite: Suite) -> Regions:
    if suite.name not in REGIONS:
        raise PushdownError(f"expected one of the suites {', '.join(REGIONS)}, got {suite.name!r}")
    return REGIONS[suite.name]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


# ------------------------------------------------------------------ tables and plots


def attention_table(reports: Mapping[str, AttentionReport]) -> Table:
    """Models side by side, by suite, overall and by layer."""
    table = Table(title="Mean attention when the verb is predicted")
    table.add_column("suite")
    for name in reports:
        for noun in NOUNS:
            table.add_column(f"{noun} noun\n{name}", justify="right")
    for suite in _common_suites(reports):
        means = [report.suites[suite].mean(noun) for report in reports.values() for noun in NOUNS]
        table.add_row(suite, *(f"{value:.4f}" for value in means))
    table.add_section()
    overall = [report.mean(noun) for report in reports.values() for noun in NOUNS]
    table.add_row("mean over suites", *(f"{value:.4f}" for value in overall))
    return table


def write_plots(folder: Path, reports: Mapping[str, AttentionReport]) -> list[Path]:
    """Write the bar chart, the layers, and the mean heat map of each suite."""
    drawings = {"attention.png": _draw_bars, "attention_by_layer.png": _draw_layers}
    paths = [folder / name for name in drawings]
    for path, draw in zip(paths, drawings.values(), strict=True):
        with atomic_write(path, "wb") as file:
            draw(file, reports)
    for suite in _common_suites(reports):
        paths.append(folder / f"attention_{suite}.png")
        with atomic_write(paths[-1], "wb") as file:
            _draw_heat_map(file, {name: report.suites[suite] for name, report in reports.items()})
    return paths


def _common_suites(reports: Mapping[str, AttentionReport]) -> list[str]:
    return list(next(iter(reports.values())).suites)


def _figure(rows: int, columns: int, width: float, height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width * columns, height * rows), layout="constrained")
    return figure, figure.subplots(rows, columns, squeeze=False)


def _draw_bars(file: IO[bytes], reports: Mapping[str, AttentionReport]) -> None:
    suites = _common_suites(reports)
    figure, axes = _figure(1, len(NOUNS), 4.5, 3.5)
    width = 0.8 / len(reports)
    for panel, noun in zip(axes[0], NOUNS, strict=True):
        for number, (name, report) in enumerate(reports.items()):
            shift = (number - (len(reports) - 1) / 2) * width
            panel.bar(
                [place + shift for place in range(len(suites))],
                [report.suites[suite].mean(noun) for suite in suites],
                width,
                label=name,
            )
        panel.set_xticks(range(len(suites)), suites)
        panel.set_title(f"{noun} noun")
        panel.set_ylabel("mean attention")
    axes[0][0].legend()
    figure.savefig(file, format="png", dpi=150)


def _draw_layers(file: IO[bytes], reports: Mapping[str, AttentionReport]) -> None:
    suites = _common_suites(reports)
    figure, axes = _figure(len(reports), len(NOUNS), 4.5, 3.0)
    values = {
        (name, noun): [list(report.suites[suite].by_layer[noun]) for suite in suites]
        for name, report in reports.items()
        for noun in NOUNS
    }
    top = max(value for rows in values.values() for row in rows for value in row)
    panels = [panel for row in axes for panel in row]
    for panel, ((name, noun), rows) in zip(panels, values.items(), strict=True):
        image = panel.imshow(rows, aspect="auto", vmin=0.0, vmax=top)
        panel.set_yticks(range(len(suites)), suites)
        panel.set_xticks(range(len(rows[0])), range(1, len(rows[0]) + 1))
        panel.set_xlabel("layer")
        panel.set_title(f"{name}, {noun} noun")
    figure.colorbar(image, ax=panels, label="mean attention")
    figure.savefig(file, format="png", dpi=150)


def _draw_heat_map(file: IO[bytes], attention: Mapping[str, SuiteAttention]) -> None:
    from matplotlib.colors import PowerNorm

    figure, axes = _figure(1, len(attention), 5.0, 5.0)
    for panel, (name, suite) in zip(axes[0], attention.items(), strict=True):
        image = panel.imshow(suite.heat_map, norm=PowerNorm(0.5, vmin=0.0, vmax=1.0))
        panel.set_xticks(range(len(suite.regions)), suite.regions, rotation=90)
        panel.set_yticks(range(len(suite.regions)), suite.regions)
        panel.set_xlabel("attended region")
        panel.set_ylabel("reading region")
        panel.set_title(f"{name}, {suite.sentences} sentences")
    label = "attention, mean over heads, layers and sentences"
    figure.colorbar(image, ax=list(axes[0]), label=label, shrink=0.6)
    figure.savefig(file, format="png", dpi=150)
