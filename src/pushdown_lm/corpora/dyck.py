"""Dyck languages: strings of brackets, their parses, and prefixes that test a model (section 4.1).

Dyck_{k,m} holds the well-nested strings of k types of brackets, nested at most m deep. Symbols are
the numbers 0 .. k-1 for opening brackets and k .. 2k-1 for the closing brackets of the same types.

The parse of a string: an opening bracket shifts, and a closing bracket attaches to its opening
bracket, which takes in all that lies between. What is closed stays on the stack as a constituent of
its own until the pair around it closes, or EOS does:

    position     1    2    3    4    5    6
    symbol      (1   (2   2)   (3   3)   1)
    attachment   1    2    2    4    4    1

    stack after 5    ROOT  (1  [(2 2)]  [(3 3)]
    stack after 6    ROOT  [(1 [[(2 2)] [[(3 3)] 1)]]]
    tape after 6           1    3 3       4 4    3

So `oracle.attachments_from_tree` parses the n-ary tree that has a constituent for every pair of
brackets. A bracket attaches to one that is still open and to nothing else, so the language's
legality (:data:`pushdown_lm.trees.oracle.Legality`) is ``open_tokens``; and whether a token is open
or closed, the authors' tape, is a depth of 0 or of 1 and more: ``num_depths: 2``.
"""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pushdown_lm.console import progress
from pushdown_lm.data.encoding import DataError, Sentence, parse_shape
from pushdown_lm.files import write_json
from pushdown_lm.trees.oracle import Legality

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

    from pushdown_lm.data.dataset import Data

Integers = NDArray[np.int16]
Seed = int | Sequence[int]

STRINGS_PER_DRAW = 4096


class DyckString(NamedTuple):
    """A string of n symbols with its parse."""

    symbols: Integers
    """``(n,)``."""
    attachments: Integers
    """``(n,)``, in positions from 1, since ROOT is at 0."""


@dataclass(frozen=True)
class Dyck:
    """A Dyck language, and the random strings that are drawn from it.

    A string opens and closes with probability 1/2 each where both are possible, all types being
    equally likely, and ends with probability 1/2 where nothing is open. The lengths are bounded:
    strings go on below ``min_length``, and those above ``max_length`` are drawn anew. The lengths
    of the paper's Dyck_{20,10} have mean 48 and median 16.
    """

    num_types: int = 20
    max_nesting: int = 10
    min_length: int = 4
    max_length: int = 500

    legality: ClassVar[Legality] = "open_tokens"
    """What a symbol may attach to."""

    def __post_init__(self) -> None:
        if self.num_types < 1 or self.max_nesting < 1:
            raise DataError(
                "expected at least one type of brackets and one level of nesting, got "
                f"{self.num_types} and {self.max_nesting}"
            )
        if not 2 <= self.min_length <= self.max_length:
            raise DataError(
                f"expected 2 <= min_length <= max_length, got {self.min_length} and "
                f"{self.max_length}"
            )

    @cached_property
    def words(self) -> tuple[str, ...]:
        """How each symbol is written.

        >>> Dyck(num_types=2).words
        ('(1', '(2', '1)', '2)')
        """
        types = range(1, self.num_types + 1)
        return (*(f"({number}" for number in types), *(f"{number})" for number in types))

    def strings(self, seed: Seed) -> Iterator[DyckString]:
        """Random strings without end; the first n are the same however many are taken."""
        generator = np.random.default_rng(seed)
        while True:
            symbols, attachments, lengths = self._draw(generator, STRINGS_PER_DRAW)
            for row in np.flatnonzero(lengths):
                length = lengths[row]
                yield DyckString(symbols[row, :length].copy(), attachments[row, :length].copy())

    def _draw(
        self, generator: np.random.Generator, count: int
    ) -> tuple[Integers, Integers, NDArray[np.int64]]:
        """Symbols and attachments, padded, and lengths, 0 for the strings that grew too long."""
        symbols = np.zeros((count, self.max_length), np.int16)
        attachments = np.zeros_like(symbols)
        lengths = np.zeros(count, np.int64)
        nesting = np.zeros(count, np.int64)
        opened_at = np.zeros((count, self.max_nesting), np.int64)  # by level
        going = np.arange(count)
        for position in range(self.max_length + 1):
            heads = generator.random(len(going)) < 0.5
            ends = (nesting[going] == 0) & ~heads & (position >= self.min_length)
            lengths[going[ends]] = position
            going, heads = going[~ends], heads[~ends]
            if position == self.max_length or not len(going):
                break
            level = nesting[going]
            opens = (level == 0) | (heads & (level < self.max_nesting))

            rows = going[opens]
            symbols[rows, position] = generator.integers(self.num_types, size=len(rows))
            attachments[rows, position] = position + 1
            opened_at[rows, level[opens]] = position
            nesting[rows] += 1

            rows = going[~opens]
            opening = opened_at[rows, level[~opens] - 1]
            symbols[rows, position] = symbols[rows, opening] + self.num_types
            attachments[rows, position] = opening + 1
            nesting[rows] -= 1
        return symbols, attachments, lengths

    def attachments(self, symbols: Sequence[int] | Integers) -> Integers:
        """The parse of a prefix of a string, bracket by bracket.

        >>> Dyck(num_types=3).attachments([0, 1, 4, 2, 5, 3]).tolist()
        [1, 2, 2, 4, 4, 1]
        """
        attachments, opened = [], list[tuple[int, int]]()
        for position, symbol in enumerate(map(int, symbols), start=1):
            if symbol < self.num_types:
                opened.append((symbol, position))
                attachments.append(position)
                continue
            if not opened or opened[-1][0] != symbol - self.num_types:
                expected = self.words[opened[-1][0] + self.num_types] if opened else "("
                raise DataError(
                    f"symbol {position}: expected {expected} or an opening bracket, got "
                    f"{self.words[symbol]}"
                )
            attachments.append(opened.pop()[1])
        return np.array(attachments, np.int16)


