"""`pushdown data`: trees to datasets that a model trains on."""

from __future__ import annotations

import json as json_module
import sys
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from pushdown_lm.data.build import DataOptions
    from pushdown_lm.trees import Tree

app = typer.Typer(help=__doc__, no_args_is_help=True)


class Direction(StrEnum):
    right = "right"
    left = "left"


class OnError(StrEnum):
    raise_ = "raise"
    skip = "skip"


class ConstituentsChoice(StrEnum):
    heads = "heads"
    penn = "penn"


class NonprojectiveChoice(StrEnum):
    report = "report"
    lift = "lift"


class TreeFormat(StrEnum):
    auto = "auto"
    penn = "penn"
    binary = "binary"
    conllu = "conllu"
    snli = "snli"


EXAMPLES = """
Examples:

    pushdown data build train.trees --valid valid.trees --test test.trees --out data/dickens

    pushdown data build 'wsj/**/*.mrg.gz' --split 0.9,0.05,0.05 --tokenizer bpe:16000 --out data/wsj

    pushdown data build train.trees --valid valid.trees --labels --out data/labeled

    pushdown data build corpus.trees --tokenizer gpt2/ --window 512 --errors skip --out data/windows

    pushdown data build 'ud/*.conllu' --constituents penn --nonprojective lift --out data/ud
"""


@app.command(epilog=EXAMPLES)
def build(
    trees: Annotated[
        list[str],
        typer.Argument(
            metavar="TREES...",
            help="Files of training trees; globs and .gz allowed; - is standard input.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    valid: Annotated[
        list[str] | None, typer.Option(help="Files of validation trees; may be repeated.")
    ] = None,
    test: Annotated[
        list[str] | None, typer.Option(help="Files of test trees; may be repeated.")
    ] = None,
    split: Annotated[
        str | None,
        typer.Option(metavar="A,B,C", help="Split TREES instead: shares of train, valid, test."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of --split.")] = 0,
    tokenizer: Annotated[
        str,
        typer.Option(
            metavar="bpe:SIZE|word|word:min_count=N|FOLDER",
            help="Train a byte-level BPE, collect a word vocabulary (closed, or with <unk> for "
            "words rarer than N), or use the tokenizer of a folder.",
        ),
    ] = "bpe:8000",
    allow_unknown: Annotated[
        bool, typer.Option("--allow-unknown", help="Words outside the vocabulary become <unk>.")
    ] = False,
    window: Annotated[
        int | None,
        typer.Option(metavar="N", help="Windows of at most N tokens instead of sentences."),
    ] = None,
    max_length: Annotated[
        int | None, typer.Option(metavar="N", help="Skip sentences of more than N tokens.")
    ] = None,
    binarize: Annotated[
        Direction, typer.Option(help="How constituents of many children become binary.")
    ] = Direction.right,
    detokenize: Annotated[
        bool | None,
        typer.Option(
            "--detokenize/--keep-tokenised",
            help="Whether words are put back into running text; by default they are, unless "
            "tokens are whole words.",
        ),
    ] = None,
    labels: Annotated[
        bool,
        typer.Option("--labels", help="Keep the labels too, for the recipes plm, plm-mask and tg."),
    ] = False,
    format: Annotated[TreeFormat, typer.Option(help="Format of the files.")] = TreeFormat.auto,
    constituents: Annotated[
        ConstituentsChoice,
        typer.Option(help="How dependencies become constituents: by heads, or in Penn's manner."),
    ] = ConstituentsChoice.heads,
    nonprojective: Annotated[
        NonprojectiveChoice, typer.Option(help="Whether crossing dependencies are errors.")
    ] = NonprojectiveChoice.report,
    language: Annotated[
        str, typer.Option(help="Whose word lists help --constituents penn: en, de, fr or es.")
    ] = "en",
    errors: Annotated[
        OnError, typer.Option(help="What to do about a tree that cannot be used.")
    ] = OnError.raise_,
    processes: Annotated[int, typer.Option(min=1, help="Processes that encode.")] = 1,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a dataset of other sources or options.")
    ] = False,
) -> None:
    """Trees to an Arrow dataset of token ids and attachments.

    An interrupted build resumes where it left off when the same command is given again.
    """
    from pushdown_lm.data.build import DataOptions, build_data

    options = DataOptions(
        tokenizer=tokenizer,
        window=window,
        max_length=max_length,
        binarize=binarize.value,
        detokenize=detokenize,
        allow_unknown=allow_unknown,
        split=None if split is None else parse_shares(split),
        seed=seed,
        format=format.value,
        errors=errors.value,
        constituents=constituents.value,
        nonprojective=nonprojective.value,
        language=language,
        labels=labels,
    )
    given = {"train": trees, "valid": valid, "test": test}
    sources: dict[str, Any] = {name: files for name, files in given.items() if files}
    if trees == ["-"]:
        sources["train"] = _standard_input(options)
    data = build_data(sources, out, options, processes=processes, overwrite=overwrite)
    print_card(data.card)


def _standard_input(options: DataOptions) -> list[Tree]:
    """The trees of standard input, which are read once and kept."""
    from pushdown_lm.data.encoding import DataError
    from pushdown_lm.trees import parse_trees

    try:
        text = sys.stdin.buffer.read().decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise DataError(f"<stdin>: expected UTF-8, {error}") from None
    trees = parse_trees(
        text,
        format=options.format,
        labels=options.labels,
        errors=options.errors,
        constituents=options.constituents,
        nonprojective=options.nonprojective,
        language=options.language,
        source="<stdin>",
    )
    return list(trees)


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(help="A dataset made by `pushdown data build`.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Read everything and check it by its SHA-256.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="The whole card as JSON.")] = False,
) -> None:
    """What a dataset holds."""
    from pushdown_lm.data.dataset import load_data

    data = load_data(folder)
    if verify:
        data.verify()
    if json:
        typer.echo(json_module.dumps(data.card, indent=2, ensure_ascii=False))
    else:
        print_card(data.card)


def parse_shares(text: str) -> tuple[float, float, float]:
    """What `--split 0.9,0.05,0.05` asks for."""
    from pushdown_lm.data.encoding import DataError

    try:
        train, valid, test = map(float, text.split(","))
    except ValueError:
        raise DataError(
            f"split: expected three shares as 0.9,0.05,0.05 (train, valid, test), got {text!r}"
        ) from None
    return train, valid, test


COUNTS = {
    "examples": "examples",
    "sentences": "sentences",
    "words": "words",
    "tokens": "tokens",
    "longest_example": "longest example",
    "max_depth": "largest depth",
    "max_stack_size": "largest stack",
    "differing_sentences": "other tokens than the text's",
    "merged_words": "words within another's token",
}


def print_card(card: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    examples = "sentences" if card["window"] is None else f"windows of {card['window']} tokens"
    title = f"{examples}, {card['tokenizer']} tokenizer of {card['vocab_size']:,} entries"
    table = Table("", title=title, title_justify="left", box=box.SIMPLE_HEAD)
    for name in card["splits"]:
        table.add_column(name, justify="right")
    for key, label in COUNTS.items():
        table.add_row(label, *[f"{split.get(key, 0):,}" for split in card["splits"].values()])
    console = Console()
    console.print(table)
    skipped = [(source["name"], source["skipped"]) for source in card["sources"]]
    skipped += [(name, split["skipped"]) for name, split in card["splits"].items()]
    for name, reasons in skipped:
        for reason, count in reasons.items():
            console.print(f"{name}: skipped {count:,}: {reason}", highlight=False, soft_wrap=True)
    console.print(f"SHA-256 {card['fingerprint']}", highlight=False, soft_wrap=True)
