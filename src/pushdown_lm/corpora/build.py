"""From raw text to a corpus of trees: `pushdown corpus build`.

The text is cut into units of about 64 kB (:mod:`pushdown_lm.corpora.raw_text`). A unit's sentences
are split, parsed and checked, and its result is written as one file, atomically, into OUT.partial.
So a build that was killed resumes where it left off: a unit is done if its file is there, and no
sentence is lost or doubled. Memory holds a few units, whatever the size of the text. In the end the
units are joined, in order, into shards, and the folder OUT appears whole:

    OUT/trees-00000.trees ...    brackets, one tree per line
    OUT/rejected.jsonl           what gave no tree: file, line, reason
    OUT/corpus.json              options, sources, parser, statistics
    OUT/manifest.json            the SHA-256 of every file

The content does not depend on the engine, the number of workers, or interruptions.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import IO, Any, Literal

from pushdown_lm.console import progress
from pushdown_lm.corpora.engines import Engine, Results, run_units
from pushdown_lm.corpora.parsers import ParserOptions, open_parser
from pushdown_lm.corpora.parsing_units import UnitOptions, UnitResult
from pushdown_lm.corpora.raw_text import Cutting, Layout, Source, Unit, expand_names, open_sources
from pushdown_lm.errors import PushdownError
from pushdown_lm.files import (
    MANIFEST,
    FolderError,
    atomic_write,
    locked,
    verify_manifest,
    whole_folder,
    write_json,
)

CARD = "corpus.json"
REJECTED = "rejected.jsonl"
SHARDS = "trees-*.trees"
FORMAT_VERSION = 1
FILTERS = frozenset({"low confidence", "too few words", "too many words"})
"""Reasons to leave a sentence out that are not errors."""
SHOWN_REJECTIONS = 10


@dataclass(frozen=True)
class CorpusOptions:
    """All that decides the content of a corpus, besides its text, and how errors are treated."""

    parser: str
    """As :func:`pushdown_lm.corpora.parsers.open_parser` takes it."""
    parser_options: ParserOptions = field(default_factory=ParserOptions)
    layout: Layout | Literal["auto"] = "auto"
    cutting: Cutting | Literal["auto"] = "auto"
    """`auto`: by the parser if it has a tokenizer of its own, at white space in WikiText, otherwise
    as the Penn Treebank does."""
    language: str | None = "en"
    """Its word lists help to find where sentences end."""
    min_words: int = 1
    max_words: int | None = 250
    errors: Literal["skip", "raise"] = "skip"
    """What to do about a sentence without a tree: count it, or stop."""
    unit_bytes: int = 1 << 16
    """Bytes of text that are parsed between two points from which a build can resume."""
    shard_sentences: int = 10_000

    def __post_init__(self) -> None:
        for name in ("min_words", "unit_bytes", "shard_sentences"):
            if getattr(self, name) < 1:
                raise PushdownError(f"{name}: expected at least 1, got {getattr(self, name)}")
        if self.max_words is not None and self.max_words < self.min_words:
            raise PushdownError(
                f"max_words: expected at least min_words, {self.min_words}, got {self.max_words}"
            )

    def unit_options(self) -> UnitOptions:
        """What a worker has to know."""
        cutting = self.cutting
        if cutting == "auto":
            kind = self.parser.partition(":")[0]
            if kind in ("spacy", "stanza"):
                cutting = "parser"
            else:
                cutting = "space" if self.layout == "wikitext" else "penn"
        return UnitOptions(
            parser=self.parser,
            parser_options=self.parser_options,
            cutting=cutting,
            language=self.language,
            min_words=self.min_words,
            max_words=self.max_words,
            stops=self.errors == "raise",
        )


def build_corpus(
    texts: Sequence[str | os.PathLike[str]],
    out: str | os.PathLike[str],
    options: CorpusOptions,
    *,
    engine: Engine = "local",
    workers: int = 1,
    address: str | None = None,
    overwrite: bool = False,
) -> dict[str, Any]:
    """Parse raw text into the folder `out`; its card.

    Args:
        texts: files, patterns of files, `-` for standard input, or
            `hf:REPOSITORY:CONFIGURATION:SPLIT` for a dataset on the Hub.
        out: a finished corpus of the same text and options is left as it is; one of others is an
            error unless `overwrite`.
        engine: `local` uses `workers` processes of this machine, `ray` as many actors of Ray Data.
        address: of a Ray cluster; by default Ray is started on this machine.
    """
    folder = Path(out)
    if folder.exists() and not folder.is_dir():
        raise FolderError(f"{folder}: expected a folder to write to, found a file")
    if folder.is_dir() and any(folder.iterdir()) and not (folder / CARD).is_file():
        raise FolderError(f"{folder}: expected a new or empty folder, found other files in it")
    partial = folder.with_name(f"{folder.name}.partial")
    unit_options = options.unit_options()
    names = expand_names([os.fspath(text) for text in texts])
    with (
        closing(open_parser(options.parser, options.parser_options)) as parser,
        _work_folder(partial),
    ):
        description = parser.describe()
        if overwrite:
            _empty(partial)
        sources = open_sources(names, options.layout, partial)
        plan = Plan.make(sources, options, unit_options, description, partial)
        finished = _read_card(folder)
        if finished is not None and not overwrite:
            if finished.get("key") != plan.key:
                _empty(partial)
                raise FolderError(
                    f"{folder}: holds a corpus of other text or options; choose another folder, or "
                    "replace it with --overwrite (overwrite=True)"
                )
            verify_manifest(folder)
            _empty(partial)
            return finished
        plan.start()
        _reject_empty(sources, options)
        results = run_units(plan.pending(), unit_options, parser, engine, workers, address)
        _parse(plan, results, options)
        card = _join(plan, sources, options, unit_options, description, folder)
        _empty(partial)
    return card


@contextmanager
def _work_folder(partial: Path) -> Iterator[None]:
    """The folder of unfinished work, for this process alone; removed once nothing is in it."""
    try:
        with locked(partial, "corpus"):
            yield
    finally:
        with suppress(OSError):
            partial.rmdir()


def load_card(folder: str | os.PathLike[str], *, verify: bool = False) -> dict[str, Any]:
    """The card of a finished corpus; with `verify`, after every file was checked."""
    card = _read_card(Path(folder))
    if card is None:
        raise FolderError(f"{folder}: expected a corpus, found no {CARD}")
    if verify:
        verify_manifest(Path(folder))
    return card


def _read_card(folder: Path) -> dict[str, Any] | None:
    try:
        card = json.loads((folder / CARD).read_text(encoding="utf-8"))
    except FileNotFoundError:
        return None
    except ValueError:
        card = None
    if not isinstance(card, dict) or not (folder / MANIFEST).is_file():
        raise FolderError(f"{folder / CARD}: not the card of a corpus, so it is damaged")
    return card


def _empty(partial: Path) -> None:
    """Remove all but the lock, which is held."""
    for path in partial.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        elif path.name != ".lock":
            path.unlink()


# ------------------------------------------------------------------ the units and what is done


@dataclass
class Plan:
    """The units of a build in a file of their own, and where their results are."""

    partial: Path
    key: str
    num_units: int

    @classmethod
    def make(
        cls,
        sources: Sequence[Source],
        options: CorpusOptions,
        unit_options: UnitOptions,
        parser: dict[str, Any],
        partial: Path,
    ) -> Plan:
        number = 0
        total = sum(source.path.stat().st_size for source in sources)
        with (
            atomic_write(partial / "units.jsonl") as file,
            progress("Reading", total / 1000, "kB") as advance,
        ):
            for source in sources:
                for unit in source.units(options.unit_bytes, number):
                    file.write(json.dumps(asdict(unit)) + "\n")
                    number += 1
                    advance(unit.size / 1000)
        decisive = asdict(unit_options)
        for name in ("stops", "parser", "parser_options"):
            del decisive[name]
        key = {
            "format_version": FORMAT_VERSION,
            "options": decisive,
            "unit_bytes": options.unit_bytes,
            "shard_sentences": options.shard_sentences,
            "parser": parser,
            "sources": [[source.digest, source.layout] for source in sources],
        }
        return cls(partial, hashlib.sha256(json.dumps(key).encode()).hexdigest(), number)

    def start(self) -> None:
        """Keep what an interrupted build of the same key has left."""
        path = self.partial / "key.json"
        if path.exists() and json.loads(path.read_text(encoding="utf-8")) != self.key:
            raise FolderError(
                f"{self.partial}: an unfinished corpus of other text or options; --overwrite "
                "(overwrite=True) starts anew"
            )
        write_json(path, self.key)

    def units(self) -> Iterator[Unit]:
        with (self.partial / "units.jsonl").open(encoding="utf-8") as file:
            for line in file:
                yield Unit(**json.loads(line))

    def result_path(self, number: int) -> Path:
        return self.partial / "units" / f"{number // 1000:06}" / f"{number:09}.txt"

    def pending(self) -> Iterator[Unit]:
        return (unit for unit in self.units() if not self.result_path(unit.number).exists())

    def results(self) -> Iterator[UnitResult]:
        for unit in self.units():
            yield UnitResult.load(self.result_path(unit.number))


def _reject_empty(sources: Iterable[Source], options: CorpusOptions) -> None:
    for source in sources:
        if not source.has_text:
            message = f"{source.name}:1: no sentence"
            if options.errors == "raise":
                raise PushdownError(message)
            print(f"pushdown: {message}", file=sys.stderr)


def _parse(plan: Plan, results: Results, options: CorpusOptions) -> None:
    """Write the result of each unit that is not done as soon as it is there."""
    sizes = {"bytes": 0, "units": 0}
    for unit in plan.pending():
        sizes["bytes"] += unit.size
        sizes["units"] += 1
    if sizes["units"] < plan.num_units:
        done = plan.num_units - sizes["units"]
        print(f"Resuming: {done:,} of {plan.num_units:,} units are done", file=sys.stderr)
    if not sizes["units"]:
        return
    sentences = rejected = 0
    with progress("Parsing", sizes["bytes"] / 1000, "kB") as advance:
        for unit, result in results:
            for rejection in result.rejected:
                message = f"{unit.source}:{rejection.line}: {rejection.reason}: {rejection.detail}"
                if rejection.reason in FILTERS:
                    continue
                if options.errors == "raise":
                    raise PushdownError(message)
                rejected += 1
                if rejected <= SHOWN_REJECTIONS:
                    print(f"pushdown: {message}", file=sys.stderr)
                if rejected == SHOWN_REJECTIONS:
                    print(f"pushdown: further ones go to {REJECTED} only", file=sys.stderr)
            result.save(plan.result_path(unit.number))
            sentences += result.counts["sentences"]
            advance(unit.size / 1000, f"{sentences:,} trees, {rejected:,} rejected")


# ------------------------------------------------------------------ the finished folder


def _join(
    plan: Plan,
    sources: Sequence[Source],
    options: CorpusOptions,
    unit_options: UnitOptions,
    parser: dict[str, Any],
    folder: Path,
) -> dict[str, Any]:
    """Join the units into shards, and count; the card."""
    counts: Counter[str] = Counter()
    reasons: Counter[str] = Counter()
    maxima = {"longest": 0, "max_depth": 0}
    per_source: Counter[str] = Counter()
    with whole_folder(folder) as staging:
        with (
            _Shards(staging, options.shard_sentences) as shards,
            atomic_write(staging / REJECTED) as rejected,
        ):
            for source in sources:
                if not source.has_text:
                    reasons["no sentence"] += 1
                    record = {"file": source.name, "line": 1, "reason": "no sentence"}
                    rejected.write(json.dumps(record, ensure_ascii=False) + "\n")
            for unit, result in zip(plan.units(), plan.results(), strict=True):
                shards.write(result.trees, result.counts["sentences"])
                counts.update(result.counts)
                per_source[unit.source] += result.counts["sentences"]
                for name in maxima:
                    maxima[name] = max(maxima[name], result.maxima[name])
                for rejection in result.rejected:
                    reasons[rejection.reason] += 1
                    record = {"file": unit.source, **rejection._asdict()}
                    rejected.write(json.dumps(record, ensure_ascii=False) + "\n")
        if not counts["sentences"]:
            _empty(plan.partial)  # nothing in it is worth resuming
            raise PushdownError(
                "expected at least one sentence with a tree, found none; rejected: "
                f"{dict(reasons) or 'nothing'}"
            )
        card = {
            "format_version": FORMAT_VERSION,
            "key": plan.key,
            "options": {
                **asdict(options),
                "cutting": unit_options.cutting,
            },
            "parser": parser,
            "sources": [
                {
                    "name": source.name,
                    "sha256": source.digest,
                    "lines": source.lines,
                    "layout": source.layout,
                    "sentences": per_source[source.name],
                }
                for source in sources
            ],
            "shards": shards.number,
            **counts,
            **maxima,
            "rejected": dict(sorted(reasons.items())),
        }
        write_json(staging / CARD, card)
    return card


class _Shards:
    """Files of about so many trees each."""

    def __init__(self, folder: Path, size: int) -> None:
        self.folder, self.size = folder, size
        self.number = self._held = 0
        self._file: IO[str] | None = None

    def write(self, trees: str, count: int) -> None:
        if not count:
            return
        if self._file is None or self._held >= self.size:
            self.__exit__()
            path = self.folder / SHARDS.replace("*", f"{self.number:05}")
            self._file = path.open("w", encoding="utf-8")
            self.number += 1
            self._held = 0
        self._file.write(trees)
        self._held += count

    def __enter__(self) -> _Shards:
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
            self._file = None