# ------------------------------------------------------------------ test prefixes


class Prefix(NamedTuple):
    """A prefix after which a certain closing bracket is put to the test."""

    symbols: Integers
    attachments: Integers
    answer: int
    """The closing bracket that belongs to the innermost open one."""
    difficulty: int
    """Distance to the matching bracket, or nesting."""


@dataclass(frozen=True)
class LongRange:
    """Prefixes of strings with more nesting, where the matching bracket is far back.

    Strings of Dyck_{20,40} of up to ``max_length`` symbols are drawn until enough of them have a
    closing bracket that is at least ``min_distance`` symbols from its opening one. Of each, one
    such bracket is the test, and what precedes it is the prefix.
    """

    min_distance: int
    max_length: int = 600
    max_nesting: int = 40

    @property
    def name(self) -> str:
        return f"distance-{self.min_distance}"

    @property
    def title(self) -> str:
        return f"distance {self.min_distance:,}+"

    def prefixes(self, count: int, seed: Seed) -> list[Prefix]:
        """``count`` prefixes, from different strings."""
        language = Dyck(max_nesting=self.max_nesting, max_length=self.max_length)
        generator = np.random.default_rng([*_words(seed), 1])
        found = []
        for symbols, attachments in language.strings(seed):
            distance = np.arange(1, len(symbols) + 1) - attachments
            far = np.flatnonzero(distance >= self.min_distance)
            if len(far):
                end = int(generator.choice(far))
                answer, back = int(symbols[end]), int(distance[end])
                found.append(Prefix(symbols[:end], attachments[:end], answer, back))
            if len(found) == count:
                break
        return found


@dataclass(frozen=True)
class DeepNesting:
    """Brackets nested deeper than in training, with a string of the language somewhere inside.

    ``n`` opening brackets are closed one after another, but for the outermost, whose closing
    bracket is the test; a random string of Dyck_{20,10} is inserted at a random place.
    """

    min_nesting: int
    max_nesting: int

    @property
    def name(self) -> str:
        return f"nesting-{self.min_nesting}-{self.max_nesting}"

    @property
    def title(self) -> str:
        return f"nesting {self.min_nesting}-{self.max_nesting}"

    def prefixes(self, count: int, seed: Seed) -> list[Prefix]:
        """``count`` prefixes whose nesting is drawn evenly."""
        language = Dyck()
        generator = np.random.default_rng([*_words(seed), 1])
        found = []
        for inserted in islice(language.strings(seed), count):
            nesting = int(generator.integers(self.min_nesting, self.max_nesting + 1))
            opening = generator.integers(language.num_types, size=nesting)
            closing = opening[::-1] + language.num_types
            nest = np.concatenate([opening, closing[:-1]])
            place = int(generator.integers(len(nest) + 1))
            symbols = np.insert(nest, place, inserted.symbols).astype(np.int16)
            attachments = language.attachments(symbols)
            found.append(Prefix(symbols, attachments, int(closing[-1]), nesting))
        return found


def _words(seed: Seed) -> list[int]:
    return [seed] if isinstance(seed, int) else list(seed)


Row = LongRange | DeepNesting

