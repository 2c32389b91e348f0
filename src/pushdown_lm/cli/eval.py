"""`pushdown eval`: score a model on BLiMP, the SG suites, parsing, perplexity or attention.

Any folder with a model of Transformers will do; `config.json` tells what it is. Sentences are
shared out over the processes of `accelerate launch` and `torchrun`. With `--cache`, an interrupted
evaluation goes on where it stopped. Equal commands give equal numbers.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Protocol

import typer

from pushdown_lm.cli.options import (
    DEFAULT_BEAM,
    DEFAULT_THRESHOLD,
    EXIT_SOME_FAILED,
    AllowUnknown,
    Beam,
    Exact,
    Threshold,
)
from pushdown_lm.console import sentence_progress, show_loading
from pushdown_lm.errors import PushdownError

if TYPE_CHECKING:
    from rich.table import Table

    from pushdown_lm.evals.blimp import MinimalPair
    from pushdown_lm.search.loading import EvaluationScorer
    from pushdown_lm.trees import Tree

app = typer.Typer(help=__doc__, no_args_is_help=True)

CHUNK = 128
"""Sentences that each process scores before the results are remembered."""


class SuiteSet(StrEnum):
    hu = "31"
    qian = "33"
    all = "all"


class FinalMark(StrEnum):
    attached = "attached"
    separated = "separated"


class Punctuation(StrEnum):
    kept = "kept"
    deleted = "deleted"


ModelFolder = Annotated[Path, typer.Option("--model", help="The folder of a model.")]
Out = Annotated[Path | None, typer.Option(help="Write the report here, as JSON.")]
Cache = Annotated[
    Path | None,
    typer.Option(
        help="Keep every score in this file, and reuse it; with --out, a file beside that by "
        "default, so that the same command resumes."
    ),
]
KeepGoing = Annotated[
    bool,
    typer.Option(
        "--keep-going", help="Report sentences that cannot be read, and go on without them."
    ),
]


@app.command()
def blimp(
    model: ModelFolder,
    data: Annotated[Path, typer.Option(help="A folder of *.jsonl files, or one such file.")],
    beam: Beam = DEFAULT_BEAM,
    threshold: Threshold = DEFAULT_THRESHOLD,
    exact: Exact = False,
    allow_unknown: AllowUnknown = False,
    keep_going: KeepGoing = False,
    punctuation: Annotated[
        FinalMark, typer.Option(help="Final marks as they are, or after a space.")
    ] = FinalMark.attached,
    limit: Annotated[int | None, typer.Option(min=1, help="Pairs of each paradigm.")] = None,
    out: Out = None,
    cache: Cache = None,
) -> None:
    """Minimal pairs: accuracy by paradigm, term and field.

    pushdown eval blimp --model runs/demo/seed0/demo/model --data blimp --out blimp.json
    """
    from pushdown_lm.evals.blimp import (
        evaluate_blimp,
        load_blimp,
        load_paradigm,
        separate_final_punctuation,
    )

    pairs = load_blimp(data) if data.is_dir() else load_paradigm(data)
    paradigms: dict[str, list[MinimalPair]] = {}
    for pair in pairs:
        paradigms.setdefault(pair.paradigm, []).append(pair)
    pairs = [pair for members in paradigms.values() for pair in members[:limit]]
    prepare = separate_final_punctuation if punctuation is FinalMark.separated else str
    _evaluate(
        _Model(model, beam, None if exact else threshold, allow_unknown, keep_going),
        lambda _, scorer, **chunks: evaluate_blimp(
            scorer, pairs, separate_punctuation=punctuation is FinalMark.separated, **chunks
        ),
        label="BLiMP",
        placed=[
            (f"{pair.place}: {name}", prepare(sentence))
            for pair in pairs
            for name, sentence in (("sentence_good", pair.good), ("sentence_bad", pair.bad))
        ],
        options={"data": str(data), "punctuation": punctuation.value, "limit": limit},
        out=out,
        cache=cache,
    )


@app.command()
def sg(
    model: ModelFolder,
    data: Annotated[Path, typer.Option(help="A folder of SyntaxGym suites, *.json.")],
    beam: Beam = DEFAULT_BEAM,
    threshold: Threshold = DEFAULT_THRESHOLD,
    exact: Exact = False,
    allow_unknown: AllowUnknown = False,
    keep_going: KeepGoing = False,
    suite_set: Annotated[
        SuiteSet, typer.Option(help="The suites of Hu et al., of Qian et al., or all in --data.")
    ] = SuiteSet.hu,
    trailing_period: Annotated[
        bool, typer.Option(help='Add " ." to every sentence, as the paper does.')
    ] = True,
    limit: Annotated[int | None, typer.Option(min=1, help="Items of each suite.")] = None,
    out: Out = None,
    cache: Cache = None,
) -> None:
    """SG test suites: accuracy by suite and circuit.

    pushdown eval sg --model runs/demo/seed0/demo/model --data sg_suites --cache scores.jsonl

    torchrun --nproc-per-node 8 --no-python pushdown eval sg
    --model runs/demo/seed0/demo/model --data runs/demo/suites/depth3 --suite-set all
    """
    from pushdown_lm.evals.sg import SUITE_SETS, evaluate_sg, load_suites

    names = SUITE_SETS.get(suite_set) or sorted(path.stem for path in data.glob("*.json"))
    suites = [replace(suite, items=suite.items[:limit]) for suite in load_suites(data, names)]
    ending = " ." if trailing_period else ""
    _evaluate(
        _Model(model, beam, None if exact else threshold, allow_unknown, keep_going),
        lambda _, scorer, **chunks: evaluate_sg(
            scorer, suites, trailing_period=trailing_period, **chunks
        ),
        label="SG",
        placed=[
            (
                f"{data / suite.name}.json: item {item.number}, condition {name!r}",
                condition.sentence + ending,
            )
            for suite in suites
            for item in suite.items
            for name, condition in item.conditions.items()
        ],
        options={
            "data": str(data),
            "suite_set": suite_set.value,
            "punctuation": '" ." added' if trailing_period else "as it is",
            "limit": limit,
        },
        out=out,
        cache=cache,
    )


@app.command()
def parsing(
    model: ModelFolder,
    data: Annotated[list[Path], typer.Option(help="A file of gold trees; may be repeated.")],
    beam: Beam = DEFAULT_BEAM,
    threshold: Threshold = DEFAULT_THRESHOLD,
    exact: Exact = False,
    allow_unknown: AllowUnknown = False,
    keep_going: KeepGoing = False,
    punctuation: Annotated[
        Punctuation, typer.Option(help="Which scores the report puts first; the table has both.")
    ] = Punctuation.kept,
    whole_sentence: Annotated[
        bool, typer.Option(help="Count the bracket over the whole sentence.")
    ] = True,
    binarize_gold: Annotated[
        bool, typer.Option(help="Binarize the gold trees, to the right, as in training.")
    ] = True,
    max_length: Annotated[int | None, typer.Option(min=1, help="Longest sentence, words.")] = None,
    seed: Annotated[int, typer.Option(help="Of the random trees.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Read this many trees.")] = None,
    out: Out = None,
    cache: Cache = None,
) -> None:
    """Unlabeled F1 of the model's best parses, beside trivial parsers'.

    Scored twice, with punctuation kept and with it deleted, as EVALB's COLLINS.prm does; the model
    reads it in any case.

    pushdown eval parsing --model runs/demo/seed0/demo/model --data test.trees
    """
    from pushdown_lm.evals.parsing import PUNCTUATION, evaluate_parsing
    from pushdown_lm.trees import binarize

    placed_gold = _placed_trees(data, limit)
    gold = [tree for _, tree in placed_gold]
    if binarize_gold:
        gold = list(map(binarize, gold))
    _evaluate(
        _Model(model, beam, None if exact else threshold, allow_unknown, keep_going),
        lambda _, scorer, **chunks: evaluate_parsing(
            scorer,
            gold,
            deleted_words=PUNCTUATION if punctuation is Punctuation.deleted else (),
            whole_sentence=whole_sentence,
            max_length=max_length,
            seed=seed,
            **chunks,
        ),
        label="Parsing",
        placed=[
            (place, tuple(tree.words))
            for place, tree in placed_gold
            if not max_length or len(tree.words) <= max_length
        ],
        options={
            "data": [str(path) for path in data],
            "punctuation": punctuation.value,
            "gold_trees": "binarized to the right" if binarize_gold else "as they are",
            "limit": limit,
        },
        out=out,
        cache=cache,
    )


@app.command()
def perplexity(
    model: ModelFolder,
    data: Annotated[Path, typer.Option(help="Sentences, one a line; with --trees, trees.")],
    trees: Annotated[
        bool, typer.Option("--trees", help="The data are trees: score them with their tree too.")
    ] = False,
    beam: Beam = DEFAULT_BEAM,
    threshold: Threshold = DEFAULT_THRESHOLD,
    exact: Exact = False,
    allow_unknown: AllowUnknown = False,
    keep_going: KeepGoing = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Read this many sentences.")] = None,
    out: Out = None,
    cache: Cache = None,
) -> None:
    """Perplexity per token and per word, EOS included.

    With `--trees`, the marginal over parses stands beside the joint probability of words and gold
    tree, and beside the probability of each token given the gold tree so far.

    pushdown eval perplexity --model runs/demo/seed0/demo/model --data test.trees --trees
    """
    from pushdown_lm.evals.perplexity import evaluate_perplexity
    from pushdown_lm.evals.tree_perplexity import evaluate_tree_perplexity

    placed_gold = _placed_trees([data], limit) if trees else []
    lines = [] if trees else _read_lines(data)[:limit]

    def evaluation(loaded: EvaluationScorer, scorer: Any, **chunks: Any) -> _Report:
        left_out = getattr(scorer, "unreadable", ())
        if trees:
            gold = [tree for _, tree in placed_gold if tuple(tree.words) not in left_out]
            return evaluate_tree_perplexity(loaded, gold, through=scorer, **chunks)
        sentences = [text for _, text in lines if text not in left_out]
        return evaluate_perplexity(scorer, sentences, **chunks)

    _evaluate(
        _Model(model, beam, None if exact else threshold, allow_unknown, keep_going),
        evaluation,
        label="Perplexity",
        placed=lines or [(place, tuple(tree.words)) for place, tree in placed_gold],
        options={
            "data": str(data),
            "punctuation": "as it is",
            "sentences": "leaves of trees" if trees else "lines of text",
            "limit": limit,
        },
        out=out,
        cache=cache,
    )


@app.command()
def attention(
    model: Annotated[
        list[Path], typer.Option("--model", help="The folder of a model; repeat it to compare.")
    ],
    data: Annotated[Path, typer.Option(help="A folder with the suites number_{src,orc,prep}.")],
    plots: Annotated[
        Path | None, typer.Option(help="Write the bar chart and the heat maps to this folder.")
    ] = None,
    beam: Beam = DEFAULT_BEAM,
    threshold: Threshold = DEFAULT_THRESHOLD,
    exact: Exact = False,
    allow_unknown: AllowUnknown = False,
    keep_going: KeepGoing = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Items of each suite.")] = None,
    out: Out = None,
) -> None:
    """Attention on the distractor and the head noun when the verb is predicted.

    pushdown eval attention --model runs/demo/seed0/demo-base/model
    --model runs/demo/seed0/demo/model --data sg_suites --plots plots
    """
    from pushdown_lm.evals.attention import (
        REGIONS,
        agreement_prefixes,
        attention_table,
        evaluate_attention,
        write_plots,
    )
    from pushdown_lm.evals.sg import load_suites
    from pushdown_lm.evals.sharding import processes
    from pushdown_lm.search.loading import check_model_folder

    if not processes().is_main_process:
        return
    suites = [replace(it, items=it.items[:limit]) for it in load_suites(data, tuple(REGIONS))]
    total = sum(len(agreement_prefixes(suite, REGIONS[suite.name])) for suite in suites)
    reports = {}
    _check_outputs(out, None if plots is None else plots / "attention.png")
    for folder in model:
        check_model_folder(folder)
    failures = 0
    for name, folder in zip(_names(model), model, strict=True):
        try:
            limit_nats = None if exact else threshold
            scorer = _Model(folder, beam, limit_nats, allow_unknown, keep_going).load()
            with sentence_progress(f"Attention of {name}", total) as progress:
                reports[name] = evaluate_attention(scorer, suites, progress=progress)
        except PushdownError as error:
            if not keep_going:
                raise
            failures += 1
            print(f"pushdown: {error}", file=sys.stderr)
    if not reports:
        raise PushdownError("expected at least one model that can be evaluated, got none")
    options = {"data": str(data), "punctuation": "cut before the verb", "limit": limit}
    content = {
        "evaluation": "attention",
        "models": {name: report.to_json() for name, report in reports.items()},
    }
    _publish(content, attention_table(reports), options, out)
    for path in write_plots(plots, reports) if plots is not None else ():
        typer.echo(path)
    if failures:
        raise typer.Exit(EXIT_SOME_FAILED)


# ------------------------------------------------------------------ running


@dataclass(frozen=True)
class _Model:
    folder: Path
    beam: int
    threshold: float | None
    allow_unknown: bool
    keep_going: bool = False

    def load(self) -> EvaluationScorer:
        show_loading(self.folder)
        from transformers.utils import logging

        from pushdown_lm.evals.sharding import processes
        from pushdown_lm.search.loading import load_scorer

        logging.disable_progress_bar()
        return load_scorer(
            self.folder,
            beam=self.beam,
            threshold=self.threshold,
            allow_unknown=self.allow_unknown,
            device=processes().device,
        )


class _Report(Protocol):
    def to_json(self) -> dict[str, Any]: ...
    def table(self) -> Table: ...


def _evaluate(
    model: _Model,
    evaluation: Callable[..., _Report],
    *,
    label: str,
    placed: Sequence[tuple[str, Any]],
    options: dict[str, Any],
    out: Path | None,
    cache: Path | None,
) -> None:
    """Run an evaluation with the help of all processes; the main one remembers and reports.

    It is called with the model's scorer, the same behind cache and processes, and with the options
    `chunk_size` and `progress`. All sentences, with their places, are checked first.
    """
    if cache is None and out is not None:
        cache = out.with_name(f"{out.stem}.scores.jsonl")
    _check_outputs(out, cache)
    from pushdown_lm.evals.readable import ReadableScorer, check_readable
    from pushdown_lm.evals.sharding import processes, sharded
    from pushdown_lm.search.scorer import ScoreCache

    loaded = model.load()
    unreadable: set[Any] = set()
    if processes().is_main_process:
        unreadable = check_readable(
            loaded,
            placed,
            keep_going=model.keep_going,
            report=lambda message: print(f"pushdown: {message}", file=sys.stderr),
        )
    total = len({sentence for _, sentence in placed})
    if total and len(unreadable) == total:
        raise PushdownError(f"expected sentences that the model can read, all {total} are not")
    with sharded(loaded) as shared:
        if shared is None:
            return
        scorer: Any = shared if cache is None else ScoreCache(shared, cache)
        scorer = ReadableScorer(scorer, unreadable) if unreadable else scorer
        with sentence_progress(label, total) as progress:
            report = evaluation(
                loaded, scorer, chunk_size=CHUNK * processes().num_processes, progress=progress
            )
        _publish(report.to_json(), report.table(), options, out)
    if unreadable:
        raise typer.Exit(EXIT_SOME_FAILED)


def _check_outputs(*paths: Path | None) -> None:
    """Find out now, not after hours, whether the results can be written."""
    from pushdown_lm.files import check_writable

    for path in paths:
        if path is not None:
            check_writable(path)


def _publish(
    content: dict[str, Any], table: Table, options: dict[str, Any], out: Path | None
) -> None:
    """Print the table with all that decides its figures, and write the same as JSON."""
    from rich.console import Console

    from pushdown_lm.files import write_json

    console = Console()
    console.print(table)
    for part in content.get("models", {"": content}).values():
        facts = {
            **{
                name: part["scorer"].get(name)
                for name in ("model", "tokenizer", "beam", "threshold")
            },
            **{name: part[name] for name in ("items", "ties", "failures") if name in part},
        }
        console.print(_listed(facts), highlight=False)
    console.print(_listed(options), highlight=False)
    if out is not None:
        write_json(out, {**content, "options": options})


def _listed(facts: dict[str, Any]) -> str:
    return "; ".join(f"{name.replace('_', ' ')}: {value}" for name, value in facts.items())


def _placed_trees(paths: Sequence[Path], limit: int | None) -> list[tuple[str, Tree]]:
    """The trees of files, each with its file and its number there."""
    from pushdown_lm.trees import read_trees

    placed = (
        (f"{path}, tree {number}", tree)
        for path in paths
        for number, tree in enumerate(read_trees(path), start=1)
    )
    return list(islice(placed, limit))


def _read_lines(path: Path) -> list[tuple[str, str]]:
    """The lines of a file with their places; trees, which need `--trees`, are refused."""
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise PushdownError(f"{path}: expected UTF-8, {error}") from None
    if lines and all(re.match(r"\s*\(.*\(.*\)\s*\)\s*$", line) for line in lines[:3]):
        raise PushdownError(f"{path}:1: expected sentences, found trees; --trees reads them")
    return [(f"{path}:{number}", line.strip()) for number, line in enumerate(lines, start=1)]


def _names(folders: Sequence[Path]) -> list[str]:
    """Short names of model folders: of ``runs/demo/seed0/demo/model``, ``demo``."""
    resolved = [folder.resolve() for folder in folders]
    names = [path.parent.name if path.name == "model" else path.name for path in resolved]
    return names if len(set(names)) == len(names) else [str(folder) for folder in folders]
