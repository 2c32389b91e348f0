"""The oracle: worked example, Algorithm 1 against the closed form, round trips."""

from __future__ import annotations

import itertools
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pushdown_lm.trees import Tree, binarize, read_trees
from pushdown_lm.trees.oracle import (
    Legality,
    OracleError,
    Stack,
    algorithm1,
    attachments_from_tape,
    attachments_from_tree,
    candidates,
    join_windows,
    parse_state,
    stack_distance,
    stack_tape,
    tree_from_attachments,
)
from tests.strategies import binary_trees, trees

HAPPY_DOG = Tree(("The", "dog", "is", "happy"), ((0, 2), (2, 4), (0, 4)))


def square(rows: list[list[int]]) -> np.ndarray:
    """Rows of growing length as a matrix, zero above the diagonal."""
    matrix = np.zeros((len(rows), len(rows)), dtype=int)
    for index, row in enumerate(rows):
        matrix[index, : len(row)] = row
    return matrix


def windows(max_words: int = 6) -> st.SearchStrategy[tuple[list[int], list[bool]]]:
    """Attachments and separators of windows of one to four sentences."""
    sentences = st.lists(binary_trees(max_words=max_words), min_size=1, max_size=4)
    return st.builds(
        lambda parses, shared: join_windows(
            [attachments_from_tree(parse) for parse in parses], shared_boundary=shared
        ),
        sentences,
        st.booleans(),
    )


def test_worked_example() -> None:
    attachments = attachments_from_tree(HAPPY_DOG)
    assert attachments == [0, 1, 1, 3, 2, 0]
    rows = [row[1:] for row in algorithm1(attachments)[1:5]]
    assert rows == [[0], [1, 1], [1, 1, 0], [2, 2, 2, 2]]
    tape = stack_tape(np.array(attachments))
    assert tape[1:5, 1:5].tolist() == [[0, 0, 0, 0], [1, 1, 0, 0], [1, 1, 0, 0], [2, 2, 2, 2]]
    assert tape[5].tolist() == [1, 4, 4, 4, 4, 2]  # EOS takes in the sentence, then ROOT


def test_worked_distance() -> None:
    distance = stack_distance(np.array(attachments_from_tree(HAPPY_DOG)))
    assert distance[3].tolist() == [2, 1, 1, 0, 0, 0]  # ROOT | The dog | is
    assert distance[4].tolist() == [1, 0, 0, 0, 0, 0]  # ROOT | The dog is happy


def test_worked_open_distance() -> None:
    distance = parse_state(np.array(attachments_from_tree(HAPPY_DOG))).open_distance
    assert distance[2].tolist() == [0, 0, 0, 0, 0, 0]  # ROOT | The dog: nothing above ROOT is open
    assert distance[3].tolist() == [1, 1, 1, 0, 0, 0]  # ROOT | The dog | is


@given(binary_trees(max_words=20))
def test_closed_form_equals_algorithm1(tree: Tree) -> None:
    attachments = attachments_from_tree(tree)
    expected = square(algorithm1(attachments))
    assert (stack_tape(np.array(attachments)) == expected).all()
    assert (stack_tape(torch.tensor(attachments)).numpy() == expected).all()


@given(windows())
def test_closed_form_equals_algorithm1_in_windows(window: tuple[list[int], list[bool]]) -> None:
    attachments, separators = window
    expected = square(algorithm1(attachments, separators))
    assert (stack_tape(np.array(attachments), np.array(separators)) == expected).all()
    tape = stack_tape(torch.tensor(attachments), torch.tensor(separators))
    assert (tape.numpy() == expected).all()


@given(st.lists(binary_trees(max_words=9), min_size=1, max_size=5))
def test_batches_with_padding(parses: list[Tree]) -> None:
    sentences = [attachments_from_tree(parse) for parse in parses]
    length = max(map(len, sentences))
    batch = np.array([[*row, *range(len(row), length)] for row in sentences])
    for tape in (stack_tape(batch), stack_tape(torch.tensor(batch)).numpy()):
        for row, sentence in zip(tape, sentences, strict=True):
            size = len(sentence)
            assert (row[:size, :size] == stack_tape(np.array(sentence))).all()


def naive_distance(attachments: list[int], separators: list[bool]) -> np.ndarray:
    """Counted on an explicit stack of constituents."""
    matrix = np.zeros((len(attachments), len(attachments)), dtype=int)
    stack: list[list[int]] = []
    for position, attachment in enumerate(attachments):
        constituent = [position]
        while attachment != position and stack and stack[-1][-1] >= attachment:
            constituent = stack.pop() + constituent
        if separators[position] and attachment != position:
            stack.append(constituent[:-1])
            constituent = [position]
        stack.append(constituent)
        for above, members in enumerate(reversed(stack)):
            matrix[position, members] = above
    return matrix


