"""Evaluations whose data is read and checked, ready to be put to any model.

`pushdown eval` and the experiments share them:

    evaluation = blimp_evaluation("blimp")
    outcome = evaluate(evaluation, load_scorer("runs/demo/seed0/demo/model"), cache="scores.jsonl")
    print(outcome.report.to_json())

Every sentence has a place (file and item), so that one that a model cannot read is an error that
says where it is, before the model is asked anything.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from pushdown_lm.console import sentence_progress
from pushdown_lm.errors import PushdownError
from pushdown_lm.evals.attention import REGIONS, agreement_prefixes, evaluate_attention
from pushdown_lm.evals.blimp import (
    MinimalPair,
    evaluate_blimp,
    load_blimp,
    load_paradigm,
    separate_final_punctuation,
)
from pushdown_lm.evals.parsing import evaluate_parsing
from pushdown_lm.evals.perplexity import evaluate_perplexity
from pushdown_lm.evals.readable import ReadableScorer, check_readable
from pushdown_lm.evals.sg import Suite, evaluate_sg, load_suites
from pushdown_lm.evals.sharding import processes, sharded
from pushdown_lm.evals.tree_perplexity import evaluate_tree_perplexity
from pushdown_lm.search.loading import EvaluationScorer
from pushdown_lm.search.scorer import Progress, ScoreCache, Scorer, Sentence
from pushdown_lm.trees import Tree, binarize, read_trees

if TYPE_CHECKING:
    from rich.table import Table

CHUNK = 128
"""Sentences that each process scores before the results are remembered."""


class Report(Protocol):
    """What an evaluation has found."""

    def to_json(self) -> dict[str, Any]: ...
    def table(self) -> Table: ...


@dataclass(frozen=True)
class Asked:
    """A model that is asked."""

    scorer: Scorer
    """The model, behind cache and processes."""
    unreadable: Collection[Sentence]
    """Sentences that are left out."""
    progress: Progress
    chunk_size: int

    @property
    def chunks(self) -> dict[str, Any]:
        return {"chunk_size": self.chunk_size, "progress": self.progress}


@dataclass(frozen=True)
class Evaluation:
    """What is asked of a model."""

    label: str
    placed: Sequence[tuple[str, Sentence]]
    """All sentences, each with its place."""
    ask: Callable[[Asked], Report]


@dataclass(frozen=True)
class Outcome:
    """The report on a model, and the sentences that it could not read."""

    report: Report
    unreadable: Collection[Sentence]
    sentences_per_second: float | None = None
    """Of scoring, where a cache has seen it."""


def evaluate(
    evaluation: Evaluation,
    loaded: EvaluationScorer,
    *,
    cache: str | Path | None = None,
    keep_going: bool = False,
    say: Callable[[str], None] = print,
    label: str | None = None,
) -> Outcome | None:
    """Put an evaluation to a model, with the help of all processes.

    Args:
        cache: a file that remembers every score; an interrupted evaluation resumes with it.
        keep_going: leave out sentences that the model cannot read; otherwise the first is an error.
        say: called with a line for each of them.
        label: of the progress, if not the evaluation's own.

    Returns:
        the outcome in the main process; None in the others, which have helped it.
    """
    unreadable: set[Sentence] = set()
    if processes().is_main_process:
        unreadable = check_readable(loaded, evaluation.placed, keep_going=keep_going, report=say)
    total = len({sentence for _, sentence in evaluation.placed})
    if total and len(unreadable) == total:
        raise PushdownError(f"expected sentences that the model can read, all {total} are not")
    with sharded(loaded) as shared:
        if shared is None:
            return None
        remembered = None if cache is None else ScoreCache(shared, Path(cache))
        scorer: Any = remembered or shared
        scorer = ReadableScorer(scorer, unreadable) if unreadable else scorer
        with sentence_progress(label or evaluation.label, total) as progress:
            chunk_size = CHUNK * processes().num_processes
            asked = Asked(scorer, unreadable, progress, chunk_size)
            try:
                report = evaluation.ask(asked)
            except KeyboardInterrupt:
                if cache is not None:
                    say(f"scores so far are in {cache}; the same command resumes there")
                raise
        speed = None if remembered is None else remembered.sentences_per_second
        return Outcome(report, unreadable, speed)


# ------------------------------------------------------------------ the evaluations


def blimp_evaluation(
    data: str | Path, *, separate_punctuation: bool = False, limit: int | None = None
) -> Evaluation:
    """Minimal pairs of a folder of paradigms, or of one file.

    Args:
        limit: pairs of each paradigm.
    """
    data = Path(data)
    paradigms: dict[str, list[MinimalPair]] = {}
    for pair in load_blimp(data) if data.is_dir() else load_paradigm(data):
        paradigms.setdefault(pair.paradigm, []).append(pair)
    pairs = [pair for members in paradigms.values() for pair in members[:limit]]
    prepare = separate_final_punctuation if separate_punctuation else str
    return Evaluation(
        "BLiMP",
        [
            (f"{pair.place}: {name}", prepare(sentence))
            for pair in pairs
            for name, sentence in (("sentence_good", pair.good), ("sentence_bad", pair.bad))
        ],
        lambda asked: evaluate_blimp(
            asked.scorer, pairs, separate_punctuation=separate_punctuation, **asked.chunks
        ),
    )


def sg_evaluation(
    data: str | Path,
    names: Sequence[str],
    *,
    trailing_period: bool = True,
    running_text: bool = False,
    limit: int | None = None,
) -> Evaluation:
    """SG suites of a folder, by name.

    Args:
        trailing_period, running_text: as for :func:`~pushdown_lm.evals.sg.evaluate_sg`.
        limit: items of each suite.
    """
    suites = _load_suites(data, names, limit)
    reading: dict[str, Any] = {"trailing_period": trailing_period, "running_text": running_text}
    return Evaluation(
        "SG",
        [
            (
                f"{Path(data) / suite.name}.json: item {item.number}, condition {name!r}",
                condition.as_read(**reading),
            )
            for suite in suites
            for item in suite.items
            for name, condition in item.conditions.items()
        ],
        lambda asked: evaluate_sg(asked.scorer, suites, **reading, **asked.chunks),
    )


def attention_evaluation(data: str | Path, *, limit: int | None = None) -> Evaluation:
    """Attention in the suites of agreement across a distractor."""
    suites = _load_suites(data, tuple(REGIONS), limit)
    return Evaluation(
        "Attention",
        [
            (f"{Path(data) / suite.name}.json", prefix.text)
            for suite in suites
            for prefix in agreement_prefixes(suite, REGIONS[suite.name])
        ],
        lambda asked: evaluate_attention(asked.scorer, suites, progress=asked.progress),
    )


def _load_suites(data: str | Path, names: Sequence[str], limit: int | None) -> list[Suite]:
    return [replace(suite, items=suite.items[:limit]) for suite in load_suites(Path(data), names)]


def parsing_evaluation(
    paths: Sequence[str | Path],
    *,
    binarize_gold: bool = True,
    max_length: int | None = None,
    limit: int | None = None,
    **options: Any,
) -> Evaluation:
    """Gold trees of files.

    Args:
        binarize_gold: to the right, as in training.
        limit: trees in all.
        options: as for :func:`pushdown_lm.evals.parsing.evaluate_parsing`.
    """
    placed = _place_trees(paths, limit)
    gold = [binarize(tree) if binarize_gold else tree for _, tree in placed]
    return Evaluation(
        "Parsing",
        [
            (place, tuple(tree.words))
            for place, tree in placed
            if not max_length or len(tree.words) <= max_length
        ],
        lambda asked: evaluate_parsing(
            asked.scorer, gold, max_length=max_length, **options, **asked.chunks
        ),
    )


def perplexity_evaluation(path: str | Path, *, limit: int | None = None) -> Evaluation:
    """Sentences of a file, one per line."""
    lines = _read_lines(Path(path))[:limit]
    return Evaluation(
        "Perplexity",
        lines,
        lambda asked: evaluate_perplexity(
            asked.scorer,
            [text for _, text in lines if text not in asked.unreadable],
            **asked.chunks,
        ),
    )


def tree_perplexity_evaluation(path: str | Path, *, limit: int | None = None) -> Evaluation:
    """Sentences with their gold trees."""
    placed = _place_trees([path], limit)
    return Evaluation(
        "Perplexity",
        [(place, tuple(tree.words)) for place, tree in placed],
        lambda asked: evaluate_tree_perplexity(
            asked.scorer,
            [tree for _, tree in placed if tuple(tree.words) not in asked.unreadable],
            **asked.chunks,
        ),
    )


def _place_trees(paths: Sequence[str | Path], limit: int | None) -> list[tuple[str, Tree]]:
    """The trees of files, each with its file and its number there."""
    placed = (
        (f"{path}, tree {number}", tree)
        for path in paths
        for number, tree in enumerate(read_trees(path), start=1)
    )
    found = list(islice(placed, limit))
    if not found:
        raise PushdownError(f"{', '.join(map(str, paths))}: expected at least one tree, got none")
    return found


def _read_lines(path: Path) -> list[tuple[str, str]]:
    """The lines of a file with their places; trees are refused."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise PushdownError(f"{path}: expected UTF-8, {error}") from None
    if lines and all(re.match(r"\s*\(.*\(.*\)\s*\)\s*$", line) for line in lines[:3]):
        raise PushdownError(f"{path}:1: expected sentences, found trees; --trees reads them")
    if not any(line.strip() for line in lines):
        raise PushdownError(f"{path}: expected at least one sentence, got none")
    return [(f"{path}:{number}", line.strip()) for number, line in enumerate(lines, start=1)]
