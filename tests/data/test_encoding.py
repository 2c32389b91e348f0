"""Trees to tokens and attachments, and sentences to windows."""

from __future__ import annotations

import pickle
import signal
import subprocess
import sys
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushdown_lm.data.encoding import (
    Binarization,
    Chunk,
    ChunkEncoder,
    DataError,
    Sentence,
    Shard,
    attach_pieces,
    check_spans,
    pack_windows,
    parse_shape,
)
from pushdown_lm.data.tokenization import EncoderSettings, UnusableTreeError, train_word_vocabulary
from pushdown_lm.trees import Errors, Tree, split_words
from pushdown_lm.trees.oracle import attachments_from_tree, join_windows, parse_state, stack_tape
from tests import strategies


@given(st.data(), strategies.trees(), st.sampled_from(["right", "left"]))
def test_pieces_attach_as_split_words_do(
    data: st.DataObject, tree: Tree, direction: Binarization
) -> None:
    pieces = data.draw(strategies.tokenisations(tree))
    direct = attach_pieces(attachments_from_tree(tree, direction), list(map(len, pieces)))
    assert direct == attachments_from_tree(split_words(tree, pieces), direction)


@given(strategies.trees())
def test_parse_shape_agrees_with_the_tape(tree: Tree) -> None:
    attachments = np.array(attachments_from_tree(tree))
    state = parse_state(attachments)
    shape = parse_shape(attachments.tolist())
    assert shape.depth == state.tape.max()
    assert shape.stack_size == state.opens[:-1, 1:].sum(-1).max()


def test_depth_counts_the_closing_of_a_shared_boundary() -> None:
    attachments, separators = join_windows([[0, 1, 1, 3, 2, 0], [0, 1, 0]], shared_boundary=True)
    tape = stack_tape(np.array(attachments), np.array(separators))
    assert tape.max() == parse_shape([0, 1, 1, 3, 2, 0]).depth == 4


@given(strategies.trees())
def test_spans_of_a_tree_are_accepted(tree: Tree) -> None:
    check_spans(tree.spans, len(tree.words))


