"""Labeled trees to the tokens that models of brackets read."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given

from pushdown_lm.data.batching import IGNORED
from pushdown_lm.data.bracketing import (
    NONTERMINALS_KEY,
    BracketCollator,
    Nonterminals,
    bracket_data,
    longest_bracketed,
)
from pushdown_lm.data.build import DataOptions, build_data
from pushdown_lm.data.dataset import Data, load_data
from pushdown_lm.data.encoding import DataError
from pushdown_lm.data.tokenization import load_tokenizer, train_word_vocabulary
from pushdown_lm.errors import PushdownError
from pushdown_lm.trees import Tree, binarize, parse_tree
from pushdown_lm.trees.linearization import actions_from_tree, tree_from_actions
from pushdown_lm.trees.oracle import attachments_from_tree
from tests import strategies
from tests.command_line import run_pushdown

TREES = """
(S (NP The dog) (VP is (ADJP very happy)) .)
(S (NP (NP a cat) (PP on (NP the roof))) sleeps)
(FRAG yes)
"""


def labeled(folder: Path, **options: object) -> Data:
    (folder / "train.trees").write_text(TREES)
    chosen = DataOptions(tokenizer="word", labels=True, **options)  # type: ignore[arg-type]
    return build_data(str(folder / "train.trees"), folder / "data", chosen)


def test_sequences_by_hand(tmp_path: Path) -> None:
    data = labeled(tmp_path)
    assert data.labels == ["S", "NP", "VP", "ADJP", "PP", "FRAG"]
    wanted = {
        False: "<s> <(S> <(NP> The dog <)> <(VP> is <(ADJP> very happy <)> <)> . <)> </s>",
        True: "<s> <(S> <(NP> The dog <NP)> <NP)> <(VP> is <(ADJP> very happy <ADJP)> <ADJP)> "
        "<VP)> <VP)> . <S)> <S)> </s>",
    }
    for typed, text in wanted.items():
        bracketed = bracket_data(data, typed=typed)
        nonterminals = Nonterminals.of(bracketed.tokenizer)
        assert nonterminals is not None
        assert nonterminals.first == len(data.tokenizer)
        assert nonterminals.end == len(bracketed.tokenizer)
        pad = bracketed.tokenizer.pad_token_id
        batch = BracketCollator(nonterminals, pad)([data.train[0], data.train[2]])
        words = bracketed.tokenizer.convert_ids_to_tokens(batch["input_ids"][0].tolist())
        assert " ".join(words) == text
        short = batch["attention_mask"][1].sum()
        assert batch["input_ids"][1, short:].eq(pad).all()
        assert batch["labels"][1, short:].eq(IGNORED).all()
        assert batch["labels"][1, :short].equal(batch["input_ids"][1, :short])
    assert longest_bracketed(data) == 2 + 6 + 2 * 5  # BOS, EOS, words and brackets of the second


def test_nonterminals_are_saved_with_the_tokenizer(tmp_path: Path) -> None:
    words = train_word_vocabulary([["the", "dog"]])
    added = Nonterminals.add_to(words, ["S", "NP"], typed=True)
    assert Nonterminals.of(words) is None
    added.save_pretrained(tmp_path)
    assert Nonterminals.of(load_tokenizer(tmp_path)) == Nonterminals.of(added)
    assert load_tokenizer(tmp_path).convert_tokens_to_ids("<NP)>") == len(words) + 3
    with pytest.raises(DataError, match=r"has tokens of these names already: \['<\(S>'"):
        Nonterminals.add_to(added, ["S"], typed=False)
    config = tmp_path / "tokenizer_config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), NONTERMINALS_KEY: ["S"]}))
    with pytest.raises(PushdownError, match=f"{NONTERMINALS_KEY}: expected labels, first"):
        Nonterminals.of(load_tokenizer(tmp_path))


@given(strategies.trees(labels=True))
def test_ids_of_any_tree(tree: Tree) -> None:
    labels = list(strategies.LABELS)
    actions = actions_from_tree(tree, labels.index)
    for typed in (False, True):
        nonterminals = Nonterminals(tuple(labels), 100, typed)
        ids = nonterminals.linearize(range(len(tree.words)), actions)
        opened: list[int] = []
        read: list[int] = []
        while ids:
            symbol = ids.pop(0)
            if symbol < 100:
                read.append(0)
            elif symbol < nonterminals.first_closer:
                opened.append(symbol)
                read.append(symbol - 99)
            else:
                assert not typed or symbol == ids.pop(0) == opened[-1] + len(labels)
                opened.pop()
                read.append(-1)
        assert tree_from_actions(read, labels, tree.words) == tree


def test_build_keeps_attachments_and_older_datasets(tmp_path: Path) -> None:
    data = labeled(tmp_path)
    plain = build_data(
        str(tmp_path / "train.trees"), tmp_path / "plain", DataOptions(tokenizer="word")
    )
    assert plain.labels is None
    assert plain.train.column_names == ["input_ids", "attachments", "length"]
    for name in plain.train.column_names:
        assert plain.train[name][:] == data.train[name][:]
    assert plain.fingerprint != data.fingerprint
    load_data(tmp_path / "data").verify()
    with pytest.raises(DataError, match="expected labeled trees, which the model reads"):
        bracket_data(plain, typed=True)


def test_processes_do_not_change_the_content(tmp_path: Path) -> None:
    trees = [parse_tree(line, labels=True) for line in TREES.strip().splitlines()]
    source = [*reversed(trees)] * 700 + trees * 700  # several chunks, labels in another order
    options = DataOptions(tokenizer="word", labels=True)
    one = build_data(source, tmp_path / "one", options)
    two = build_data(source, tmp_path / "two", options, processes=2)
    assert one.labels == two.labels == ["FRAG", "S", "NP", "PP", "VP", "ADJP"]
    assert one.fingerprint == two.fingerprint
    assert one.labels is not None
    for row in (1, 4199):
        tree = source[row]
        actions = one.train[row]["actions"][1:-1]
        assert tree_from_actions(actions, one.labels, tree.words) == tree
        assert one.train[row]["attachments"] == attachments_from_tree(binarize(tree))


def test_trees_without_labels(tmp_path: Path) -> None:
    trees = [Tree(["the", "dog", "barks"], [(0, 2), (0, 3)]), Tree(["dog"], [])]
    data = build_data(trees, tmp_path, DataOptions(tokenizer="word", labels=True))
    assert data.labels == ["X"]
    assert data.train["actions"][:] == [[0, 1, 1, 0, 0, -1, 0, -1, 0], [0, 1, 0, -1, 0]]


def test_windows_keep_actions_but_are_no_sentences(tmp_path: Path) -> None:
    data = labeled(tmp_path, window=30)
    assert data.train["actions"][0].count(0) == len(data.train["input_ids"][0])
    with pytest.raises(DataError, match="expected a sentence per example, found windows of 30"):
        bracket_data(data, typed=False)


def test_label_unseen_in_training(tmp_path: Path) -> None:
    (tmp_path / "train.trees").write_text("(S the dog)")
    (tmp_path / "valid.trees").write_text("(FRAG the dog)")
    done = run_pushdown(
        "data", "build", tmp_path / "train.trees", "--valid", tmp_path / "valid.trees",
        "--labels", "--tokenizer", "word", "--out", tmp_path / "data",
    )  # fmt: skip
    assert done.exit_code == 2
    assert "valid: expected labels of the training trees, found FRAG" in done.error
