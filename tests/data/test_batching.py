"""Padding and batches within a budget of tokens."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushdown_lm.data.batching import Collator, TokenBudgetBatches
from pushdown_lm.data.encoding import DataError


def test_collator_pads_on_the_right() -> None:
    batch = Collator(pad_id=2)(
        [
            {"input_ids": [0, 5, 6, 1], "attachments": [0, 1, 1, 0], "length": 4},
            {"input_ids": np.array([0, 7, 1]), "attachments": np.array([0, 1, 0], np.int16)},
        ]
    )
    assert {name: tensor.tolist() for name, tensor in batch.items()} == {
        "input_ids": [[0, 5, 6, 1], [0, 7, 1, 2]],
        "attachments": [[0, 1, 1, 0], [0, 1, 0, 3]],
        "attention_mask": [[1, 1, 1, 1], [1, 1, 1, 0]],
        "labels": [[0, 5, 6, 1], [0, 7, 1, -100]],
    }
    assert {str(tensor.dtype) for tensor in batch.values()} == {"torch.int64"}


def test_batches_by_hand() -> None:
    batches = TokenBudgetBatches([3, 8, 4, 2, 5], 10, seed=0, shuffle=False)
    assert list(batches) == [[1], [4, 2], [0, 3]]
    limited = TokenBudgetBatches([3, 3, 3], 10, seed=0, shuffle=False, max_sentences=2)
    assert list(limited) == [[0, 1], [2]]


@given(
    lengths=st.lists(st.integers(1, 30), max_size=60),
    budget=st.integers(30, 90),
    max_sentences=st.none() | st.integers(1, 5),
    seed=st.integers(0, 5),
    shuffle=st.booleans(),
)
def test_every_example_once_within_the_budget(
    lengths: list[int], budget: int, max_sentences: int | None, seed: int, shuffle: bool
) -> None:
    def sampler() -> TokenBudgetBatches:
        return TokenBudgetBatches(
            lengths, budget, seed=seed, shuffle=shuffle, max_sentences=max_sentences
        )

    batches = sampler()
    for epoch in range(3):
        batches.set_epoch(epoch)
        chosen = list(batches)
        assert sorted(index for batch in chosen for index in batch) == list(range(len(lengths)))
        assert len(batches) == len(chosen)
        for batch in chosen:
            assert len(batch) * max(lengths[index] for index in batch) <= budget
            assert len(batch) <= (max_sentences or len(lengths))
        again = sampler()
        again.set_epoch(epoch)
        assert list(again) == chosen


def test_epochs_and_seeds_differ() -> None:
    lengths = list(range(10, 20)) * 10
    batches = TokenBudgetBatches(lengths, 100, seed=1)
    first = list(batches)
    assert list(batches) == first
    batches.set_epoch(1)
    assert list(batches) != first
    assert list(TokenBudgetBatches(lengths, 100, seed=2)) != first


def test_batches_hold_similar_lengths() -> None:
    lengths = np.random.default_rng(0).integers(3, 100, 2000)
    batches = list(TokenBudgetBatches(lengths, 2000, seed=0))
    padded = sum(len(batch) * lengths[batch].max() for batch in batches)
    assert padded < 1.05 * lengths.sum()


def test_example_above_the_budget() -> None:
    message = r"tokens_per_batch: expected at least 12, .* \(number 1\), got 10"
    with pytest.raises(DataError, match=message):
        TokenBudgetBatches([3, 12], 10, seed=0)


def test_no_sentences_at_all() -> None:
    with pytest.raises(DataError, match="max_sentences: expected at least 1, got 0"):
        TokenBudgetBatches([3], 10, seed=0, max_sentences=0)


def test_examples_of_equal_length_are_sorted_by_width() -> None:
    generator = np.random.default_rng(0)
    lengths, widths = generator.integers(1, 4, 200), generator.integers(1, 50, 200)
    batches = TokenBudgetBatches(lengths, 12, seed=1, widths=widths)
    drawn = sorted(batches, key=lambda batch: (-lengths[batch[0]], -widths[batch[0]]))
    keys = [(-lengths[n], -widths[n]) for batch in drawn for n in batch]
    assert keys == sorted(keys)
    assert sorted(n for batch in batches for n in batch) == list(range(200))
    plain = TokenBudgetBatches(lengths, 12, seed=1)
    assert [len(batch) for batch in plain] == [len(batch) for batch in batches]