@given(windows())
def test_distance_counts_constituents_to_the_right(window: tuple[list[int], list[bool]]) -> None:
    attachments, separators = window
    expected = naive_distance(attachments, separators)
    assert (stack_distance(np.array(attachments), np.array(separators)) == expected).all()
    distance = stack_distance(torch.tensor(attachments), torch.tensor(separators))
    assert (distance.numpy() == expected).all()


@given(binary_trees(max_words=20))
def test_round_trips(tree: Tree) -> None:
    attachments = attachments_from_tree(tree)
    assert tree_from_attachments(attachments, tree.words).spans == tuple(tree.spans)
    for array in (np.array(attachments), torch.tensor(attachments)):
        assert attachments_from_tape(stack_tape(array)).tolist() == attachments


@given(trees(max_words=15), st.sampled_from(["right", "left"]))
def test_attachments_binarize_on_the_way(tree: Tree, direction: str) -> None:
    binary = binarize(tree, direction)  # type: ignore[arg-type]
    assert attachments_from_tree(tree, direction) == attachments_from_tree(binary)


def test_every_history_of_four_words_is_a_path_of_the_stack() -> None:
    """All attachment sequences: the legal ones are those that the candidates list."""

    def histories(prefix: list[int], stack: Stack) -> list[list[int]]:
        if len(prefix) == 5:
            return [[*prefix, 0]]
        index, legal = stack.candidates()
        found = []
        for choice in index[0][legal[0]].tolist():
            following = stack.step(torch.tensor([choice]))
            found += histories([*prefix, choice], following)
        return found

    legal = histories([0], Stack.start(1))
    accepted = []
    for choice in itertools.product(range(5), repeat=4):
        if all(attachment <= token for token, attachment in enumerate(choice, 1)):
            try:
                tree_from_attachments([0, *choice, 0], "abcd")
            except OracleError:
                continue
            accepted.append([0, *choice, 0])
    assert sorted(legal) == sorted(accepted)
    whole = {tree_from_attachments(history, "abcd").spans for history in legal}
    assert len(whole) == 5  # Catalan number: binary trees over four words


@given(windows())
def test_open_distance_counts_untouched_tokens(window: tuple[list[int], list[bool]]) -> None:
    attachments, separators = window
    expected = [
        [row[j + 1 :].count(0) for j in range(len(row))]
        for row in algorithm1(attachments, separators)
    ]
    state = parse_state(np.array(attachments), np.array(separators))
    assert (state.open_distance == square(expected)).all()
    state = parse_state(torch.tensor(attachments), torch.tensor(separators))
    assert (state.open_distance.numpy() == square(expected)).all()


@given(windows())
def test_stack_steps_equal_the_parallel_rows(window: tuple[list[int], list[bool]]) -> None:
    attachments, separators = window
    state = parse_state(torch.tensor([attachments]), torch.tensor([separators]))
    stack = Stack.start(1)
    for position in range(1, len(attachments)):
        stack = stack.step(
            torch.tensor([attachments[position]]), torch.tensor([separators[position]])
        )
        now = slice(0, position + 1)
        assert (stack.depth == state.tape[:, position, now]).all()
        assert (stack.opens == state.opens[:, position, now]).all()
        assert (stack.distance == state.distance[:, position, now]).all()
        assert (stack.open_distance == state.open_distance[:, position, now]).all()


@given(st.lists(binary_trees(min_words=2, max_words=8), min_size=1, max_size=4))
def test_candidates_equal_those_of_the_stack(parses: list[Tree]) -> None:
    check_candidates([attachments_from_tree(parse) for parse in parses], "constituents")


@st.composite
def open_token_parses(draw: st.DrawFn) -> list[int]:
    """Attachments to open tokens only, each chosen from what Algorithm 1 has left untouched."""
    attachments = [0]
    for position in range(1, draw(st.integers(2, 10))):
        tape = algorithm1(attachments)[-1]
        is_open = [token for token in range(1, position) if tape[token] == 0]
        attachments.append(draw(st.sampled_from([position, *is_open])))
    return [*attachments, 0]


@given(st.lists(open_token_parses(), min_size=1, max_size=4))
def test_open_tokens_are_those_that_no_reduce_has_touched(sentences: list[list[int]]) -> None:
    check_candidates(sentences, "open_tokens")