PAPER_ROWS: tuple[Row, ...] = (
    LongRange(50),
    LongRange(100),
    LongRange(200),
    LongRange(300),
    DeepNesting(15, 50),
)
"""The rows of the paper's Table 1."""
FURTHER_ROWS: tuple[Row, ...] = (
    LongRange(500, max_length=1000),
    LongRange(1000, max_length=2000),
    DeepNesting(50, 100),
    DeepNesting(100, 200),
)
"""Beyond the paper."""


# ------------------------------------------------------------------ training data


def bracket_tokenizer(language: Dyck) -> PreTrainedTokenizerFast:
    """One token a bracket."""
    from pushdown_lm.data.tokenization import train_word_vocabulary

    return train_word_vocabulary([language.words])


def symbol_ids(tokenizer: Any, language: Dyck) -> NDArray[np.int64]:
    """The token of each symbol: ``(2k,)``."""
    return np.array(tokenizer.convert_tokens_to_ids(list(language.words)))


def build_dyck_data(
    out: str | Path, *, train: int = 100_000, valid: int = 1_000, seed: int = 0
) -> Data:
    """A dataset of strings of Dyck_{20,10} with their parses, as `pushdown data build` makes them.

    A finished dataset of the same sizes and seed is returned as it is.
    """
    from pushdown_lm.data.dataset import load_data

    folder, language = Path(out), Dyck()
    counts = {"train": train, "valid": valid}
    options = {"language": asdict(language), "counts": counts, "seed": seed}
    key = hashlib.sha256(json.dumps(options).encode()).hexdigest()
    if (folder / "card.json").exists():
        data = load_data(folder)
        if data.card.get("key") != key:
            raise DataError(f"{folder}: expected Dyck strings of {options}, found another dataset")
        return data
    tokenizer = bracket_tokenizer(language)
    tokenizer.save_pretrained(folder / "tokenizer")
    write_json(folder / "card.json", _write_splits(folder, language, tokenizer, options, key))
    return load_data(folder)


def _write_splits(
    folder: Path, language: Dyck, tokenizer: Any, options: dict[str, Any], key: str
) -> dict[str, Any]:
    """Write the examples of both splits; their card."""
    from pushdown_lm.data.dataset import FORMAT_VERSION, fingerprint
    from pushdown_lm.data.example_files import ExampleWriter
    from pushdown_lm.data.tokenization import EncoderSettings

    settings = EncoderSettings.of(tokenizer, allow_unknown=False)
    ids = symbol_ids(tokenizer, language)
    digests, splits, sources = [], {}, []
    for number, (split, count) in enumerate(options["counts"].items()):
        strings = list(islice(language.strings([options["seed"], number]), count))
        writer = ExampleWriter(folder, split, longest=language.max_length + 2)
        with progress(f"Writing {split}", count, "strings") as advance:
            writer.write(
                (
                    Sentence(
                        [settings.bos_id, *ids[string.symbols].tolist(), settings.eos_id],
                        [0, *string.attachments.tolist(), 0],
                    )
                    for string in strings
                ),
                advance,
            )
        digests.append(writer.digest.hexdigest())
        splits[split] = {
            "examples": count,
            "longest_example": writer.longest_example,
            **_count(strings),
        }
        name = f"Dyck_{{{language.num_types},{language.max_nesting}}}"
        sources.append({"split": split, "name": name, "trees": count, "skipped": {}})
    return {
        "format_version": FORMAT_VERSION,
        "key": key,
        "fingerprint": fingerprint(settings.tokenizer, digests),
        "options": options,
        "tokenizer": "word",
        "vocab_size": len(tokenizer),
        "bos_token_id": settings.bos_id,
        "eos_token_id": settings.eos_id,
        "pad_token_id": tokenizer.pad_token_id,
        "unk_token_id": settings.unknown_id,
        "text": "tokenized",
        "window": None,
        "sources": sources,
        "splits": splits,
    }


def _count(strings: Sequence[DyckString]) -> dict[str, Any]:
    words = sum(len(string.symbols) for string in strings)
    depths, stack_sizes = Counter[int](), Counter[int]()
    for string in strings:
        shape = parse_shape([0, *string.attachments.tolist(), 0])
        depths[shape.depth] += 1
        stack_sizes[shape.stack_size] += 1
    return {
        "trees": len(strings),
        "sentences": len(strings),
        "words": words,
        "tokens": words + 2 * len(strings),
        "unknown_words": 0,
        "differing_sentences": 0,
        "skipped": {},
        "max_depth": max(depths),
        "max_stack_size": max(stack_sizes),
        "depths": dict(sorted(depths.items())),
        "stack_sizes": dict(sorted(stack_sizes.items())),
    }
