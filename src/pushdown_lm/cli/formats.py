"""What `pushdown score`, `surprisal`, `parse` and `generate` write: tables and trees."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Sequence
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from pushdown_lm import viz
from pushdown_lm.files import atomic_write
from pushdown_lm.trees import Tree, draw, to_brackets

if TYPE_CHECKING:
    from pushdown_lm.search.beam import ScoredTree
    from pushdown_lm.search.pushdown_scorer import PushdownScorer
    from pushdown_lm.search.sampling import Sample
    from pushdown_lm.search.search_scorer import Analysis, SearchScorer


class TableFormat(StrEnum):
    tsv = "tsv"
    jsonl = "jsonl"


class TreeFormat(StrEnum):
    brackets = "brackets"
    json = "json"
    text = "text"


class Unit(StrEnum):
    token = "token"
    word = "word"


def bits(nats: float) -> float:
    return nats / math.log(2)


# ------------------------------------------------------------------ tables

UNIT_COLUMNS = ("bits_per_token", "bits_per_word", "tokens", "words")
MARGINAL_COLUMNS = (
    "sentence_id",
    "log2_prob",
    *UNIT_COLUMNS,
    "bound_bits",
    "lost_bits",
    "entries",
)
JOINT_COLUMNS = ("sentence_id", "log2_joint", *UNIT_COLUMNS)
SURPRISAL_COLUMNS = ("sentence_id", "token_id", "token", "surprisal")


class TableWriter:
    """Writes rows as JSON lines, or as a table with a header, quoted as the `csv` module does.

    Args:
        header: whether the file is new, and a table begins with its header.
    """

    def __init__(
        self, file: IO[str], columns: Sequence[str], format: TableFormat, *, header: bool
    ) -> None:
        self.file, self.columns, self.format = file, columns, format
        self._table = csv.writer(file, delimiter="\t", lineterminator="\n")
        if header and format is TableFormat.tsv:
            self._table.writerow(columns)

    def write(self, row: dict[str, Any]) -> None:
        if self.format is TableFormat.jsonl:
            print(_json(row), file=self.file)
        else:
            self._table.writerow([_cell(row[column]) for column in self.columns])


def _cell(value: object) -> str:
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def marginal_row(line: int, analysis: Analysis) -> dict[str, Any]:
    """log2 p(x) of a sentence, with what the search left out."""
    sentence, result = analysis.sentence, analysis.result
    log2_prob = bits(result.log_prob)
    return {
        "sentence_id": line,
        "log2_prob": log2_prob,
        **_per_unit(log2_prob, len(sentence.ids), len(sentence.words)),
        "bound_bits": bits(result.log_prob_bound),
        "lost_bits": bits(result.lost_nats),
        "entries": len(result.log_joints),
    }


def joint_row(number: int, scorer: SearchScorer, tree: Tree) -> dict[str, Any]:
    """log2 p(x, y) of a tree."""
    log2_joint = bits(scorer.log_joint(tree))
    units = _per_unit(log2_joint, len(scorer.encode(tree.words).ids), len(tree.words))
    return {"sentence_id": number, "log2_joint": log2_joint, **units}


def _per_unit(log2_prob: float, num_tokens: int, num_words: int) -> dict[str, Any]:
    return {
        "bits_per_token": -log2_prob / (num_tokens + 1),
        "bits_per_word": -log2_prob / (num_words + 1),
        "tokens": num_tokens,
        "words": num_words,
    }


def surprisal_rows(
    line: int, scorer: SearchScorer, analysis: Analysis, unit: Unit, raw: bool
) -> list[dict[str, Any]]:
    """The surprisals of a sentence, by token or by word."""
    return [
        {"sentence_id": line, "token_id": number, "token": text, "surprisal": surprisal}
        for number, (text, surprisal) in enumerate(_units(scorer, analysis, unit, raw), start=1)
    ]


def _units(
    scorer: SearchScorer, analysis: Analysis, unit: Unit, raw: bool
) -> list[tuple[str, float]]:
    if unit is Unit.word:
        return analysis.words
    texts = [token.text for token in analysis.tokens]
    if not raw:
        texts[:-1] = scorer.token_texts(analysis.sentence.ids)
    return list(zip(texts, [token.surprisal for token in analysis.tokens], strict=True))


# ------------------------------------------------------------------ trees


def write_trees(
    file: IO[str],
    line: int,
    analysis: Analysis | None,
    format: TreeFormat,
    n_best: int,
    posteriors: bool,
) -> None:
    """The best trees of a line; of a line that was left out, an empty line of brackets."""
    if analysis is None:
        if format is TreeFormat.brackets:
            print(file=file)
        return
    trees = analysis.trees()
    probabilities = _probabilities(trees) if posteriors else None
    if format is TreeFormat.json:
        print(_json(_tree_record(line, analysis, trees[:n_best], probabilities)), file=file)
        return
    for rank, scored in enumerate(trees[:n_best], start=1):
        tree = scored.tree if probabilities is None else _label(scored.tree, probabilities)
        log2_prob = bits(scored.log_prob)
        if format is TreeFormat.text:
            print(f"{line}.{rank}  log2 p = {log2_prob:.3f}", file=file)
            print(draw(tree), end="\n\n", file=file)
        elif n_best > 1:
            print(line, rank, _cell(log2_prob), to_brackets(tree), sep="\t", file=file)
        else:
            print(to_brackets(tree), file=file)


def write_pictures(
    folder: Path, line: int, analysis: Analysis, n_best: int, posteriors: bool
) -> None:
    """One SVG file per tree: LINE.svg, or LINE-RANK.svg if there may be several."""
    trees = analysis.trees()
    probabilities = _probabilities(trees) if posteriors else None
    for rank, scored in enumerate(trees[:n_best], start=1):
        name = f"{line}.svg" if n_best == 1 else f"{line}-{rank}.svg"
        tree = scored.tree if probabilities is None else _label(scored.tree, probabilities)
        with atomic_write(folder / name) as file:
            file.write(viz.parse(tree, analysis.leaf_surprisals))


def _probabilities(trees: Sequence[ScoredTree]) -> dict[tuple[int, int], float]:
    from pushdown_lm.search.beam import posteriors

    return posteriors(trees)


def _label(tree: Tree, probabilities: dict[tuple[int, int], float]) -> Tree:
    """The tree with its constituents' probabilities for labels."""
    return Tree(tree.words, tree.spans, tuple(f"{probabilities[span]:.3f}" for span in tree.spans))


