"""`pushdown score`, `surprisal`, `parse` and `generate`: what one asks of a trained model.

The first three read sentences, one per line, from a file, standard input or the command line. A
line that the model cannot read is an error with its number and exit code 2; with `--keep-going` it
is reported and left out, the rest is still processed, and the exit code is 1.
"""

from __future__ import annotations

import csv
import json
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import IO, TYPE_CHECKING, Annotated, Any

import typer

from pushdown_lm.cli.sentences import ModelAndSentences, Source, model_and_sentences
from pushdown_lm.errors import PushdownError
from pushdown_lm.search.packaged import DEFAULT_MODEL

if TYPE_CHECKING:
    from pushdown_lm.console import Advance
    from pushdown_lm.search.beam import ScoredTree
    from pushdown_lm.search.pushdown_scorer import Analysis, PushdownScorer
    from pushdown_lm.trees import Errors, Tree

CHUNK = 256
"""Lines that are sorted by length and searched before their results are written."""
EXIT_SOME_FAILED = 1
DEFAULT_THRESHOLD = 10.0
"""Nats below the best parse at which a parse is dropped: a share of 0.00005 of its probability."""


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


Model = Annotated[
    str, typer.Argument(help="The folder of a trained model, or the name of an installed one.")
]
Output = Annotated[
    Path | None, typer.Option("--out", help="The file to write; by default standard output.")
]
Beam = Annotated[int, typer.Option(min=1, help="Parses that search keeps for a sentence.")]
Threshold = Annotated[
    float, typer.Option(metavar="NATS", help="Drop parses this far below the best one, for speed.")
]
Exact = Annotated[
    bool, typer.Option("--exact", help="No threshold: --beam 300 --exact is the paper's search.")
]
Pretokenised = Annotated[
    bool,
    typer.Option(
        "--pretokenised", help="Words and punctuation marks are separated by spaces already."
    ),
]
AllowUnknown = Annotated[
    bool, typer.Option("--allow-unknown", help="Read words outside the vocabulary as <unk>.")
]
KeepGoing = Annotated[
    bool, typer.Option("--keep-going", help="Report bad lines, go on, and exit with code 1.")
]


# ------------------------------------------------------------------ the commands


