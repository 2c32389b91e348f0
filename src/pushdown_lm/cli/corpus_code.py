"""`pushdown corpus code`: source code to trees."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from pushdown_lm.cli.data import OnError, parse_shares

EXAMPLES = """
Examples:

    pushdown corpus code 'src/**/*.py' --out code/mine

    pushdown corpus code 'web/**/*.js' --language javascript --max-words 256 --out code/web
"""


def code(
    files: Annotated[
        list[str], typer.Argument(metavar="FILES...", help="Source files; globs allowed.")
    ],
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    language: Annotated[
        str, typer.Option(help="A language whose package tree-sitter-LANGUAGE is installed.")
    ] = "python",
    max_words: Annotated[int, typer.Option(min=1, help="Words of a unit, at most.")] = 128,
    max_text: Annotated[
        int, typer.Option(min=0, help="Words of a string that are kept, at most; 0 for all.")
    ] = 8,
    max_nesting: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Keep units with more brackets and blocks within each other out of the splits; "
            "those of valid and test go to deep.trees.",
        ),
    ] = None,
    split: Annotated[
        str, typer.Option(metavar="A,B,C", help="Shares of train, valid and test, by file.")
    ] = "0.8,0.1,0.1",
    seed: Annotated[int, typer.Option(help="Seed of --split.")] = 0,
    errors: Annotated[
        OnError, typer.Option(help="What to do about a file with a syntax error.")
    ] = OnError.skip,
) -> None:
    """Source code to files of trees: words are the code's tokens, brackets its syntax.

    Files are cut into units of at most --max-words words. In Python's trees the words ↵ ⇥ ⇤ are the
    ends of lines, and the starts and ends of blocks. For the trees, `pushdown data build` has
    --keep-tokenised: code is not put back into running text as English is.
    """
    from itertools import chain

    from pushdown_lm.corpora.code_corpus import CodeOptions, build_code_corpus
    from pushdown_lm.data.build import find_files

    options = CodeOptions(
        language=language,
        max_words=max_words,
        max_text=max_text or None,
        max_nesting=max_nesting,
        split=parse_shares(split),
        seed=seed,
        errors=errors.value,
    )
    found = list(dict.fromkeys(chain.from_iterable(map(find_files, files))))
    _print_report(build_code_corpus(found, out, options))


def _print_report(report: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table("", *report["trees"], box=box.SIMPLE_HEAD)
    for column in table.columns[1:]:
        column.justify = "right"
    for key in ("files", "units", "words"):
        table.add_row(key, *[f"{tally[key]:,}" for tally in report["trees"].values()])
    deepest = [max(tally["nesting"], default=0) for tally in report["trees"].values()]
    table.add_row("deepest nesting", *map(str, deepest))
    console = Console()
    console.print(table)
    for reason, messages in report["skipped_files"].items():
        console.print(f"skipped {len(messages):,} files: {reason}", highlight=False)
