"""`pushdown corpus`: raw text and source code to trees."""

from __future__ import annotations

import json as json_module
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import typer

from pushdown_lm.cli.corpus_code import EXAMPLES as CODE_EXAMPLES
from pushdown_lm.cli.corpus_code import code
from pushdown_lm.cli.data import ConstituentsChoice, NonprojectiveChoice, OnError

app = typer.Typer(help=__doc__, no_args_is_help=True)
app.command(epilog=CODE_EXAMPLES)(code)


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


ParserName = Annotated[
    str,
    typer.Option(
        "--parser",
        metavar="KIND:WHAT",
        help="command:COMMAND reads a sentence per line and writes brackets or CoNLL-U; "
        "pushdown:MODEL is a model's folder or name; link-grammar[:LANG]; spacy:PIPELINE; "
        "stanza:LANG, or stanza:LANG/constituency.",
    ),
]
Out = Annotated[Path, typer.Option(help="The folder to make.")]
Cutting = Annotated[
    CuttingChoice,
    typer.Option(
        "--words", help="Cut words as the Penn Treebank does, at spaces, or by the parser."
    ),
]
Language = Annotated[
    str, typer.Option(help="Code of the language; en, de, fr and es have word lists.")
]
ByRule = Annotated[
    ConstituentsChoice,
    typer.Option(
        "--constituents",
        help="How dependencies become constituents: in Penn's manner, or by heads.",
    ),
]
MinWords = Annotated[int, typer.Option(min=1, help="Leave out shorter sentences.")]
MaxWords = Annotated[int, typer.Option(min=1, help="Leave out longer sentences.")]
MinConfidence = Annotated[
    float,
    typer.Option(
        min=0, max=1, help="Keep trees whose constituents have this mean posterior (pushdown)."
    ),
]
Beam = Annotated[int, typer.Option(min=1, help="Parses that search keeps (pushdown).")]
Persistent = Annotated[
    bool,
    typer.Option("--persistent", help="The command answers each sentence at once, and stays."),
]
Timeout = Annotated[
    float, typer.Option(min=0.1, help="Seconds of silence after which a command hangs.")
]
Errors = Annotated[OnError, typer.Option(help="What to do about a sentence that gets no tree.")]
EngineName = Annotated[
    EngineChoice, typer.Option("--engine", help="Processes of this machine, or Ray Data.")
]
Workers = Annotated[int, typer.Option(min=1, help="Parsers that work side by side.")]
Address = Annotated[
    str | None, typer.Option(help="Of a Ray cluster; by default Ray is started here.")
]
UnitSize = Annotated[
    int, typer.Option(min=1, metavar="KB", help="Text between two points of resumption.")
]
Overwrite = Annotated[
    bool, typer.Option("--overwrite", help="Replace a corpus of other text or options.")
]