def _tree_record(
    line: int,
    analysis: Analysis,
    trees: Sequence[ScoredTree],
    probabilities: dict[tuple[int, int], float] | None,
) -> dict[str, Any]:
    record = {
        "sentence_id": line,
        "words": analysis.sentence.leaves,
        "log2_prob": bits(analysis.result.log_prob),
        "bound_bits": bits(analysis.result.log_prob_bound),
        "trees": [
            {
                "brackets": to_brackets(scored.tree),
                "spans": scored.tree.spans,
                "log2_prob": bits(scored.log_prob),
                "posterior": math.exp(scored.log_prob - analysis.result.log_prob),
            }
            for scored in trees
        ],
    }
    if probabilities is not None:
        record["posteriors"] = [[*span, value] for span, value in probabilities.items()]
    return record


def write_sample(file: IO[str], scorer: PushdownScorer, sample: Sample, format: TreeFormat) -> None:
    """A sampled sentence with its tree."""
    text, tree = scorer.read_back(sample.tokens, sample.history)
    if format is TreeFormat.json:
        record = {"text": text, "finished": sample.finished, "tokens": sample.tokens}
        if tree is not None:
            record.update(brackets=to_brackets(tree), words=tree.words, spans=tree.spans)
        print(_json(record), file=file)
    elif format is TreeFormat.brackets:
        print("" if tree is None else to_brackets(tree), file=file)
    else:
        print(text if sample.finished else f"{text} ...", file=file)
        print("" if tree is None else draw(tree), end="\n\n", file=file)
