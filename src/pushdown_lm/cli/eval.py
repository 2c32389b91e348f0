"""`pushdown eval`: score a model on BLiMP, the SG suites, parsing, perplexity or attention.

The model is a folder with a model of Transformers; `config.json` tells its kind. The processes of
`accelerate launch` or `torchrun` share the sentences. With `--out` or `--cache`, an interrupted
evaluation resumes where it left off. Results are deterministic.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pushdown_lm.cli.options import (
    EXIT_SOME_FAILED,
    AllowUnknown,
    Beam,
    Exact,
    Threshold,
)
from pushdown_lm.console import show_loading
from pushdown_lm.errors import PushdownError
from pushdown_lm.files import check_writable, is_special, write_json
from pushdown_lm.search.defaults import DEFAULT_BEAM, DEFAULT_THRESHOLD

if TYPE_CHECKING:
    from rich.table import Table

    from pushdown_lm.evals.evaluation import Evaluation
    from pushdown_lm.search.loading import EvaluationScorer

app = typer.Typer(help=__doc__, no_args_is_help=True)


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
        help="Keep every score in this file, and reuse it; by default a file beside --out, so that "
        "the same command resumes."
    ),
]
KeepGoing = Annotated[
    bool,
    typer.Option(
        "--keep-going",
        help="Report sentences that cannot be read, leave them out, and exit with code 1.",
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
        FinalMark, typer.Option(help="Final punctuation marks as they are, or after a space.")
    ] = FinalMark.attached,
    limit: Annotated[int | None, typer.Option(min=1, help="Pairs of each paradigm.")] = None,
    out: Out = None,
    cache: Cache = None,
) -> None:
    """Minimal pairs: accuracy by paradigm, term and field.

    pushdown eval blimp --model runs/demo/seed0/demo/model --data blimp --out blimp.json
    """
    _check_outputs(out, cache)
    from pushdown_lm.evals.evaluation import blimp_evaluation

    _evaluate(
        _Model(model, beam, None if exact else threshold, allow_unknown, keep_going),
        blimp_evaluation(
            data, separate_punctuation=punctuation is FinalMark.separated, limit=limit
        ),
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
    running_text: Annotated[
        bool,
        typer.Option("--running-text", help='Let models of running text read "it." for "it .".'),
    ] = False,
    limit: Annotated[int | None, typer.Option(min=1, help="Items of each suite.")] = None,
    out: Out = None,
    cache: Cache = None,
) -> None:
    """SG test suites: accuracy by suite and circuit.

    pushdown eval sg --model runs/demo/seed0/demo/model --data sg_suites --cache scores.jsonl

    torchrun --nproc-per-node 8 --no-python pushdown eval sg
    --model runs/demo/seed0/demo/model --data runs/demo/suites/depth3 --suite-set all
    """
    _check_outputs(out, cache)
    from pushdown_lm.evals.evaluation import sg_evaluation
    from pushdown_lm.evals.sg import SUITE_SETS

    names = SUITE_SETS.get(suite_set) or sorted(path.stem for path in data.glob("*.json"))
    _evaluate(
        _Model(model, beam, None if exact else threshold, allow_unknown, keep_going),
        sg_evaluation(
            data, names, trailing_period=trailing_period, running_text=running_text, limit=limit
        ),
        options={
            "data": str(data),
            "suite_set": suite_set.value,
            "punctuation": '" ." added' if trailing_period else "as it is",
            "running_text": running_text,
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
    max_length: Annotated[
        int | None, typer.Option(min=1, help="Leave out sentences of more words.")
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of the random trees.")] = 0,
    limit: Annotated[int | None, typer.Option(min=1, help="Read this many trees.")] = None,
    out: Out = None,
    cache: Cache = None,
) -> None:
    """Unlabeled F1 of the model's best parses, beside trivial parsers'.

    Scored twice, with punctuation kept and with it deleted, as EVALB's COLLINS.prm does; the model
    reads it in any case.

    pushdown eval parsing --model runs/demo/seed0/demo/model --data test.trees
    """
    _check_outputs(out, cache)
    from pushdown_lm.evals.evaluation import parsing_evaluation
    from pushdown_lm.evals.parsing import PUNCTUATION

    _evaluate(
        _Model(model, beam, None if exact else threshold, allow_unknown, keep_going),
        parsing_evaluation(
            data,
            binarize_gold=binarize_gold,
            deleted_words=PUNCTUATION if punctuation is Punctuation.deleted else (),
            whole_sentence=whole_sentence,
            max_length=max_length,
            seed=seed,
            limit=limit,
        ),
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
    data: Annotated[Path, typer.Option(help="Sentences, one per line; with --trees, trees.")],
    trees: Annotated[
        bool,
        typer.Option(
            "--trees", help="The data are trees: also score sentences with their gold tree."
        ),
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
    _check_outputs(out, cache)
    from pushdown_lm.evals.evaluation import perplexity_evaluation, tree_perplexity_evaluation

    read = tree_perplexity_evaluation if trees else perplexity_evaluation
    _evaluate(
        _Model(model, beam, None if exact else threshold, allow_unknown, keep_going),
        read(data, limit=limit),
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
    _check_outputs(out, None if plots is None else plots / "attention.png")
    from pushdown_lm.evals.attention import attention_table, write_plots
    from pushdown_lm.evals.evaluation import attention_evaluation, evaluate
    from pushdown_lm.evals.sharding import processes
    from pushdown_lm.search.loading import check_model_folder, model_names

    for folder in model:
        check_model_folder(folder)
    evaluation = attention_evaluation(data, limit=limit)
    reports: dict[str, Any] = {}
    some_failed = False
    for name, folder in model_names(model).items():
        limit_nats = None if exact else threshold
        try:
            outcome = evaluate(
                evaluation,
                _Model(folder, beam, limit_nats, allow_unknown, keep_going).load(),
                keep_going=keep_going,
                say=_complain,
                label=f"Attention of {name}",
            )
        except PushdownError as error:
            if len(model) == 1:
                raise
            some_failed = True
            _complain(f"{name}: {error}")
        else:
            if outcome is not None:
                reports[name] = outcome.report
                some_failed |= bool(outcome.unreadable)
    if not processes().is_main_process:
        return
    if not reports:
        raise PushdownError("no model could be evaluated")
    options = {"data": str(data), "punctuation": "cut before the verb", "limit": limit}
    content = {
        "evaluation": "attention",
        "models": {name: report.to_json() for name, report in reports.items()},
    }
    _publish(content, attention_table(reports), options, out)
    for path in write_plots(plots, reports) if plots is not None else ():
        typer.echo(path)
    if some_failed:
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


def _evaluate(
    model: _Model,
    evaluation: Evaluation,
    *,
    options: dict[str, Any],
    out: Path | None,
    cache: Path | None,
) -> None:
    """Run an evaluation with the help of all processes; the main one publishes the report."""
    from pushdown_lm.evals.evaluation import evaluate

    outcome = evaluate(
        evaluation,
        model.load(),
        cache=_cache_file(out, cache),
        keep_going=model.keep_going,
        say=_complain,
    )
    if outcome is None:
        return
    _publish(outcome.report.to_json(), outcome.report.table(), options, out)
    if outcome.unreadable:
        raise typer.Exit(EXIT_SOME_FAILED)


def _complain(message: str) -> None:
    print(f"pushdown: {message}", file=sys.stderr)


def _cache_file(out: Path | None, cache: Path | None) -> Path | None:
    """The file that keeps the scores: by default beside the report."""
    if cache is None and out is not None and not is_special(out):
        return out.with_name(f"{out.stem}.scores.jsonl")
    return cache


def _check_outputs(out: Path | None, other: Path | None) -> None:
    """Find out now, not after hours, whether the results can be written."""
    for path in (out, _cache_file(out, other)):
        if path is not None:
            check_writable(path)


def _publish(
    content: dict[str, Any], table: Table, options: dict[str, Any], out: Path | None
) -> None:
    """Print the table with all that decides its figures, and write the same as JSON."""
    from rich.console import Console

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
        console.print(_list_facts(facts), highlight=False)
    console.print(_list_facts(options), highlight=False)
    if out is not None:
        write_json(out, {**content, "options": options})


def _list_facts(facts: dict[str, Any]) -> str:
    return "; ".join(f"{name.replace('_', ' ')}: {value}" for name, value in facts.items())
