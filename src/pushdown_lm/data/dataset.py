"""A dataset on disk: token ids and attachments that a model trains on.

    DIR/card.json                    what the dataset is made of: sources, counts, histograms
    DIR/tokenizer                    a Transformers fast tokenizer
    DIR/train, DIR/valid, DIR/test   Arrow datasets: input_ids, attachments, length;
                                     actions, where labels are kept

The card has a SHA-256 of the content.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from pushdown_lm.data.encoding import DataError
from pushdown_lm.data.example_files import ContentDigest
from pushdown_lm.data.tokenization import EncoderSettings, load_tokenizer, text_rule

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerFast

FORMAT_VERSION = 1
SPLITS = ("train", "valid", "test")
CARD = "card.json"


@dataclass(frozen=True)
class Data:
    """A finished dataset."""

    folder: Path
    train: Dataset
    valid: Dataset | None
    test: Dataset | None
    tokenizer: PreTrainedTokenizerFast
    card: dict[str, Any]

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the examples and the tokenizer, as the card has it."""
        return self.card["fingerprint"]

    @property
    def labels(self) -> list[str] | None:
        """The labels of the trees, where the dataset was built with them."""
        return self.card.get("labels")

    @property
    def splits(self) -> dict[str, Dataset]:
        """The splits that there are, by name."""
        named = {"train": self.train, "valid": self.valid, "test": self.test}
        return {name: split for name, split in named.items() if split is not None}

    def take(self, share: float) -> Data:
        """The same dataset with a share of its training examples, always the same ones, in their
        order; the examples of a smaller share are among those of a larger one."""
        if share == 1:
            return self
        count = max(1, round(share * len(self.train)))
        chosen = np.random.default_rng(0).permutation(len(self.train))[:count]
        return replace(self, train=self.train.select(np.sort(chosen)))

    def verify(self) -> None:
        """Read everything and compare it with the fingerprint: an error if a byte has changed."""
        try:
            digests = [ContentDigest.of(*item).hexdigest() for item in self.splits.items()]
        except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
            detail = " ".join(str(error).split())[:200] or type(error).__name__
            raise DataError(f"{self.folder}: damaged, cannot be read: {detail}") from error
        settings = EncoderSettings.of(self.tokenizer, allow_unknown=True)
        found = fingerprint(settings.tokenizer, digests)
        if found != self.fingerprint:
            raise DataError(
                f"{self.folder}: expected content of SHA-256 {self.fingerprint}, found {found}"
            )


def load_data(folder: str | os.PathLike[str]) -> Data:
    """Open a dataset made by :func:`build_data`."""
    folder = Path(folder)
    card = read_card(folder)
    for name in ("tokenizer", *card["splits"]):
        if not (folder / name).is_dir():
            raise DataError(f"{folder / name}: named in card.json, but absent")
    splits = {name: _load_split(folder / name, "labels" in card) for name in card["splits"]}
    tokenizer = load_tokenizer(folder / "tokenizer")
    rule = replace(text_rule(tokenizer), text=card["text"], unit=card.get("unit", "word"))
    rule.save_in(tokenizer)
    return Data(
        folder=folder,
        train=splits["train"],
        valid=splits.get("valid"),
        test=splits.get("test"),
        tokenizer=tokenizer,
        card=card,
    )


def _load_split(folder: Path, has_labels: bool) -> Dataset:
    from datasets import load_from_disk

    try:
        dataset = load_from_disk(str(folder))
    except Exception as error:  # whatever a damaged file makes of it
        detail = " ".join(str(error).split())[:200] or type(error).__name__
        raise DataError(
            f"{folder}: expected an Arrow dataset, found a damaged one: {detail}"
        ) from error
    for name in ("input_ids", "attachments", "length", *["actions"] * has_labels):
        if name not in dataset.column_names:
            raise DataError(f"{folder}: expected a column {name}, found {dataset.column_names}")
    return dataset


def read_card(folder: Path) -> dict[str, Any]:
    path = folder / CARD
    if not path.is_file():
        raise DataError(f"{folder}: expected a dataset made by `pushdown data build`, no card.json")
    try:
        card = json.loads(path.read_text(encoding="utf-8"))
        version = card["format_version"]
    except (ValueError, KeyError, TypeError, RecursionError):
        raise DataError(f"{path}: expected the card of a dataset, found other content") from None
    if version != FORMAT_VERSION:
        raise DataError(f"{path}: expected format version {FORMAT_VERSION}, found {version!r:.40}")
    _check_card(path, card)
    return card


_CARD_FIELDS: dict[str, type | tuple[type, ...]] = {
    "fingerprint": str,
    "splits": dict,
    "sources": list,
    "tokenizer": str,
    "vocab_size": int,
    "text": str,
    "window": (int, type(None)),
}
_COUNTS = ("examples", "sentences", "words", "tokens", "longest_example", "max_depth")


def _check_card(path: Path, card: dict[str, Any]) -> None:
    """Refuse a card that was damaged or written by hand; the splits are folders beside it."""
    for name, kind in _CARD_FIELDS.items():
        if not isinstance(card.get(name), kind):
            raise DataError(f"{path}: {name}: expected a dataset's, found {card.get(name)!r:.40}")
    if "train" not in card["splits"] or not card["splits"].keys() <= set(SPLITS):
        raise DataError(
            f"{path}: splits: expected train, with valid and test if any, found "
            f"{list(card['splits'])!r:.80}"
        )
    if card["text"] not in ("detokenized", "tokenized"):
        raise DataError(f"{path}: text: expected detokenized or tokenized, found {card['text']!r}")
    for split, counts in card["splits"].items():
        for name in _COUNTS:
            if not isinstance(counts, dict) or not isinstance(counts.get(name), int):
                raise DataError(f"{path}: splits.{split}.{name}: expected a number, found none")
    labels = card.get("labels", [])
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise DataError(f"{path}: labels: expected a list of names, found {labels!r:.40}")


def fingerprint(tokenizer: str, digests: Iterable[str]) -> str:
    """SHA-256 of a serialised tokenizer and of the content of the splits."""
    return sha256(" ".join([sha256(tokenizer), *digests]))


def sha256(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
