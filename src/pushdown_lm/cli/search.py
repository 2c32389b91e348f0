"""`pushdown score`, `surprisal`, `parse` and `generate`: questions to a trained model.

The first three read sentences, one per line, from a file, standard input or the command line. A
line that the model cannot read is an error with its number and exit code 2; with `--keep-going` it
is reported and left out, the rest is still processed, and the exit code is 1. With `--out`, an
interrupted command resumes where it left off when it is given again.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from pushdown_lm.cli.formats import (
    JOINT_COLUMNS,
    MARGINAL_COLUMNS,
    SURPRISAL_COLUMNS,
    TableFormat,
    TableWriter,
    TreeFormat,
    Unit,
    joint_row,
    marginal_row,
    surprisal_rows,
    write_pictures,
    write_sample,
    write_trees,
)
from pushdown_lm.cli.options import (
    EXIT_SOME_FAILED,
    AllowUnknown,
    Beam,
    Exact,
    Threshold,
)
from pushdown_lm.cli.resumable import Output, resumable_output
from pushdown_lm.cli.sentences import ModelAndSentences, Source, model_and_sentences
from pushdown_lm.console import progress, show_loading
from pushdown_lm.errors import PushdownError
from pushdown_lm.files import atomic_write, check_folder_writable, check_writable
from pushdown_lm.search.defaults import DEFAULT_BEAM, DEFAULT_THRESHOLD
from pushdown_lm.search.packaged import DEFAULT_MODEL

if TYPE_CHECKING:
    from pushdown_lm.console import Advance
    from pushdown_lm.search.search_scorer import Analysis, SearchScorer
    from pushdown_lm.trees import Errors, Tree

CHUNK = 64
"""Lines that are sorted by length and searched before their results are written."""


Model = Annotated[
    str, typer.Argument(help="The folder of a trained model, or the name of an installed one.")
]
OutputFile = Annotated[
    Path | None,
    typer.Option("--out", help="The file to write; by default standard output."),
]
Pretokenised = Annotated[
    bool,
    typer.Option(
        "--pretokenised", help="Words and punctuation marks are separated by spaces already."
    ),
]
KeepGoing = Annotated[
    bool,
    typer.Option("--keep-going", help="Report bad lines, leave them out, and exit with code 1."),
]


# ------------------------------------------------------------------ the commands


def score(
    arguments: ModelAndSentences = None,
    out: OutputFile = None,
    tree: Annotated[
        bool, typer.Option("--tree", help="The input holds trees: give log p(x, y) of each.")
    ] = False,
    beam: Beam = DEFAULT_BEAM,
    threshold: Threshold = DEFAULT_THRESHOLD,
    exact: Exact = False,
    pretokenised: Pretokenised = False,
    allow_unknown: AllowUnknown = False,
    keep_going: KeepGoing = False,
    format: Annotated[TableFormat, typer.Option()] = TableFormat.tsv,
) -> None:
    """Log-probabilities of sentences, summed over parses, in bits.

    EOS is scored as one more token and one more word. The exact log2 p(x) lies between `log2_prob`
    and `log2_prob + bound_bits`; `lost_bits` estimates how much the beam and the threshold left
    out.

    pushdown score runs/demo/seed0/demo/model sentences.txt --out scores.tsv

    echo '(S (NP the dog) sleeps)' | pushdown score runs/demo/seed0/demo/model --tree
    """
    model, source = model_and_sentences(arguments)
    task = _Task.open(
        source,
        out,
        keep_going,
        {"command": "score", "tree": tree, "pretokenised": pretokenised, "format": format},
    )
    scorer = _load(model, beam, None if exact else threshold, allow_unknown)
    if tree:
        _score_trees(task, scorer, format)
        return
    with task.output(scorer) as output:
        table = TableWriter(output.file, MARGINAL_COLUMNS, format, header=not output.done)
        for analyses in task.analyse(scorer, pretokenised, output, "Scoring"):
            for line, analysis in analyses:
                if analysis is not None:
                    table.write(marginal_row(line, analysis))
    task.exit()


def surprisal(
    arguments: ModelAndSentences = None,
    out: OutputFile = None,
    unit: Annotated[Unit, typer.Option(help="One row per token or per word.")] = Unit.token,
    raw: Annotated[
        bool, typer.Option("--raw-tokens", help="Tokens as the vocabulary writes them: Ġdog.")
    ] = False,
    beam: Beam = DEFAULT_BEAM,
    threshold: Threshold = DEFAULT_THRESHOLD,
    exact: Exact = False,
    pretokenised: Pretokenised = False,
    allow_unknown: AllowUnknown = False,
    keep_going: KeepGoing = False,
    format: Annotated[TableFormat, typer.Option()] = TableFormat.tsv,
) -> None:
    """The surprisal of every token or word, given all before it, in bits.

    Words are separated by white space, and the surprisal of a word is the sum of its tokens'. The
    space before a word belongs to it. The first word has its surprisal after BOS, and EOS has a row
    of its own at the end. Sentences are numbered by their lines, tokens from 1.

    Tokens are shown as text, without the space before them. A token that is only white space or
    part of a character is shown as the vocabulary writes it, as are all tokens with `--raw-tokens`.
    Tables are tab-separated, and fields with quotes are quoted as in CSV files; `--format jsonl`
    has one object per line.

    pushdown surprisal runs/demo/seed0/demo/model sentences.txt --unit word > surprisals.tsv
    """
    model, source = model_and_sentences(arguments)
    task = _Task.open(
        source,
        out,
        keep_going,
        {
            "command": "surprisal",
            "unit": unit,
            "raw": raw,
            "pretokenised": pretokenised,
            "format": format,
        },
    )
    scorer = _load(model, beam, None if exact else threshold, allow_unknown)
    with task.output(scorer) as output:
        table = TableWriter(output.file, SURPRISAL_COLUMNS, format, header=not output.done)
        for analyses in task.analyse(scorer, pretokenised, output, "Surprisals"):
            for line, analysis in analyses:
                if analysis is not None:
                    for row in surprisal_rows(line, scorer, analysis, unit, raw):
                        table.write(row)
    task.exit()


def parse(
    arguments: ModelAndSentences = None,
    out: OutputFile = None,
    n_best: Annotated[int, typer.Option("--n-best", min=1, help="Trees per sentence.")] = 1,
    posteriors: Annotated[
        bool, typer.Option("--posteriors", help="The probability of each constituent.")
    ] = False,
    beam: Beam = DEFAULT_BEAM,
    threshold: Threshold = DEFAULT_THRESHOLD,
    exact: Exact = False,
    pretokenised: Pretokenised = False,
    allow_unknown: AllowUnknown = False,
    keep_going: KeepGoing = False,
    format: Annotated[TreeFormat, typer.Option()] = TreeFormat.brackets,
    svg: Annotated[
        Path | None,
        typer.Option("--svg", metavar="FOLDER", help="Also draw each tree, into FOLDER/LINE.svg."),
    ] = None,
) -> None:
    """The most probable tree of each sentence.

    Trees are over words: subwords are merged, and constituents that a parse leaves open are closed
    by EOS. With `--n-best`, each line of brackets starts with the number of the input line, the
    rank and log2 p(x, tree). With `--posteriors`, constituents are labeled with their probabilities
    over the beam. In brackets, a line that was left out gives an empty line. With `--svg`, pictures
    of the trees, the surprisals of the words and the stack tapes are written into a folder: 1.svg
    for the first line, or 1-1.svg, 1-2.svg and so on with `--n-best`.

    pushdown parse 'The horse raced past the barn fell.' --format text

    pushdown parse runs/demo/seed0/demo/model sentences.txt --n-best 5 --posteriors

    pushdown parse runs/demo/seed0/demo/model sentences.txt --svg pictures
    """
    model, source = model_and_sentences(arguments)
    if svg is not None:
        check_folder_writable(svg)
    task = _Task.open(
        source,
        out,
        keep_going,
        {
            "command": "parse",
            "n_best": n_best,
            "posteriors": posteriors,
            "pretokenised": pretokenised,
            "format": format,
            "svg": None if svg is None else str(svg),
        },
    )
    scorer = _load(model, beam, None if exact else threshold, allow_unknown)
    with task.output(scorer) as output:
        for analyses in task.analyse(scorer, pretokenised, output, "Parsing"):
            for line, analysis in analyses:
                write_trees(output.file, line, analysis, format, n_best, posteriors)
                if svg is not None and analysis is not None:
                    write_pictures(svg, line, analysis, n_best, posteriors)
    task.exit()


def generate(
    model: Model = DEFAULT_MODEL,
    prompt: Annotated[
        list[str] | None, typer.Option(help="Text to continue; may be repeated.")
    ] = None,
    out: OutputFile = None,
    count: Annotated[int, typer.Option(min=1, help="Samples for each prompt.")] = 1,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest sample, prompt included.")] = 64,
    temperature: Annotated[
        float, typer.Option(help="Of tokens: below 1 sharpens, above 1 flattens, 0 takes the best.")
    ] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Draw among the k best tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw among the best tokens of this total probability.")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Seed; a larger --count adds samples and keeps the first ones.")
    ] = 0,
    batch: Annotated[int, typer.Option(min=1, help="Samples drawn at once.")] = 64,
    beam: Beam = DEFAULT_BEAM,
    format: Annotated[TreeFormat, typer.Option()] = TreeFormat.text,
) -> None:
    """Sample sentences with their trees.

    The parse of a prompt is drawn from its posterior over a beam. A sample whose text does not
    become the same tokens again has a tree over tokens instead of words.

    pushdown generate runs/demo/seed0/demo/model --count 5 --top-p 0.9

    pushdown generate runs/demo/seed0/demo/model --prompt 'the dog' --prompt 'the dogs' --seed 1
    """
    if out is not None:
        check_writable(out)
    _show_loading(model)
    from pushdown_lm.search.pushdown_scorer import PushdownScorer
    from pushdown_lm.search.sampling import logits_processors, sample

    scorer = PushdownScorer.from_pretrained(model, beam=beam)
    processors = logits_processors(temperature=temperature, top_k=top_k, top_p=top_p)
    prompts = [scorer.encode(text).ids if text else () for text in prompt or [""]]
    wanted = [(ids, (at, number)) for at, ids in enumerate(prompts) for number in range(count)]
    with (
        nullcontext(sys.stdout) if out is None else atomic_write(out) as file,
        progress("Sampling", len(wanted), "samples") as advance,
    ):
        for start in range(0, len(wanted), batch):
            chosen = wanted[start : start + batch]
            samples = sample(
                scorer.model,
                [ids for ids, _ in chosen],
                max_tokens=max_tokens,
                processors=processors,
                seed=seed,
                streams=[stream for _, stream in chosen],
                beam=beam,
            )
            for drawn in samples:
                write_sample(file, scorer, drawn, format)
            advance(len(samples))


# ------------------------------------------------------------------ reading


@dataclass
class _Task:
    """Lines to process, the place of their results, and how many lines failed."""

    source: str
    """The name by which messages call the input."""
    content: bytes
    out: Path | None
    keep_going: bool
    settings: dict[str, Any]
    failed: int = 0

    @classmethod
    def open(
        cls, source: Source, out: Path | None, keep_going: bool, settings: dict[str, Any]
    ) -> _Task:
        """Read the input and check the output, before a model is loaded."""
        if out is not None:
            check_writable(out)
        name, content = source.read()
        return cls(name, content.removeprefix(b"\xef\xbb\xbf"), out, keep_going, settings)

    @cached_property
    def lines(self) -> list[bytes]:
        return self.content.splitlines()

    @contextmanager
    def output(
        self, scorer: SearchScorer, items: Sequence[bytes] | None = None
    ) -> Iterator[Output]:
        """Where the results go, after those of an interrupted command with the same settings.

        Args:
            items: what is processed one after the other; the lines if left out.
        """
        items = self.lines if items is None else items
        with resumable_output(
            self.out, items, lambda: {**self.settings, **scorer.describe()}
        ) as output:
            self.failed += output.failed
            yield output

    def analyse(
        self, scorer: SearchScorer, pretokenised: bool, output: Output, label: str
    ) -> Iterator[list[tuple[int, Analysis | None]]]:
        """Chunks of lines with what search finds, in order; None for a line that is left out.

        A chunk is marked as done when the next one is asked for.
        """
        with progress(label, len(self.lines), "sentences") as advance:
            advance(output.done)
            for start in range(output.done, len(self.lines), CHUNK):
                end = min(start + CHUNK, len(self.lines))
                yield self._analyse_chunk(scorer, start, end, pretokenised, advance)
                output.save(end, self.failed)

    def _analyse_chunk(
        self, scorer: SearchScorer, start: int, end: int, pretokenised: bool, advance: Advance
    ) -> list[tuple[int, Analysis | None]]:
        encoded = {}
        for number in range(start + 1, end + 1):
            try:
                text = self.lines[number - 1].decode()
                encoded[number] = scorer.encode(text.split() if pretokenised else text.strip())
            except ValueError as error:
                self.fail(f"{self.source}:{number}", error)
                advance()
        numbers = list(encoded)
        found: dict[int, Analysis] = {}
        for batch in scorer.analyse_batches(list(encoded.values())):
            found.update({numbers[row]: analysis for row, analysis in batch.items()})
            advance(len(batch))
        return [(number, found.get(number)) for number in range(start + 1, end + 1)]

    def fail(self, place: str, error: Exception, count: int = 1) -> None:
        """Report lines that cannot be used."""
        if not self.keep_going:
            raise PushdownError(f"{place}: {error}") from None
        self.failed += count
        print(f"pushdown: {place}: {error}", file=sys.stderr)

    def exit(self) -> None:
        """End the command with the exit code that tells whether lines were left out."""
        if self.failed:
            print(f"pushdown: {self.failed} left out", file=sys.stderr)
            raise typer.Exit(EXIT_SOME_FAILED)


def _load(folder: str, beam: int, threshold: float | None, allow_unknown: bool) -> SearchScorer:
    _show_loading(folder)
    from pushdown_lm.search.loading import load_parser

    return load_parser(folder, beam=beam, threshold=threshold, allow_unknown=allow_unknown)


def _show_loading(folder: str) -> None:
    """Say what is loaded, instead of Transformers."""
    show_loading(folder)
    from transformers.utils import logging

    logging.disable_progress_bar()


def _score_trees(task: _Task, scorer: SearchScorer, format: TableFormat) -> None:
    from pushdown_lm.trees import to_brackets

    trees = _read_trees(task)
    malformed = task.failed
    items = [to_brackets(tree).encode() for tree in trees]
    with (
        task.output(scorer, items) as output,
        progress("Scoring", len(trees), "trees") as advance,
    ):
        table = TableWriter(output.file, JOINT_COLUMNS, format, header=not output.done)
        advance(output.done)
        for number, tree in enumerate(trees[output.done :], start=output.done + 1):
            try:
                table.write(joint_row(number, scorer, tree))
            except PushdownError as error:
                task.fail(f"{task.source}, tree {number}", error)
            if number % CHUNK == 0:
                output.save(number, task.failed - malformed)
            advance()
    task.exit()


def _read_trees(task: _Task) -> list[Tree]:
    from pushdown_lm.trees import parse_trees

    skipped: Counter[str] = Counter()
    errors: Errors = "skip" if task.keep_going else "raise"
    try:
        text = task.content.decode()
    except UnicodeDecodeError as error:
        raise PushdownError(f"{task.source}: expected UTF-8, {error}") from None
    trees = list(parse_trees(text, source=task.source, labels=True, errors=errors, counts=skipped))
    for reason, count in skipped.items():
        task.fail(task.source, PushdownError(f"{count} malformed: {reason}"), count)
    return trees