def check_candidates(sentences: list[list[int]], legality: Legality) -> None:
    """The closed form lists what the stack lists, step by step, and what Algorithm 1 allows."""
    length = max(map(len, sentences))
    batch = torch.tensor([[*row, *range(len(row), length)] for row in sentences])
    lengths = torch.tensor([len(row) for row in sentences])[:, None]
    position = torch.arange(length)
    roots = (position == 0).expand_as(batch)
    words = (position > 0) & (position < lengths - 1)
    options = candidates(batch, parse_state(batch), roots, words, legality=legality)
    for row, sentence in enumerate(sentences):
        stack = Stack.start(1)
        for token in range(1, len(sentence) - 1):
            index, legal = stack.candidates(legality=legality)
            if legality == "open_tokens":
                tape = algorithm1(sentence[:token])[-1]
                untouched = [j for j in range(token - 1, 0, -1) if tape[j] == 0]
                assert index[0][legal[0]].tolist() == [token, *untouched]
            here = options.index[row, token - 1][options.legal[row, token - 1]]
            assert here.tolist() == index[0][legal[0]].tolist()
            slot = options.target[row, token - 1]
            assert options.index[row, token - 1, slot] == sentence[token]
            assert bool(options.decided[row, token - 1]) == (int(legal.sum()) > 1)
            stack = stack.step(torch.tensor([sentence[token]]))
        assert not options.decided[row, len(sentence) - 2 :].any()


@pytest.mark.parametrize(
    ("attachments", "legality", "message"),
    [
        ([0, 1, 1, 2, 0], "open_tokens", r"token 3 attaches to 2, .* shift or attach to \[\]"),
        ([0, 1, 2, 1, 2, 0], "constituents", r"token 4 attaches to 2, .* attach to \[3\]"),
    ],
)
def test_an_illegal_parse_is_an_error(
    attachments: list[int], legality: Legality, message: str
) -> None:
    batch = torch.tensor([attachments, attachments])
    position = torch.arange(len(attachments)).expand_as(batch)
    words = (position > 0) & (position < len(attachments) - 1)
    with pytest.raises(OracleError, match=message):
        candidates(batch, parse_state(batch), position == 0, words, legality=legality)


def test_select_reorders_and_copies() -> None:
    stack = Stack.start(2).step(torch.tensor([1, 1])).step(torch.tensor([1, 2]))
    chosen = stack.select(torch.tensor([1, 1, 0]))
    assert chosen.depth.tolist() == [[0, 0, 0], [0, 0, 0], [0, 1, 1]]
    assert chosen.opens.tolist() == [[True] * 3, [True] * 3, [True, True, False]]


@pytest.mark.parametrize(
    ("attachments", "message"),
    [
        ([0, 1, 0], "2 words need 4 attachments"),
        ([0, 1, 1, 3], "begin and end with 0"),
        ([0, 1, 0, 0], "token 2 attaches to 0, but the constituents on the stack end at \\[1\\]"),
    ],
)
def test_bad_attachments_are_refused(attachments: list[int], message: str) -> None:
    with pytest.raises(OracleError, match=message):
        tree_from_attachments(attachments, "ab")


def test_buried_constituents_are_not_legal() -> None:
    with pytest.raises(OracleError, match=r"attaches to 1, but .* end at \[2\]"):
        tree_from_attachments([0, 1, 1, 1, 0], "abc")


def test_long_and_deep_sentences() -> None:
    count = 10_000
    right = Tree(tuple("a" * count), tuple((start, count) for start in range(count - 2, -1, -1)))
    attachments = attachments_from_tree(right)
    assert attachments[-2:] == [1, 0]
    assert tree_from_attachments(attachments, right.words) == right


@pytest.mark.parametrize("corpus", ["dickens", "gum", "craft", "questionbank", "brown_silver"])
def test_real_trees(shared_data: Path, corpus: str) -> None:
    """Closed form against Algorithm 1 on every fifth tree, both directions."""
    files = sorted((shared_data / corpus).glob("*.trees"))[:2]
    for tree in itertools.islice(read_trees(files, errors="skip"), 0, 4000, 5):
        attachments = attachments_from_tree(tree)
        tape = stack_tape(np.array(attachments))
        assert (tape == square(algorithm1(attachments))).all()
        assert tree_from_attachments(attachments, tree.words).spans == binarize(tree).spans


@pytest.mark.slow
def test_all_real_trees(shared_data: Path) -> None:
    for tree in read_trees(sorted(shared_data.glob("*/*.trees")), errors="skip"):
        attachments = attachments_from_tree(tree)
        array = np.array(attachments)
        assert (stack_tape(array) == square(algorithm1(attachments))).all()
        assert (attachments_from_tape(stack_tape(array)) == array).all()
        assert tree_from_attachments(attachments, tree.words).spans == binarize(tree).spans


def test_no_torch_at_import() -> None:
    code = "import pushdown_lm.trees.oracle, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)
