"""BLiMP (Warstadt et al. 2020): which sentence of a minimal pair does the model find likelier?

A pair is correct when log p(good) > log p(bad), over whole sentences, EOS included. Ties count as
wrong. There are 67 paradigms, each a JSON Lines file named after it; every paradigm belongs to
a linguistic term and every term to a field. Accuracies of terms, fields and the whole are
unweighted means over paradigms.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.table import Table

from pushdown_lm.errors import PushdownError
from pushdown_lm.search.scorer import Progress, Scorer, score_distinct

NUM_PARADIGMS = 67

TERM_ALIASES = {"s-selection": "argument_structure"}
FIELD_ALIASES = {"syntax/semantics": "syntax_semantics"}
"""Names in the files that the paper's 12 terms and 4 fields know under another name."""


@dataclass(frozen=True, slots=True)
class MinimalPair:
    good: str
    bad: str
    paradigm: str
    term: str
    field: str
    place: str = ""
    """File and line, for messages."""


def load_blimp(folder: Path) -> list[MinimalPair]:
    """Reads every ``*.jsonl`` file of a folder, in the order of their names."""
    paths = sorted(folder.glob("*.jsonl"))
    if not paths:
        raise PushdownError(f"{folder}: expected BLiMP's *.jsonl files, got none")
    return [pair for path in paths for pair in load_paradigm(path)]


def load_paradigm(path: Path) -> list[MinimalPair]:
    """Reads one paradigm; a bad line is an error that names file and line."""
    pairs = []
    with path.open(encoding="utf-8", errors="surrogateescape") as lines:
        for number, line in enumerate(lines, start=1):
            where = f"{path}:{number}"
            if any("\ud800" <= character <= "\udfff" for character in line):
                raise PushdownError(f"{where}: expected UTF-8 text, got other bytes")
            try:
                record = json.loads(line.rstrip("\n"))
            except RecursionError:
                raise PushdownError(f"{where}: expected an object, got deep nesting") from None
            except json.JSONDecodeError as error:
                raise PushdownError(f"{where}:{error.colno}: expected JSON: {error.msg}") from error
            if not isinstance(record, dict):
                raise PushdownError(f"{where}: expected an object, got {type(record).__name__}")
            keys = ("sentence_good", "sentence_bad", "UID", "linguistics_term", "field")
            for key in keys:
                if not isinstance(record.get(key), str) or not record[key].strip():
                    raise PushdownError(
                        f"{where}: expected {key!r} to be text, got {record.get(key)!r}"
                    )
            good, bad, paradigm, term, field = (record[key] for key in keys)
            term, field = TERM_ALIASES.get(term, term), FIELD_ALIASES.get(field, field)
            pairs.append(MinimalPair(good, bad, paradigm, term, field, where))
    if not pairs:
        raise PushdownError(f"{path}: expected minimal pairs, got an empty file")
    return pairs


def separate_final_punctuation(sentence: str) -> str:
    """Puts a space before the final mark, as in corpora of tokenized text.

    >>> separate_final_punctuation("Who left?")
    'Who left ?'
    """
    if sentence[-1:] in tuple(".?!") and sentence[-2:-1].strip():
        return f"{sentence[:-1]} {sentence[-1]}"
    return sentence


@dataclass(frozen=True, slots=True)
class ParadigmResult:
    name: str
    term: str
    field: str
    pairs: int
    correct: int
    ties: int
    """Pairs of equal log-probability, identical pairs among them; counted wrong."""
    identical: int
    """Pairs whose two sentences are the same; no model can get them right."""
    failures: int
    """Pairs with a log-probability that is NaN or positive infinity; counted wrong."""

    @property
    def accuracy(self) -> float:
        return self.correct / self.pairs

    def to_json(self) -> dict[str, Any]:
        return {
            "accuracy": self.accuracy,
            "term": self.term,
            "field": self.field,
            "items": self.pairs,
            "ties": self.ties,
            "identical": self.identical,
            "failures": self.failures,
        }


