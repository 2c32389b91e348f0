"""Files of source code to files of trees, split into training, validation and test data by file.

    DIR/train.trees, valid.trees, test.trees      units, a tree per line
    DIR/deep.trees                                those of valid and test that are nested too deeply
    DIR/corpus.json                               what was read and what was left out, and why

Which split a file is in follows from its content, so that copies of a file are in one split.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pushdown_lm.console import error_console, progress
from pushdown_lm.corpora.code_trees import CodeError, CodeReader
from pushdown_lm.corpora.code_units import cut, nesting
from pushdown_lm.data.build import check_shares
from pushdown_lm.data.dataset import SPLITS
from pushdown_lm.errors import TreeError
from pushdown_lm.files import FolderError, whole_folder, write_json
from pushdown_lm.trees import Errors, to_brackets

DEEP = "deep"
REPORT = "corpus.json"


@dataclass(frozen=True)
class CodeOptions:
    """All that decides the trees, besides the files."""

    language: str = "python"
    """A language of tree-sitter whose package is installed."""
    max_words: int = 128
    """Of a unit."""
    max_text: int | None = 8
    """Words of a text within a token, as a string, that are kept; None for all."""
    max_nesting: int | None = None
    """Units with more brackets and blocks within each other are left out of the splits; those of
    valid and test become `deep.trees`."""
    split: tuple[float, float, float] = (0.8, 0.1, 0.1)
    """Shares of train, valid and test, by file."""
    seed: int = 0
    """Decides the draws of `split`."""
    errors: Errors = "skip"
    """What to do about a file with a syntax error: raise it, or report and count it."""

    def __post_init__(self) -> None:
        for name in ("max_words", "max_text", "max_nesting"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise CodeError(f"{name}: expected at least 1, got {value}")
        check_shares(self.split)

    def split_of(self, source: bytes) -> str:
        """The split of a file."""
        digest = hashlib.sha256(b"%d:" % self.seed + hashlib.sha256(source).digest())
        draw = int.from_bytes(digest.digest()[:6]) / 2**48
        train, valid, _ = self.split
        return "train" if draw < train else "valid" if draw < train + valid else "test"


@dataclass
class Tally:
    """What a file of trees holds."""

    files: int = 0
    units: int = 0
    words: int = 0
    nesting: Counter[int] = field(default_factory=Counter)
    """Units by the largest number of brackets and blocks within each other."""


def build_code_corpus(
    files: Sequence[str | Path], out: str | Path, options: CodeOptions | None = None
) -> dict[str, Any]:
    """Write the trees of source files to a new folder; what `corpus.json` says of them.

    The folder appears when all is written.
    """
    options = options or CodeOptions()
    folder = Path(out)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise FolderError(f"{folder}: expected a new or empty folder")
    reader = CodeReader(options.language, max_text=options.max_text)
    tallies = {name: Tally() for name in (*SPLITS, *([DEEP] * (options.max_nesting is not None)))}
    skipped: dict[str, list[str]] = {}
    too_deep = 0
    with whole_folder(folder) as staging, ExitStack() as stack:
        outputs = {
            name: stack.enter_context((staging / f"{name}.trees").open("w", encoding="utf-8"))
            for name in tallies
        }
        for path, source in _read(files):
            try:
                tree = reader.read(source, str(path))
            except TreeError as error:
                if options.errors == "raise":
                    raise
                error_console().print(f"skipped {error}", highlight=False, soft_wrap=True)
                skipped.setdefault(error.reason, []).append(str(error))
                continue
            split = options.split_of(source)
            tallies[split].files += 1
            for unit in [] if tree is None else cut(tree, options.max_words):
                depth = nesting(unit)
                is_deep = options.max_nesting is not None and depth > options.max_nesting
                if is_deep and split == "train":
                    too_deep += 1
                    continue
                name = DEEP if is_deep else split
                outputs[name].write(to_brackets(unit) + "\n")
                tally = tallies[name]
                tally.units += 1
                tally.words += len(unit.words)
                tally.nesting[depth] += 1
        if not tallies["train"].units:
            raise CodeError(
                f"{folder}: expected code to train on, found none in {len(files)} files"
            )
        report = {
            "options": asdict(options),
            "files": len(files),
            "skipped_files": skipped,
            "train_units_nested_too_deeply": too_deep,
            "trees": {
                name: {**vars(tally), "nesting": dict(sorted(tally.nesting.items()))}
                for name, tally in tallies.items()
            },
        }
        for file in outputs.values():
            file.close()
        write_json(staging / REPORT, report)
    return report


def _read(files: Sequence[str | Path]) -> Iterator[tuple[Path, bytes]]:
    with progress("Reading code", len(files), "files") as advance:
        for path in map(Path, files):
            yield path, path.read_bytes()
            advance()
