"""Syntactic generalization: the SyntaxGym test suites of Hu et al. (2020).

A suite is a JSON file of items. An item is one sentence in several *conditions*, cut into
numbered *regions*, and is correct when the suite's prediction formula holds over the summed
surprisals of its regions, for instance

    [(7;%match_sing%) < (7;%mismatch_sing%)] & [(7;%match_plural%) < (7;%mismatch_plural%)]

where ``(7;%match_sing%)`` is the surprisal of region 7 in condition ``match_sing``.

A sentence is its regions, stripped, the empty ones left out, joined by single spaces. A token
belongs to the region that holds the first non-space character at or after the token's start.
So the joining space belongs to the region on its right however the tokenizer draws its offsets,
a token that crosses a boundary belongs to the region it starts in, and EOS and an added " ."
belong to no region. An empty region has surprisal 0.

So punctuation is set apart, ``The doctor studied the book .``, as models of tokenized text have
learned it, and as published scores are computed. A model of running text has hardly seen a space
before a period or a comma: for it the sentences can be read as running text (``running_text``).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from pushdown_lm.errors import PushdownError
from pushdown_lm.evals.formula import Formula
from pushdown_lm.search.scorer import Progress, Scorer, Sentence, Token, score_distinct

CIRCUITS: dict[str, tuple[str, ...]] = {
    "Agreement": ("number_orc", "number_prep", "number_src"),
    "Center Embedding": ("center_embed", "center_embed_mod"),
    "Garden-Path Effects": (
        "mvrr",
        "mvrr_mod",
        "npz_ambig",
        "npz_ambig_mod",
        "npz_obj",
        "npz_obj_mod",
    ),
    "Gross Syntactic State": (
        "subordination",
        "subordination_orc-orc",
        "subordination_pp-pp",
        "subordination_src-src",
    ),
    "Licensing": (
        "npi_orc_any",
        "npi_orc_ever",
        "npi_src_any",
        "npi_src_ever",
        "reflexive_orc_fem",
        "reflexive_orc_masc",
        "reflexive_prep_fem",
        "reflexive_prep_masc",
        "reflexive_src_fem",
        "reflexive_src_masc",
    ),
    "Long-Distance Dependencies": (
        "cleft",
        "cleft_modifier",
        "fgd-embed3",
        "fgd-embed4",
        "fgd_hierarchy",
        "fgd_object",
        "fgd_pp",
        "fgd_subject",
    ),
}
"""The circuits of Hu et al. (2020), Table 1, and their suites."""

SUITES_33: tuple[str, ...] = tuple(name for suites in CIRCUITS.values() for name in suites)
"""The suites scored by Qian et al. (2021)."""

SUITES_31: tuple[str, ...] = tuple(
    name for name in SUITES_33 if name not in {"fgd-embed3", "fgd-embed4"}
)
"""The suites scored by Hu et al. (2020)."""

SUITE_SETS: dict[str, tuple[str, ...]] = {"31": SUITES_31, "33": SUITES_33}


# --- suites -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Condition:
    """One sentence of an item, with the half-open character span of each region."""

    sentence: str
    spans: Mapping[int, tuple[int, int]]

    @classmethod
    def from_regions(cls, regions: Mapping[int, str]) -> Condition:
        """Joins the regions by single spaces, leaving empty ones out.

        >>> Condition.from_regions({1: "The", 2: "", 3: " dog"})
        Condition(sentence='The dog', spans={1: (0, 3), 2: (3, 3), 3: (4, 7)})
        """
        sentence = ""
        spans: dict[int, tuple[int, int]] = {}
        for number, content in regions.items():
            words = content.strip()
            if words and sentence:
                sentence += " "
            spans[number] = (len(sentence), len(sentence) + len(words))
            sentence += words
        return cls(sentence, spans)

    def as_read(self, *, trailing_period: bool, running_text: bool) -> Sentence:
        """What a scorer is given: the text, or its words, which each model puts together itself.

        >>> condition = Condition.from_regions({1: "He ate", 2: ", she slept ."})
        >>> condition.as_read(trailing_period=True, running_text=False)
        'He ate , she slept . .'
        >>> condition.as_read(trailing_period=True, running_text=True)
        ('He', 'ate', ',', 'she', 'slept', '.')
        """
        if not running_text:
            return self.sentence + (" ." if trailing_period else "")
        words = tuple(self.sentence.split())
        return (*words, ".") if trailing_period and words[-1] != "." else words


@dataclass(frozen=True, slots=True)
class Item:
    number: int
    conditions: Mapping[str, Condition]


@dataclass(frozen=True, slots=True)
class Suite:
    name: str
    predictions: Sequence[Formula]
    items: Sequence[Item]


def load_suite(path: Path) -> Suite:
    """Reads one SyntaxGym JSON file; errors name the file, the item and the place in it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except json.JSONDecodeError as error:
        raise PushdownError(
            f"{path}:{error.lineno}:{error.colno}: expected JSON: {error.msg}"
        ) from error
    except FileNotFoundError as error:
        raise PushdownError(f"{path}: expected a SyntaxGym suite, found no such file") from error
    except (OSError, ValueError, RecursionError) as error:
        raise PushdownError(f"{path}: expected a SyntaxGym suite: {error}") from error
    where = str(path)
    metric = _field(_field(content, "meta", dict, where), "metric", str, f"{where}: meta")
    if metric != "sum":
        raise PushdownError(f"{where}: meta: expected the metric 'sum', got {metric!r}")
    predictions = []
    for index, prediction in enumerate(_field(content, "predictions", list, where), start=1):
        place = f"{where}: prediction {index}"
        formula = _field(prediction, "formula", str, place)
        try:
            predictions.append(Formula.parse(formula))
        except PushdownError as error:
            raise PushdownError(f"{place}, {error}") from error
    if not predictions:
        raise PushdownError(f"{where}: expected at least one prediction, got none")
    items = [
        _read_item(item, index, predictions, where)
        for index, item in enumerate(_field(content, "items", list, where))
    ]
    if not items:
        raise PushdownError(f"{where}: expected at least one item, got none")
    return Suite(path.stem, tuple(predictions), tuple(items))