@dataclass(frozen=True, slots=True)
class BlimpReport:
    """Accuracies by paradigm, term and field, and overall."""

    scorer: dict[str, Any]
    final_punctuation_separated: bool
    results: Sequence[ParadigmResult]

    @property
    def accuracy(self) -> float:
        return _mean_accuracy(self.results)

    @property
    def terms(self) -> dict[str, float]:
        return self._means(lambda result: result.term)

    @property
    def fields(self) -> dict[str, float]:
        return self._means(lambda result: result.field)

    @property
    def suite_set(self) -> str:
        """How many of the paradigms were scored, for instance ``67 of 67 paradigms``."""
        return f"{len(self.results)} of {NUM_PARADIGMS} paradigms"

    def to_json(self) -> dict[str, Any]:
        return {
            "evaluation": "blimp",
            "scorer": self.scorer,
            "suite_set": self.suite_set,
            "final_punctuation_separated": self.final_punctuation_separated,
            "items": sum(result.pairs for result in self.results),
            "ties": sum(result.ties for result in self.results),
            "identical": sum(result.identical for result in self.results),
            "failures": sum(result.failures for result in self.results),
            "accuracy": self.accuracy,
            "fields": self.fields,
            "terms": self.terms,
            "paradigms": {result.name: result.to_json() for result in self.results},
        }

    def table(self) -> Table:
        table = Table(title=f"BLiMP accuracy of {self.scorer.get('model')} ({self.suite_set})")
        table.add_column("paradigm, term or field")
        for heading in ("pairs", "accuracy", "ties", "identical"):
            table.add_column(heading, justify="right")
        for result in self.results:
            counts = (str(result.ties), str(result.identical))
            table.add_row(result.name, str(result.pairs), f"{result.accuracy:.1%}", *counts)
        for means in (self.terms, self.fields):
            table.add_section()
            for name, accuracy in means.items():
                table.add_row(name, "", f"{accuracy:.1%}", "", "")
        table.add_section()
        table.add_row("mean over paradigms", "", f"{self.accuracy:.1%}", "", "")
        return table

    def _means(self, group: Callable[[ParadigmResult], str]) -> dict[str, float]:
        names = sorted({group(result) for result in self.results})
        return {
            name: _mean_accuracy([result for result in self.results if group(result) == name])
            for name in names
        }


def evaluate_blimp(
    scorer: Scorer,
    pairs: Sequence[MinimalPair],
    *,
    separate_punctuation: bool = False,
    chunk_size: int = 256,
    progress: Progress | None = None,
) -> BlimpReport:
    """Scores a model on minimal pairs.

    `separate_punctuation` puts a space before each sentence's final mark, for models of
    tokenized text (see `separate_final_punctuation`).
    """
    if not pairs:
        raise PushdownError("expected at least one minimal pair, got none")
    prepare = separate_final_punctuation if separate_punctuation else str
    log_probs = score_distinct(
        scorer.log_probs,
        (prepare(sentence) for pair in pairs for sentence in (pair.good, pair.bad)),
        chunk_size=chunk_size,
        progress=progress,
    )
    by_paradigm: dict[str, list[MinimalPair]] = {}
    for pair in pairs:
        by_paradigm.setdefault(pair.paradigm, []).append(pair)
    results = []
    for name, members in by_paradigm.items():
        scores = [(log_probs[prepare(pair.good)], log_probs[prepare(pair.bad)]) for pair in members]
        valid = [(good, bad) for good, bad in scores if good < math.inf and bad < math.inf]
        results.append(
            ParadigmResult(
                name=name,
                term=members[0].term,
                field=members[0].field,
                pairs=len(members),
                correct=sum(good > bad for good, bad in valid),
                ties=sum(good == bad for good, bad in valid),
                identical=sum(pair.good == pair.bad for pair in members),
                failures=len(scores) - len(valid),
            )
        )
    return BlimpReport(scorer.describe(), separate_punctuation, tuple(results))


def _mean_accuracy(results: Sequence[ParadigmResult]) -> float:
    return math.fsum(result.accuracy for result in results) / len(results)
