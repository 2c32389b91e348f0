"""What building a corpus costs besides its parser.

Processor seconds of this process and of the programs it runs, so that other work on the machine
does not count. Without text, sentences of the built-in grammar are written out; without a parser,
they are parsed by a random Pushdown model, 4 layers x 128.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from pushdown_lm.bench.measure import Result
from pushdown_lm.bench.search import Case, models
from pushdown_lm.corpora.build import CorpusOptions, build_corpus
from pushdown_lm.corpora.grammar import generate, vocabulary
from pushdown_lm.corpora.parsers import ParserOptions, open_parser
from pushdown_lm.corpora.raw_text import Sentence, Source, cut_words, detect_layout, read_sentences
from pushdown_lm.data.tokenization import train_word_vocabulary

ROUNDS = 3


def run(
    text: Path | None, parser: str | None, sentences: int, rounds: int = ROUNDS
) -> Iterator[Result]:
    """Sentences per second of each part, of the parser alone, and of the whole."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        path = text or _write_text(folder / "text.txt", sentences)
        options = CorpusOptions(
            parser or f"pushdown:{_save_model(folder / 'model')}",
            ParserOptions(persistent=True, beam=20),
            layout=detect_layout(path),
        )
        yield measure(path, options, folder / "out", rounds)


def measure(path: Path, options: CorpusOptions, out: Path, rounds: int) -> Result:
    """The parser is opened in both of the runs that are compared."""
    source = Source(path.name, path, replace(options).layout)  # type: ignore[arg-type]
    cutting = options.unit_options().cutting
    units = list(source.units(options.unit_bytes))

    def split() -> list[list[Sentence]]:
        return [
            [
                item
                for item in read_sentences(unit, "parser", options.language)
                if isinstance(item, Sentence)
            ]
            for unit in units
        ]

    texts = [[sentence.text for sentence in unit] for unit in split()]
    batches = [
        [
            item
            for item in read_sentences(unit, cutting, options.language)
            if isinstance(item, Sentence)
        ]
        for unit in units
    ]

    def parse() -> None:
        with closing(open_parser(options.parser, options.parser_options)) as parser:
            for batch in batches:
                for _ in parser.parse(batch):
                    pass

    seconds = _fastest_in_turns(
        {
            "split": split,
            "cut": lambda: [[cut_words(text, cutting) for text in unit] for unit in texts],
            "parser": parse,
            "whole": lambda: build_corpus([path], out, options, overwrite=True),
        },
        rounds,
    )
    count = sum(map(len, batches))
    rates = {
        f"{name}_sentences_per_second": round(count / spent) for name, spent in seconds.items()
    }
    return {
        "bench": "corpus",
        "case": f"{options.parser.partition(':')[0]}, {count:,} sentences",
        **rates,
        "overhead_percent": round(100 * (seconds["whole"] / seconds["parser"] - 1), 2),
        "target": "< 5",
    }


def _fastest_in_turns(parts: dict[str, Callable[[], object]], rounds: int) -> dict[str, float]:
    best = dict.fromkeys(parts, float("inf"))
    for _ in range(rounds):
        for name, part in parts.items():
            began = _processor_seconds()
            part()
            best[name] = min(best[name], max(_processor_seconds() - began, 1e-9))
    return best


def _processor_seconds() -> float:
    """Of this process and of those that have ended."""
    import resource  # not on Windows

    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    usages = [resource.getrusage(kind) for kind in kinds]
    return sum(usage.ru_utime + usage.ru_stime for usage in usages)


def _write_text(path: Path, sentences: int) -> Path:
    trees = generate(sentences, seed=0, max_nesting=3, min_nesting=1)
    path.write_text("".join(f"{' '.join(tree.words)}\n" for tree in trees), encoding="utf-8")
    return path


def _save_model(folder: Path) -> Path:
    tokenizer = train_word_vocabulary([list(vocabulary())])
    model, _ = models(Case(4, 128, 4, len(tokenizer), sentences=0, length=64, beam=0))
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