def load_suites(folder: Path, names: Sequence[str] = SUITES_33) -> list[Suite]:
    """Reads ``folder/name.json`` for every name (by default the set of 33)."""
    return [load_suite(folder / f"{name}.json") for name in names]


def _read_item(content: Any, index: int, predictions: Sequence[Formula], source: str) -> Item:
    number = _field(content, "item_number", int, f"{source}: item at index {index}")
    where = f"{source}: item {number}"
    conditions: dict[str, Condition] = {}
    for entry in _field(content, "conditions", list, where):
        name = _field(entry, "condition_name", str, where)
        if name in conditions:
            raise PushdownError(f"{where}: expected distinct conditions, got {name!r} twice")
        regions: dict[int, str] = {}
        in_condition = f"{where}, condition {name!r}"
        for region_index, region in enumerate(_field(entry, "regions", list, in_condition)):
            place = f"{in_condition}, region at index {region_index}"
            region_number = _field(region, "region_number", int, place)
            if region_number in regions:
                raise PushdownError(f"{place}: expected a new number, got {region_number} again")
            regions[region_number] = _field(region, "content", str, place)
        conditions[name] = Condition.from_regions(regions)
    for prediction, formula in enumerate(predictions, start=1):
        for term in formula.regions():
            if term.condition not in conditions:
                raise PushdownError(
                    f"{where}: expected the condition {term.condition!r} "
                    f"of prediction {prediction}, got {sorted(conditions)}"
                )
            spans = conditions[term.condition].spans
            if term.region is not None and term.region not in spans:
                raise PushdownError(
                    f"{where}, condition {term.condition!r}: expected the region {term.region} "
                    f"of prediction {prediction}, got regions {list(spans)}"
                )
    return Item(number, conditions)


def _field(content: Any, key: str, kind: type, where: str) -> Any:
    if not isinstance(content, dict):
        raise PushdownError(f"{where}: expected an object, got {type(content).__name__}")
    value = content.get(key)
    if not isinstance(value, kind):
        got = f"{type(value).__name__} {value!r:.40}" if key in content else "nothing"
        raise PushdownError(f"{where}: expected {key!r} to be {kind.__name__}, got {got}")
    return value


# --- evaluation -------------------------------------------------------------------------------


def region_surprisals(condition: Condition, tokens: Sequence[Token]) -> dict[int, float]:
    """The summed surprisal of each region (rules in the module's docstring).

    >>> condition = Condition.from_regions({1: "The dog", 2: "barks"})
    >>> tokens = [Token("The", 0, 3, 1.0), Token("Ġdog", 3, 7, 2.0), Token("Ġbarks", 7, 13, 4.0)]
    >>> region_surprisals(condition, [*tokens, Token("</s>", 13, 13, 8.0)])
    {1: 3.0, 2: 4.0}
    """
    region_of = {
        position: number
        for number, (start, end) in condition.spans.items()
        for position in range(start, end)
    }
    sums = dict.fromkeys(condition.spans, 0.0)
    for token in tokens:
        gap = condition.sentence[token.start :]
        first = token.start + len(gap) - len(gap.lstrip())
        if first in region_of:
            sums[region_of[first]] += token.surprisal
    return sums


