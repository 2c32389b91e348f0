"""`pushdown corpus`: raw text to trees."""

from __future__ import annotations

import json as json_module
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from pushdown_lm.cli.data import ConstituentsChoice, OnError

app = typer.Typer(help=__doc__, no_args_is_help=True)


class LayoutChoice(StrEnum):
    auto = "auto"
    lines = "lines"
    paragraphs = "paragraphs"
    sentences = "sentences"
    wikitext = "wikitext"


class CuttingChoice(StrEnum):
    auto = "auto"
    penn = "penn"
    space = "space"
    parser = "parser"


class EngineChoice(StrEnum):
    local = "local"
    ray = "ray"


EXAMPLES = """
Examples:

    pushdown corpus build speeches.txt --parser pushdown:english
    --min-confidence 0.9 --out parsed

    pushdown corpus build 'wiki/*.txt.gz' --parser 'command:python parse.py' --persistent
    --workers 8 --out parsed-wiki

    pushdown data build 'parsed/*.trees' --split 0.9,0.05,0.05 --out data/parsed
"""


@app.command(epilog=EXAMPLES)
def build(
    texts: Annotated[
        list[str],
        typer.Argument(
            metavar="TEXT...",
            help="Text files; globs and .gz allowed; - is standard input; "
            "hf:REPOSITORY:CONFIGURATION:SPLIT is a dataset on the Hub, streamed.",
        ),
    ],
    parser: Annotated[
        str,
        typer.Option(
            metavar="KIND:WHAT",
            help="command:COMMAND reads a sentence per line and writes brackets or CoNLL-U; "
            "pushdown:MODEL is a model's folder or name; link-grammar[:LANG]; spacy:PIPELINE; "
            "stanza:LANG, or stanza:LANG/constituency.",
        ),
    ],
    out: Annotated[Path, typer.Option(help="The folder to make.")],
    layout: Annotated[
        LayoutChoice,
        typer.Option(
            help="A paragraph per line, paragraphs between blank lines, a sentence per line, or "
            "WikiText's; auto tells the first two apart."
        ),
    ] = LayoutChoice.auto,
    words: Annotated[
        CuttingChoice,
        typer.Option(help="Cut words as the Penn Treebank does, at spaces, or by the parser."),
    ] = CuttingChoice.auto,
    language: Annotated[
        str, typer.Option(help="Code of the language; en, de, fr and es have word lists.")
    ] = "en",
    constituents: Annotated[
        ConstituentsChoice,
        typer.Option(help="How dependencies become constituents: Penn's manner, or by heads."),
    ] = ConstituentsChoice.penn,
    min_words: Annotated[int, typer.Option(min=1, help="Leave out shorter sentences.")] = 1,
    max_words: Annotated[int, typer.Option(min=1, help="Leave out longer sentences.")] = 250,
    min_confidence: Annotated[
        float,
        typer.Option(
            min=0, max=1, help="Keep trees whose constituents have this mean posterior (pushdown)."
        ),
    ] = 0.0,
    beam: Annotated[int, typer.Option(min=1, help="Parses that search keeps (pushdown).")] = 50,
    persistent: Annotated[
        bool,
        typer.Option("--persistent", help="The command answers each sentence at once, and stays."),
    ] = False,
    timeout: Annotated[
        float, typer.Option(min=0.1, help="Seconds of silence after which a command hangs.")
    ] = 300.0,
    errors: Annotated[
        OnError, typer.Option(help="What to do about a sentence that gets no tree.")
    ] = OnError.skip,
    engine: Annotated[
        EngineChoice, typer.Option(help="Processes of this machine, or Ray Data.")
    ] = EngineChoice.local,
    workers: Annotated[int, typer.Option(min=1, help="Parsers that work side by side.")] = 1,
    address: Annotated[
        str | None, typer.Option(help="Of a Ray cluster; by default Ray is started here.")
    ] = None,
    unit_size: Annotated[
        int, typer.Option(min=1, metavar="KB", help="Text between two points of resumption.")
    ] = 64,
    shard_size: Annotated[int, typer.Option(min=1, help="Trees of a file, about.")] = 10_000,
    overwrite: Annotated[
        bool, typer.Option("--overwrite", help="Replace a corpus of other text or options.")
    ] = False,
) -> None:
    """Split raw text into sentences, parse them, check the trees, and write them in shards.

    An interrupted build resumes where it left off when the same command is given again. Sentences
    that get no tree are counted by reason, and listed with file and line in rejected.jsonl.
    """
    from pushdown_lm.corpora.build import CorpusOptions, build_corpus
    from pushdown_lm.corpora.parsers import ParserOptions

    options = CorpusOptions(
        parser=parser,
        parser_options=ParserOptions(
            constituents=constituents.value,
            language=language,
            timeout=timeout,
            persistent=persistent,
            beam=beam,
            min_confidence=min_confidence,
        ),
        layout=layout.value,
        cutting=words.value,
        language=language,
        min_words=min_words,
        max_words=max_words,
        errors=errors.value,
        unit_bytes=unit_size * 1000,
        shard_sentences=shard_size,
    )
    card = build_corpus(
        texts,
        out,
        options,
        engine=engine.value,
        workers=workers,
        address=address,
        overwrite=overwrite,
    )
    _print_card(card)


@app.command()
def show(
    folder: Annotated[Path, typer.Argument(help="A corpus made by `pushdown corpus build`.")],
    verify: Annotated[
        bool, typer.Option("--verify", help="Check every file by its SHA-256.")
    ] = False,
    json: Annotated[bool, typer.Option("--json", help="The whole card as JSON.")] = False,
) -> None:
    """What a corpus holds."""
    from pushdown_lm.corpora.build import load_card

    card = load_card(folder, verify=verify)
    if json:
        typer.echo(json_module.dumps(card, indent=2, ensure_ascii=False))
    else:
        _print_card(card)


def _print_card(card: dict[str, Any]) -> None:
    from rich import box
    from rich.console import Console
    from rich.table import Table

    table = Table("", "", box=box.SIMPLE, show_header=False)
    table.columns[1].justify = "right"
    sentences = card["sentences"]
    rows = {
        "sources": f"{len(card['sources']):,}",
        "trees": f"{sentences:,}",
        "words": f"{card['words']:,}",
        "words per sentence": f"{card['words'] / sentences:.1f}",
        "longest sentence": f"{card['longest']:,}",
        "constituents per sentence": f"{card['constituents'] / sentences:.1f}",
        "largest depth": f"{card['max_depth']:,}",
        "files": f"{card['shards']:,}",
    }
    for reason, count in card["rejected"].items():
        rows[f"rejected: {reason}"] = f"{count:,}"
    for label, value in rows.items():
        table.add_row(label, value)
    Console().print(table)