@pytest.mark.parametrize(
    "spans",
    [
        [(0, 3), (1, 4), (0, 4)],
        [(0, 4), (0, 2)],
        [(0, 4), (0, 4)],
        [(0, 2), (1, 2), (0, 4)],
        [(2, 5), (0, 5)],
        [(-1, 2), (0, 4)],
    ],
)
def test_spans_out_of_place(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(UnusableTreeError, match=r"nested spans in post-order, found \(.*\) out of"):
        check_spans(spans, 4)


@pytest.mark.parametrize("spans", [[], [(0, 2), (2, 4)], [(0, 3)]])
def test_words_that_are_not_one_constituent(spans: list[tuple[int, int]]) -> None:
    with pytest.raises(UnusableTreeError, match="a constituent over all 4 words, found"):
        check_spans(spans, 4)


# ------------------------------------------------------------------ chunks

WORDS = train_word_vocabulary([["the", "dog", "barks"]])  # ids: barks 4, dog 5, the 6


def encode(
    *trees: Tree, errors: Errors = "raise", max_length: int | None = None, unknown: bool = False
) -> Shard:
    settings = EncoderSettings.of(WORDS, allow_unknown=unknown)
    chunk = Chunk("file", range(1, len(trees) + 1), [(tree.words, tree.spans) for tree in trees])
    return ChunkEncoder(settings, "right", max_length, errors).start()(chunk)


GOOD = Tree(["the", "dog", "barks"], [(0, 2), (0, 3)])


def test_shard_by_hand(tmp_path: Path) -> None:
    shard = encode(GOOD, Tree(["barks"], []))
    assert list(shard) == [
        Sentence([0, 6, 5, 4, 1], [0, 1, 1, 2, 0]),
        Sentence([0, 4, 1], [0, 1, 0]),
    ]
    tally = shard.tally
    assert (tally.trees, tally.sentences, tally.words, tally.tokens) == (2, 2, 4, 8)
    assert (tally.depths, tally.stack_sizes) == ({4: 1, 2: 1}, {1: 2})
    shard.save(tmp_path / "shard.npz")
    loaded = Shard.load(tmp_path / "shard.npz")
    assert list(loaded) == list(shard)
    assert loaded.tally == tally


def test_unusable_trees_are_counted_by_reason() -> None:
    bad = [
        Tree(["the", "bird"], [(0, 2)]),
        Tree(["the", "<s>"], [(0, 2)]),
        Tree(["the", "dog"], []),
        Tree([], []),
        Tree(["the", "dog", "barks", "barks"], [(0, 2), (0, 3), (0, 4)]),
    ]
    shard = encode(*bad, GOOD, errors="skip", max_length=5)
    assert len(list(shard)) == 1
    assert shard.tally.skipped == {
        "word outside the vocabulary": 1,
        "special token among the words": 1,
        "spans that are no tree": 1,
        "no words": 1,
        "longer than 5 tokens": 1,
    }


def test_unusable_tree_raises_with_its_place() -> None:
    message = "^file, tree 2: expected words of the closed vocabulary, found 'bird'$"
    with pytest.raises(DataError, match=message):
        encode(GOOD, Tree(["the", "bird"], [(0, 2)]))


def test_unknown_words_are_counted() -> None:
    shard = encode(Tree(["the", "bird"], [(0, 2)]), unknown=True)
    assert list(shard) == [Sentence([0, 6, 3, 1], [0, 1, 1, 0])]
    assert shard.tally.unknown_words == 1


# ------------------------------------------------------------------ processes

KILLED = """
import os, pickle, signal, sys
from pathlib import Path
from pushdown_lm.data.encoding import Chunk, encode_chunks

if __name__ == "__main__":
    encoder = pickle.load(sys.stdin.buffer)
    chunk = Chunk("file", [1], [(["the", "dog"], [(0, 2)])])
    for _ in encode_chunks(encoder, ((Path(f"{n}.npz"), chunk) for n in range(99)), processes=2):
        os.kill(os.getpid(), signal.SIGKILL)
"""


def test_killed_parent_leaves_whole_shards_and_no_process(tmp_path: Path) -> None:
    (tmp_path / "killed.py").write_text(KILLED)
    settings = EncoderSettings.of(WORDS, allow_unknown=False)
    process = subprocess.Popen(
        [sys.executable, "killed.py"],
        cwd=tmp_path,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    encoder = pickle.dumps(ChunkEncoder(settings, "right", None, "raise"))
    process.communicate(encoder, timeout=60)  # until no process is left that holds the pipe
    assert process.returncode == -signal.SIGKILL
    shards = sorted(tmp_path.glob("[0-9]*.npz"))
    assert 1 <= len(shards) < 99
    for shard in shards:
        assert list(Shard.load(shard)) == [Sentence([0, 6, 5, 1], [0, 1, 1, 0])]


# ------------------------------------------------------------------ windows


def sentence(*tokens: int) -> Sentence:
    """A right-branching sentence between ROOT and EOS, both of id 9."""
    shifts = [*range(1, len(tokens)), 1] if len(tokens) > 1 else [1]
    return Sentence([9, *tokens, 9], [0, *shifts, 0])


def test_windows_by_hand() -> None:
    sentences = [sentence(1, 2), sentence(3), sentence(4)]
    assert list(pack_windows(iter(sentences), 7, shared_boundary=False)) == [
        Sentence([9, 1, 2, 9, 9, 3, 9], [0, 1, 1, 0, 4, 5, 4]),
        Sentence([9, 4, 9], [0, 1, 0]),
    ]
    assert list(pack_windows(iter(sentences), 7, shared_boundary=True)) == [
        Sentence([9, 1, 2, 9, 3, 9], [0, 1, 1, 0, 4, 3]),
        Sentence([9, 4, 9], [0, 1, 0]),
    ]
    assert len(list(pack_windows(iter(sentences), 8, shared_boundary=True))) == 1


@given(st.lists(st.integers(1, 6), min_size=1, max_size=30), st.integers(8, 40), st.booleans())
def test_windows_keep_sentences_whole(sizes: list[int], length: int, shared: bool) -> None:
    sentences = [
        sentence(*range(10 * number, 10 * number + size)) for number, size in enumerate(sizes, 1)
    ]
    windows = list(pack_windows(iter(sentences), length, shared_boundary=shared))
    words = [token for window in windows for token in window.input_ids if token != 9]
    assert words == [token for one in sentences for token in one.input_ids if token != 9]
    for window in windows:
        ids, attachments, _ = window
        assert len(ids) == len(attachments) <= length
        assert ids[0] == 9
        assert ids[-1] == 9
        sentence_of = np.cumsum([token == 9 for token in ids])
        for position, attachment in enumerate(attachments):
            if ids[position] != 9:
                assert sentence_of[position] == sentence_of[attachment]
                assert ids[attachment] != 9
    for before, after in pairwise(windows):
        first = after.input_ids[: list(after.input_ids).index(9, 1) + 1]
        assert len(before.input_ids) + len(first) - shared > length