@dataclass(frozen=True, slots=True)
class SuiteResult:
    """The outcome of one suite, for each of its predictions and items."""

    name: str
    item_numbers: Sequence[int]
    outcomes: Sequence[Sequence[bool]]
    """By prediction, then by item. Published scores use the first prediction."""
    ties: int
    """Items in which the two sides of a strict comparison of the first prediction are equal."""
    failures: int
    """Items, counted wrong, in which the first prediction reads a surprisal that is not finite."""

    @property
    def accuracy(self) -> float:
        return _mean(self.outcomes[0])

    def to_json(self) -> dict[str, Any]:
        return {
            "accuracy": self.accuracy,
            "accuracy_by_prediction": [_mean(outcome) for outcome in self.outcomes],
            "items": len(self.item_numbers),
            "wrong_items": [
                number
                for number, correct in zip(self.item_numbers, self.outcomes[0], strict=True)
                if not correct
            ],
            "ties": self.ties,
            "failures": self.failures,
        }


@dataclass(frozen=True, slots=True)
class SGReport:
    """Accuracies by suite, by circuit and overall; all means are unweighted over suites."""

    scorer: dict[str, Any]
    trailing_period: bool
    running_text: bool
    results: Sequence[SuiteResult]

    @property
    def suite_set(self) -> str:
        """``31``, ``33`` or ``other``."""
        names = {result.name for result in self.results}
        return next((key for key, suites in SUITE_SETS.items() if names == set(suites)), "other")

    @property
    def accuracy(self) -> float:
        return _mean([result.accuracy for result in self.results])

    @property
    def circuits(self) -> dict[str, float]:
        by_name = {result.name: result.accuracy for result in self.results}
        present = {
            circuit: [by_name[name] for name in names if name in by_name]
            for circuit, names in CIRCUITS.items()
        }
        return {circuit: _mean(accuracies) for circuit, accuracies in present.items() if accuracies}

    def to_json(self) -> dict[str, Any]:
        return {
            "evaluation": "sg",
            "scorer": self.scorer,
            "suite_set": self.suite_set,
            "trailing_period": self.trailing_period,
            "running_text": self.running_text,
            "items": sum(len(result.item_numbers) for result in self.results),
            "ties": sum(result.ties for result in self.results),
            "failures": sum(result.failures for result in self.results),
            "accuracy": self.accuracy,
            "circuits": self.circuits,
            "suites": {result.name: result.to_json() for result in self.results},
        }

    def table(self) -> Table:
        period = 'with " ." appended' if self.trailing_period else "sentences as they are"
        text = "; running text" if self.running_text else ""
        model = self.scorer.get("model")
        table = Table(title=f"SG accuracy of {model} (set: {self.suite_set}; {period}{text})")
        table.add_column("suite")
        for heading in ("items", "accuracy", "ties", "failures"):
            table.add_column(heading, justify="right")
        for result in self.results:
            counts = (str(result.ties), str(result.failures))
            row = (result.name, str(len(result.item_numbers)), f"{result.accuracy:.1%}", *counts)
            table.add_row(*row)
        table.add_section()
        for circuit, accuracy in self.circuits.items():
            table.add_row(circuit, "", f"{accuracy:.1%}", "", "")
        table.add_section()
        table.add_row("mean over suites", "", f"{self.accuracy:.1%}", "", "")
        return table


def evaluate_sg(
    scorer: Scorer,
    suites: Sequence[Suite],
    *,
    trailing_period: bool = True,
    running_text: bool = False,
    chunk_size: int = 256,
    progress: Progress | None = None,
) -> SGReport:
    """Scores a model on SyntaxGym suites.

    Args:
        trailing_period: " ." follows every sentence, as in the evaluation of Murty et al. (2023),
            also where the sentence has one already; it belongs to no region.
        running_text: models of running text read ``the book.``, not ``the book .``; a period is
            added only where there is none.
    """
    if not suites:
        raise PushdownError("expected at least one suite, got none")

    def read(condition: Condition) -> Sentence:
        return condition.as_read(trailing_period=trailing_period, running_text=running_text)

    conditions = [
        condition
        for suite in suites
        for item in suite.items
        for condition in item.conditions.values()
    ]
    tokens = score_distinct(
        scorer.surprisals,
        map(read, conditions),
        chunk_size=chunk_size,
        progress=progress,
    )
    results = []
    for suite in suites:
        surprisals = [
            {
                name: region_surprisals(condition, tokens[read(condition)])
                for name, condition in item.conditions.items()
            }
            for item in suite.items
        ]
        first = suite.predictions[0]
        finite = [first.is_finite(values) for values in surprisals]
        results.append(
            SuiteResult(
                name=suite.name,
                item_numbers=tuple(item.number for item in suite.items),
                outcomes=tuple(
                    tuple(
                        formula.is_finite(values) and formula.holds(values) for values in surprisals
                    )
                    for formula in suite.predictions
                ),
                ties=sum(
                    ok and first.has_tie(values)
                    for ok, values in zip(finite, surprisals, strict=True)
                ),
                failures=finite.count(False),
            )
        )
    return SGReport(scorer.describe(), trailing_period, running_text, tuple(results))


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)