EXAMPLES = """
Examples:

    pushdown corpus build speeches.txt --parser pushdown:english --min-confidence 0.9 --out parsed

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
    parser: ParserName,
    out: Out,
    layout: Annotated[
        LayoutChoice,
        typer.Option(
            help="A paragraph per line, paragraphs between blank lines, a sentence per line, or "
            "WikiText's; auto tells the first two apart."
        ),
    ] = LayoutChoice.auto,
    words: Cutting = CuttingChoice.auto,
    language: Language = "en",
    constituents: ByRule = ConstituentsChoice.penn,
    min_words: MinWords = 1,
    max_words: MaxWords = 250,
    min_confidence: MinConfidence = 0.0,
    beam: Beam = 50,
    persistent: Persistent = False,
    timeout: Timeout = 300.0,
    errors: Errors = OnError.skip,
    engine: EngineName = EngineChoice.local,
    workers: Workers = 1,
    address: Address = None,
    unit_size: UnitSize = 64,
    shard_size: Annotated[int, typer.Option(min=1, help="Trees of a file, about.")] = 10_000,
    overwrite: Overwrite = False,
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
def wikitrees(
    parser: ParserName,
    out: Out,
    train: Annotated[
        str | None, typer.Option(help="Text to use instead of WikiText-103's training split.")
    ] = None,
    valid: Annotated[str | None, typer.Option(help="Validation text, with --train.")] = None,
    test: Annotated[str | None, typer.Option(help="Test text, with --train.")] = None,
    layout: Annotated[
        LayoutChoice, typer.Option(help="Of the text, as in `pushdown corpus build`.")
    ] = LayoutChoice.wikitext,
    tokenizer: Annotated[
        str, typer.Option(help="As in `pushdown data build`; a folder for GPT-2's.")
    ] = "bpe:32000",
    window: Annotated[int, typer.Option(min=3, help="Tokens of a window.")] = 512,
    min_confidence: MinConfidence = 0.0,
    beam: Beam = 50,
    persistent: Persistent = False,
    timeout: Timeout = 300.0,
    constituents: ByRule = ConstituentsChoice.penn,
    engine: EngineName = EngineChoice.local,
    workers: Workers = 1,
    address: Address = None,
    unit_size: UnitSize = 64,
    overwrite: Overwrite = False,
) -> None:
    """Parse WikiText-103, streamed from the Hub, into a dataset of windows of 512 tokens.

    It is what the recipes wikitrees-small and gpt2-medium train on. Interrupted, it resumes where
    it left off.

    pushdown corpus wikitrees --parser 'command:python parse.py' --persistent --workers 8
    --tokenizer gpt2/ --out wikitrees

    pushdown corpus wikitrees --parser link-grammar --train articles.txt --out wikitrees
    """
    from pushdown_lm.cli.data import print_card
    from pushdown_lm.corpora.build import CorpusOptions
    from pushdown_lm.corpora.parsers import ParserOptions
    from pushdown_lm.corpora.wikitrees import TEXTS, build_wikitrees
    from pushdown_lm.errors import PushdownError

    given = {"train": train, "valid": valid, "test": test}
    texts = {split: text for split, text in given.items() if text is not None}
    if texts and train is None:
        raise PushdownError("--valid, --test: expected them with --train")
    options = CorpusOptions(
        parser=parser,
        parser_options=ParserOptions(
            constituents=constituents.value,
            timeout=timeout,
            persistent=persistent,
            beam=beam,
            min_confidence=min_confidence,
        ),
        layout=layout.value,
        unit_bytes=unit_size * 1000,
    )
    data = build_wikitrees(
        out,
        options,
        texts=texts or TEXTS,
        tokenizer=tokenizer,
        window=window,
        engine=engine.value,
        workers=workers,
        address=address,
        overwrite=overwrite,
    )
    print_card(data.card)


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


@app.command()
def compare(
    trees: Annotated[Path, typer.Argument(help="A file of trees: brackets or CoNLL-U.")],
    gold: Annotated[Path, typer.Argument(help="Other trees of the same sentences.")],
    constituents: ByRule = ConstituentsChoice.penn,
    language: Language = "en",
    nonprojective: Annotated[
        NonprojectiveChoice, typer.Option(help="Report crossing dependencies, or lift them.")
    ] = NonprojectiveChoice.lift,
    json: Annotated[bool, typer.Option("--json", help="The figures as JSON.")] = False,
) -> None:
    """Agreement of two files of trees: unlabeled bracketing F1.

    Constituents of two words or more count, unary chains as one; the whole sentence does not.

    pushdown corpus compare gum.conllu gum.trees --constituents penn
    """
    from rich.console import Console
    from rich.table import Table

    from pushdown_lm.errors import PushdownError
    from pushdown_lm.evals.parsing import score_brackets
    from pushdown_lm.trees import read_trees

    ours, theirs = (
        list(
            read_trees(
                path,
                constituents=constituents.value,
                nonprojective=nonprojective.value,
                language=language,
            )
        )
        for path in (trees, gold)
    )
    if len(ours) != len(theirs):
        raise PushdownError(
            f"{gold}: expected {len(ours):,} trees, as in {trees}, found {len(theirs):,}"
        )
    score = score_brackets(theirs, ours, whole_sentence=False).to_json()
    if json:
        typer.echo(json_module.dumps(score, indent=2))
        return
    table = Table("F1", "precision", "recall", "exact match", "sentences")
    shares = (score[name] for name in ("f1", "precision", "recall", "exact_match"))
    table.add_row(*(f"{share:.1%}" for share in shares), f"{len(ours):,}")
    Console().print(table)


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