def score(
    arguments: ModelAndSentences = None,
    out: Output = None,
    tree: Annotated[
        bool, typer.Option("--tree", help="The input holds trees: give log p(x, y) of each.")
    ] = False,
    beam: Beam = 300,
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

    pushdown score runs/demo/seed0/demo/model sentences.txt

    echo '(S (NP the dog) sleeps)' | pushdown score runs/demo/seed0/demo/model --tree
    """
    _check_output(out)
    model, sentences = model_and_sentences(arguments)
    scorer = _load(model, beam, None if exact else threshold, allow_unknown)
    failures = _Failures(keep_going)
    with _output(out) as file:
        rows = (
            _joint_rows(scorer, sentences, failures)
            if tree
            else _marginal_rows(scorer, sentences, pretokenised, failures)
        )
        _write_table(rows, JOINT_COLUMNS if tree else MARGINAL_COLUMNS, file, format)
    failures.exit()


def surprisal(
    arguments: ModelAndSentences = None,
    out: Output = None,
    unit: Annotated[Unit, typer.Option(help="A row for each token or for each word.")] = Unit.token,
    raw: Annotated[
        bool, typer.Option("--raw-tokens", help="Tokens as the vocabulary writes them: Ġdog.")
    ] = False,
    beam: Beam = 300,
    threshold: Threshold = DEFAULT_THRESHOLD,
    exact: Exact = False,
    pretokenised: Pretokenised = False,
    allow_unknown: AllowUnknown = False,
    keep_going: KeepGoing = False,
    format: Annotated[TableFormat, typer.Option()] = TableFormat.tsv,
) -> None:
    """The surprisal of every token or word, given all before it, in bits.

    A word is what white space separates, and its surprisal is the sum of its tokens'. The space
    before a word belongs to it. The first word has its surprisal after BOS, and EOS has a row of
    its own at the end. Sentences are numbered by their lines, tokens from 1.

    Tokens are shown as text, without the space before them; a token that is white space or a part
    of a character only, and all tokens with `--raw-tokens`, as the vocabulary writes them. Tables
    are
    tab-separated, with fields that hold quotes quoted as CSV files do; `--format jsonl` has one
    object per line.

    pushdown surprisal runs/demo/seed0/demo/model sentences.txt --unit word > surprisals.tsv
    """
    _check_output(out)
    model, sentences = model_and_sentences(arguments)
    scorer = _load(model, beam, None if exact else threshold, allow_unknown)
    failures = _Failures(keep_going)
    with _output(out) as file:
        analyses = _analyse(scorer, sentences, pretokenised, failures, "Surprisals")
        rows = (
            {"sentence_id": line, "token_id": number, "token": text, "surprisal": bits}
            for line, analysis in analyses
            if analysis is not None
            for number, (text, bits) in enumerate(_units(scorer, analysis, unit, raw), start=1)
        )
        _write_table(rows, SURPRISAL_COLUMNS, file, format)
    failures.exit()


def parse(
    arguments: ModelAndSentences = None,
    out: Output = None,
    n_best: Annotated[int, typer.Option("--n-best", min=1, help="Trees a sentence.")] = 1,
    posteriors: Annotated[
        bool, typer.Option("--posteriors", help="The probability of each constituent.")
    ] = False,
    beam: Beam = 300,
    threshold: Threshold = DEFAULT_THRESHOLD,
    exact: Exact = False,
    pretokenised: Pretokenised = False,
    allow_unknown: AllowUnknown = False,
    keep_going: KeepGoing = False,
    format: Annotated[TreeFormat, typer.Option()] = TreeFormat.brackets,
) -> None:
    """The most probable tree of each sentence.

    Trees are over words: subwords are merged, and what a parse leaves open EOS closes. With
    `--n-best`, brackets follow the line's number, the rank and log2 p(x, tree). With
    `--posteriors`, constituents are labelled with their probabilities over the beam. In brackets, a
    line that was left out gives an empty line.

    pushdown parse 'The horse raced past the barn fell .' --format text

    pushdown parse runs/demo/seed0/demo/model sentences.txt --n-best 5 --posteriors
    """
    _check_output(out)
    model, sentences = model_and_sentences(arguments)
    scorer = _load(model, beam, None if exact else threshold, allow_unknown)
    failures = _Failures(keep_going)
    write = {
        TreeFormat.brackets: _write_brackets,
        TreeFormat.json: _write_tree_json,
        TreeFormat.text: _write_drawing,
    }[format]
    with _output(out) as file:
        for line, analysis in _analyse(scorer, sentences, pretokenised, failures, "Parsing"):
            write(file, line, analysis, n_best, posteriors)
    failures.exit()


def generate(
    model: Model = DEFAULT_MODEL,
    prompt: Annotated[
        list[str] | None, typer.Option(help="Text to continue; may be repeated.")
    ] = None,
    out: Output = None,
    count: Annotated[int, typer.Option(min=1, help="Samples for each prompt.")] = 1,
    max_tokens: Annotated[int, typer.Option(min=1, help="Longest sample, prompt included.")] = 64,
    temperature: Annotated[float, typer.Option(help="Below 1 sharpens, above 1 flattens.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Draw among the k best tokens.")] = None,
    top_p: Annotated[
        float | None, typer.Option(help="Draw among the best tokens of this total probability.")
    ] = None,
    seed: Annotated[
        int, typer.Option(help="Of all samples; more of them (--count) leave the first ones alone.")
    ] = 0,
    batch: Annotated[int, typer.Option(min=1, help="Samples drawn at once.")] = 64,
    beam: Beam = 300,
    format: Annotated[TreeFormat, typer.Option()] = TreeFormat.text,
) -> None:
    """Sample sentences with their trees.

    The parse of a prompt is drawn from its posterior over a beam. A sample whose text does not
    become the same tokens again has a tree over tokens instead of words.

    pushdown generate runs/demo/seed0/demo/model --count 5 --top-p 0.9

    pushdown generate runs/demo/seed0/demo/model --prompt 'the dog' --prompt 'the dogs' --seed 1
    """
    from pushdown_lm.console import progress
    from pushdown_lm.search.sampling import logits_processors, sample

    _check_output(out)
    scorer = _load(model, beam, None, allow_unknown=False)
    processors = logits_processors(temperature=temperature, top_k=top_k, top_p=top_p)
    prompts = [scorer.encode(text).ids if text else () for text in prompt or [""]]
    wanted = [(ids, (at, number)) for at, ids in enumerate(prompts) for number in range(count)]
    with _output(out) as file, progress("Sampling", len(wanted), "samples") as advance:
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
                _write_sample(file, scorer, drawn, format)
            advance(len(samples))


# ------------------------------------------------------------------ reading


@dataclass
class _Failures:
    """Lines that cannot be used."""

    keep_going: bool
    count: int = 0

    def report(self, place: str, error: Exception, count: int = 1) -> None:
        if not self.keep_going:
            raise PushdownError(f"{place}: {error}") from None
        self.count += count
        print(f"pushdown: {place}: {error}", file=sys.stderr)

    def exit(self) -> None:
        if self.count:
            print(f"pushdown: {self.count} left out", file=sys.stderr)
            raise typer.Exit(EXIT_SOME_FAILED)


def _load(folder: str, beam: int, threshold: float | None, allow_unknown: bool) -> PushdownScorer:
    from pushdown_lm.console import show_loading

    show_loading(folder)
    from transformers.utils import logging

    from pushdown_lm.search.pushdown_scorer import PushdownScorer

    logging.disable_progress_bar()
    return PushdownScorer.from_pretrained(
        folder, beam=beam, threshold=threshold, allow_unknown=allow_unknown
    )


def _analyse(
    scorer: PushdownScorer, source: Source, pretokenised: bool, failures: _Failures, label: str
) -> Iterator[tuple[int, Analysis | None]]:
    """Every line's number with what search finds, in order; None for a line that is left out."""
    from pushdown_lm.console import progress

    name, content = source.read()
    lines = content.removeprefix(b"\xef\xbb\xbf").splitlines()
    with progress(label, len(lines), "sentences") as advance:
        for start in range(0, len(lines), CHUNK):
            chunk = lines[start : start + CHUNK]
            yield from _analyse_chunk(scorer, name, start, chunk, pretokenised, failures, advance)


def _analyse_chunk(
    scorer: PushdownScorer,
    source: str,
    start: int,
    lines: Sequence[bytes],
    pretokenised: bool,
    failures: _Failures,
    advance: Advance,
) -> Iterator[tuple[int, Analysis | None]]:
    encoded = {}
    for number, line in enumerate(lines, start=start + 1):
        try:
            text = line.decode()
            encoded[number] = scorer.encode(text.split() if pretokenised else text.strip())
        except ValueError as error:
            failures.report(f"{source}:{number}", error)
            advance()
    numbers = list(encoded)
    found: dict[int, Analysis] = {}
    for batch in scorer.analyse_batches(list(encoded.values())):
        found.update({numbers[row]: analysis for row, analysis in batch.items()})
        advance(len(batch))
    for number in range(start + 1, start + len(lines) + 1):
        yield number, found.get(number)


# ------------------------------------------------------------------ tables


def _bits(nats: float) -> float:
    return nats / math.log(2)


def _per_unit(log2_prob: float, num_tokens: int, num_words: int) -> dict[str, Any]:
    return {
        "bits_per_token": -log2_prob / (num_tokens + 1),
        "bits_per_word": -log2_prob / (num_words + 1),
        "tokens": num_tokens,
        "words": num_words,
    }


def _marginal_rows(
    scorer: PushdownScorer, source: Source, pretokenised: bool, failures: _Failures
) -> Iterator[dict[str, Any]]:
    for line, analysis in _analyse(scorer, source, pretokenised, failures, "Scoring"):
        if analysis is not None:
            sentence, result = analysis.sentence, analysis.result
            log2_prob = _bits(result.log_prob)
            yield {
                "sentence_id": line,
                "log2_prob": log2_prob,
                **_per_unit(log2_prob, len(sentence.ids), len(sentence.words)),
                "bound_bits": _bits(result.log_prob_bound),
                "lost_bits": _bits(result.lost_nats),
                "entries": len(result.log_joints),
            }


def _joint_rows(
    scorer: PushdownScorer, source: Source, failures: _Failures
) -> Iterator[dict[str, Any]]:
    from pushdown_lm.console import progress
    from pushdown_lm.trees import parse_trees

    name, content = source.read()
    skipped: Counter[str] = Counter()
    errors: Errors = "skip" if failures.keep_going else "raise"
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise PushdownError(f"{name}: expected UTF-8, {error}") from None
    trees = list(parse_trees(text, source=name, errors=errors, counts=skipped))
    for reason, count in skipped.items():
        failures.report(name, PushdownError(f"{count} malformed: {reason}"), count)
    with progress("Scoring", len(trees), "trees") as advance:
        for number, tree in enumerate(trees, start=1):
            try:
                log2_joint = _bits(scorer.log_joint(tree))
                num_tokens = len(scorer.encode(tree.words).ids)
            except PushdownError as error:
                failures.report(f"{name}, tree {number}", error)
            else:
                units = _per_unit(log2_joint, num_tokens, len(tree.words))
                yield {"sentence_id": number, "log2_joint": log2_joint, **units}
            advance()


def _units(
    scorer: PushdownScorer, analysis: Analysis, unit: Unit, raw: bool
) -> list[tuple[str, float]]:
    if unit is Unit.word:
        return analysis.words
    texts = [token.text for token in analysis.tokens]
    if not raw:
        shown = [str(scorer.tokenizer.decode([id])).strip() for id in analysis.sentence.ids]
        texts = [
            text if text and "\ufffd" not in text else token
            for text, token in zip([*shown, ""], texts, strict=True)
        ]
    return list(zip(texts, [token.surprisal for token in analysis.tokens], strict=True))


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


def _write_table(
    rows: Iterator[dict[str, Any]], columns: Sequence[str], file: IO[str], format: TableFormat
) -> None:
    """Rows as JSON lines, or as a table with a header, quoted as the `csv` module does."""
    if format is TableFormat.jsonl:
        for row in rows:
            print(_json(row), file=file)
        return
    table = csv.writer(file, delimiter="\t", lineterminator="\n")
    table.writerow(columns)
    for row in rows:
        table.writerow([_cell(row[column]) for column in columns])


def _cell(value: object) -> str:
    return f"{value:.6f}" if isinstance(value, float) else str(value)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


# ------------------------------------------------------------------ trees


def _labelled(tree: Tree, probabilities: dict[tuple[int, int], float] | None) -> Tree:
    """The tree with its constituents' probabilities for labels, if there are any."""
    from pushdown_lm.trees import Tree

    if probabilities is None:
        return tree
    return Tree(tree.words, tree.spans, tuple(f"{probabilities[span]:.3f}" for span in tree.spans))


def _probabilities(
    trees: Sequence[ScoredTree], wanted: bool
) -> dict[tuple[int, int], float] | None:
    from pushdown_lm.search.beam import posteriors

    return posteriors(trees) if wanted else None


def _write_brackets(
    file: IO[str], line: int, analysis: Analysis | None, n_best: int, with_posteriors: bool
) -> None:
    from pushdown_lm.trees import to_brackets

    if analysis is None:
        print(file=file)
        return
    trees = analysis.trees()
    probabilities = _probabilities(trees, with_posteriors)
    for rank, scored in enumerate(trees[:n_best], start=1):
        brackets = to_brackets(_labelled(scored.tree, probabilities))
        columns = [brackets]
        if n_best > 1:
            columns = [str(line), str(rank), _cell(_bits(scored.log_prob)), brackets]
        print(*columns, sep="\t", file=file)


def _write_tree_json(
    file: IO[str], line: int, analysis: Analysis | None, n_best: int, with_posteriors: bool
) -> None:
    from pushdown_lm.trees import to_brackets

    if analysis is None:
        return
    trees = analysis.trees()
    record = {
        "sentence_id": line,
        "words": analysis.sentence.leaves,
        "log2_prob": _bits(analysis.result.log_prob),
        "bound_bits": _bits(analysis.result.log_prob_bound),
        "trees": [
            {
                "brackets": to_brackets(scored.tree),
                "spans": scored.tree.spans,
                "log2_prob": _bits(scored.log_prob),
                "posterior": math.exp(scored.log_prob - analysis.result.log_prob),
            }
            for scored in trees[:n_best]
        ],
    }
    probabilities = _probabilities(trees, with_posteriors)
    if probabilities is not None:
        record["posteriors"] = [[*span, value] for span, value in probabilities.items()]
    print(_json(record), file=file)


def _write_drawing(
    file: IO[str], line: int, analysis: Analysis | None, n_best: int, with_posteriors: bool
) -> None:
    from pushdown_lm.trees import draw

    if analysis is None:
        return
    trees = analysis.trees()
    probabilities = _probabilities(trees, with_posteriors)
    for rank, scored in enumerate(trees[:n_best], start=1):
        print(f"{line}.{rank}  log2 p = {_bits(scored.log_prob):.3f}", file=file)
        print(draw(_labelled(scored.tree, probabilities)), end="\n\n", file=file)


def _write_sample(file: IO[str], scorer: PushdownScorer, drawn: Any, format: TreeFormat) -> None:
    from pushdown_lm.trees import draw, to_brackets

    text, tree = scorer.read_back(drawn.tokens, drawn.history)
    if format is TreeFormat.json:
        record = {"text": text, "finished": drawn.finished, "tokens": drawn.tokens}
        if tree is not None:
            record.update(brackets=to_brackets(tree), words=tree.words, spans=tree.spans)
        print(_json(record), file=file)
    elif format is TreeFormat.brackets:
        print("" if tree is None else to_brackets(tree), file=file)
    else:
        print(text if drawn.finished else f"{text} ...", file=file)
        print("" if tree is None else draw(tree), end="\n\n", file=file)


def _check_output(path: Path | None) -> None:
    """Find out now, not after hours, whether the results can be written."""
    from pushdown_lm.files import check_writable

    if path is not None:
        check_writable(path)


@contextmanager
def _output(path: Path | None) -> Iterator[IO[str]]:
    from pushdown_lm.files import atomic_write

    if path is None:
        yield sys.stdout
    else:
        with atomic_write(path) as file:
            try:
                yield file
            except KeyboardInterrupt:
                _keep_unfinished(path, file)
                raise


def _keep_unfinished(path: Path, file: IO[str]) -> None:
    """What was written before Ctrl-C, beside the place of the whole."""
    from pushdown_lm.files import atomic_write

    if path.exists() and not path.is_file():
        return
    file.flush()
    with open(file.fileno(), encoding="utf-8", closefd=False) as written:
        written.seek(0)
        text = written.read()
    unfinished = path.with_name(f"{path.name}.partial")
    with atomic_write(unfinished) as kept:
        kept.write(text[: text.rfind("\n") + 1])
    print(f"pushdown: what is done so far is in {unfinished}", file=sys.stderr)
