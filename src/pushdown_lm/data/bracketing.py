"""Labeled trees as sequences of tokens: the input of the models that read brackets.

    PLM      <s> <(S> <(NP> The dog <)> <(VP> is happy <)> <)> </s>
    TG       <s> <(S> <(NP> The dog <NP)> <NP)> <(VP> is happy <VP)> <VP)> <S)> <S)> </s>

Nonterminals are tokens that are added to the tokenizer. A parsing language model has one token that
closes any constituent. Transformer Grammars (TG) close a constituent by its label, twice: the first
copy composes, the second predicts what comes next.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pushdown_lm.data.batching import IGNORED
from pushdown_lm.data.dataset import Data
from pushdown_lm.data.encoding import DataError
from pushdown_lm.errors import PushdownError
from pushdown_lm.trees.linearization import CLOSE, TOKEN

if TYPE_CHECKING:
    from datasets import Dataset
    from transformers import PreTrainedTokenizerBase

NONTERMINALS_KEY = "pushdown_nonterminals"
"""The key of `tokenizer_config.json` that holds the nonterminals."""


@dataclass(frozen=True)
class Nonterminals:
    """The tokens that open and close constituents: openers in the order of the labels, then
    closers."""

    labels: tuple[str, ...]
    first: int
    """The id of the first opener."""
    typed: bool
    """Whether closers have labels and come twice, as in Transformer Grammars."""

    @classmethod
    def of(cls, tokenizer: PreTrainedTokenizerBase) -> Nonterminals | None:
        """Those that :meth:`add_to` has added to a tokenizer, if any."""
        saved = tokenizer.init_kwargs.get(NONTERMINALS_KEY)
        if saved is None:
            return None
        try:
            return cls(tuple(saved["labels"]), int(saved["first"]), bool(saved["typed"]))
        except (KeyError, TypeError, ValueError):
            raise PushdownError(
                f"{tokenizer.name_or_path or 'tokenizer'}: tokenizer_config.json: "
                f"{NONTERMINALS_KEY}: expected labels, first and typed, got {saved!r:.80}"
            ) from None

    @classmethod
    def add_to(
        cls, tokenizer: PreTrainedTokenizerBase, labels: Sequence[str], *, typed: bool
    ) -> PreTrainedTokenizerBase:
        """A copy of a tokenizer that has the nonterminals too."""
        from tokenizers import AddedToken

        added = cls(tuple(labels), len(tokenizer), typed)
        tokenizer = copy.deepcopy(tokenizer)
        tokens = [AddedToken(text, special=True, normalized=False) for text in added.tokens()]
        if tokenizer.add_tokens(tokens) != len(tokens):
            taken = [text for text in added.tokens() if text in tokenizer.get_vocab()]
            raise DataError(f"labels: the tokenizer has tokens of these names already: {taken}")
        tokenizer.init_kwargs[NONTERMINALS_KEY] = asdict(added)
        return tokenizer

    @property
    def first_closer(self) -> int:
        return self.first + len(self.labels)

    @property
    def end(self) -> int:
        """One past the last id."""
        return self.first_closer + (len(self.labels) if self.typed else 1)

    def tokens(self) -> list[str]:
        """What the vocabulary calls them."""
        closers = [f"<{label})>" for label in self.labels] if self.typed else ["<)>"]
        return [*(f"<({label}>" for label in self.labels), *closers]

    def linearize(self, tokens: Sequence[int], actions: Sequence[int]) -> list[int]:
        """The ids of a sentence whose actions read these tokens.

        >>> Nonterminals(("S", "NP"), 10, typed=True).linearize([0, 5, 1], [0, 1, 0, -1, 0])
        [0, 10, 5, 12, 12, 1]
        """
        ids: list[int] = []
        opened: list[int] = []
        words = iter(tokens)
        for action in actions:
            if action == TOKEN:
                ids.append(next(words))
            elif action != CLOSE:
                opened.append(action - 1)
                ids.append(self.first + action - 1)
            else:
                label = opened.pop()
                ids += [self.first_closer + label] * 2 if self.typed else [self.first_closer]
        return ids


class BracketCollator:
    """Pads bracketed sentences on the right; padding is not scored."""

    def __init__(self, nonterminals: Nonterminals, pad_id: int) -> None:
        self.nonterminals, self.pad_id = nonterminals, pad_id

    def __call__(self, examples: Sequence[Mapping[str, Any]]) -> dict[str, Tensor]:
        linearize = self.nonterminals.linearize
        rows = [linearize(example["input_ids"], example["actions"]) for example in examples]
        lengths = np.array(list(map(len, rows)))
        input_ids = np.full((len(rows), int(lengths.max())), self.pad_id, dtype=np.int64)  # (B, T)
        for row, ids in enumerate(rows):
            input_ids[row, : len(ids)] = ids
        is_token = np.arange(input_ids.shape[1]) < lengths[:, None]
        return {
            "input_ids": torch.from_numpy(input_ids),
            "attention_mask": torch.from_numpy(is_token.astype(np.int64)),
            "labels": torch.from_numpy(np.where(is_token, input_ids, IGNORED)),
        }


def bracket_data(data: Data, *, typed: bool) -> Data:
    """The dataset for a model that reads brackets: its tokenizer has the nonterminals too."""
    if data.labels is None:
        raise DataError(
            f"{data.folder}: expected labeled trees, which the model reads; build the dataset with "
            "--labels"
        )
    if data.card["window"] is not None:
        raise DataError(
            f"{data.folder}: expected a sentence per example, found windows of "
            f"{data.card['window']} tokens; models that read brackets are sentence-level"
        )
    tokenizer: Any = Nonterminals.add_to(data.tokenizer, data.labels, typed=typed)
    return replace(data, tokenizer=tokenizer)


def bracketed_lengths(split: Dataset) -> NDArray[np.int64]:
    """Ids of each sentence of a split, if closers come once."""
    tables = split.with_format("arrow").iter(10_000)
    lengths = [table["actions"].combine_chunks().value_lengths().to_numpy() for table in tables]
    return np.concatenate(lengths).astype(np.int64)


def longest_bracketed(data: Data) -> int:
    """Ids of the longest sentence, if closers come once."""
    return max(int(bracketed_lengths(split).max()) for split in data.splits.values())
