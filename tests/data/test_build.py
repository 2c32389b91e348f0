"""Datasets from trees: content, windows, splits, resuming, processes, errors, the command."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from pushdown_lm.cli.app import main
from pushdown_lm.data import build as data_module
from pushdown_lm.data.batching import Collator, TokenBudgetBatches
from pushdown_lm.data.build import DataOptions, build_data
from pushdown_lm.data.dataset import Data, load_data
from pushdown_lm.data.encoding import Chunk, ChunkEncoding, DataError, Shard
from pushdown_lm.data.tokenization import TokenizationError
from pushdown_lm.errors import TreeError
from pushdown_lm.trees import Tree, binarize, merge_pieces, parse_trees, to_brackets
from pushdown_lm.trees.oracle import tree_from_attachments
from tests import strategies

TREES = """\
(S (NP (DT The) (NN dog)) (VP (VBZ is) (ADJP (JJ happy))))
(S (NP (PRP I)) (VP (VBP do) (RB n't) (VP (VB see) (NP (DT the) (NN dog)))) (. .))
(NP (NN dog))
"""


@pytest.fixture
def trees_file(tmp_path: Path) -> Path:
    path = tmp_path / "some.trees"
    path.write_text(TREES)
    return path


@pytest.fixture
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(data_module, "TREES_PER_CHUNK", 10)


def many_trees(count: int) -> list[Tree]:
    """Sentences that are all different: `dog 7 is is .`, 3 to 7 words long."""
    return [
        Tree(["dog", str(number), *["is"] * (number % 5), "."], _right_spans(number % 5 + 3))
        for number in range(count)
    ]


def _right_spans(num_words: int) -> list[tuple[int, int]]:
    return [(start, num_words) for start in range(num_words - 2, -1, -1)]


def content(data: Data) -> dict[str, Any]:
    return {name: split.to_dict() for name, split in data.splits.items()}


# ------------------------------------------------------------------ content


def test_word_dataset_by_hand(trees_file: Path, tmp_path: Path) -> None:
    data = build_data(trees_file, tmp_path / "out", DataOptions(tokenizer="word"))
    # 4 dog, 5 ., 6 I, 7 The, 8 do, 9 happy, 10 is, 11 n't, 12 see, 13 the
    assert content(data)["train"] == {
        "input_ids": [[0, 7, 4, 10, 9, 1], [0, 6, 8, 11, 12, 13, 4, 5, 1], [0, 4, 1]],
        "attachments": [[0, 1, 1, 3, 2, 0], [0, 1, 2, 3, 4, 5, 2, 1, 0], [0, 1, 0]],
        "length": [6, 9, 3],
    }
    assert data.valid is None
    assert data.card["vocab_size"] == len(data.tokenizer) == 14
    assert data.card["text"] == "tokenized"


def test_byte_level_dataset_by_hand(trees_file: Path, tmp_path: Path) -> None:
    data = build_data(trees_file, tmp_path / "out", DataOptions(tokenizer="bpe:259"))
    first = data.train[0]
    tokens = data.tokenizer.convert_ids_to_tokens(first["input_ids"])
    assert tokens == ["<s>", *"TheĠdogĠisĠhappy", "</s>"]
    # The: 1-3, Ġdog: 4-7, Ġis: 8-10, Ġhappy: 11-16
    assert first["attachments"] == [
        0, 1, 2, 1, 4, 5, 6, 3, 8, 9, 8, 11, 12, 13, 14, 15, 7, 0,
    ]  # fmt: skip
    assert data.tokenizer.decode(data.train[1]["input_ids"], skip_special_tokens=True) == (
        "I don't see the dog."
    )
    assert data.card["splits"]["train"]["differing_sentences"] == 0


def test_text_may_stay_tokenised(trees_file: Path, tmp_path: Path) -> None:
    options = DataOptions(tokenizer="bpe:259", detokenize=False)
    data = build_data(trees_file, tmp_path / "out", options)
    text = data.tokenizer.decode(data.train[1]["input_ids"], skip_special_tokens=True)
    assert text == "I do n't see the dog ."


def test_left_binarization(tmp_path: Path) -> None:
    flat = Tree(["a", "b", "c"], [(0, 3)])
    options = DataOptions(tokenizer="word", binarize="left")
    assert build_data([flat], tmp_path, options).train[0]["attachments"] == [0, 1, 1, 2, 0]


def test_gpt2_tokenizer(shared_data: Path, tmp_path: Path) -> None:
    (tmp_path / "one.trees").write_text(
        "(S (NP (NP (DT The) (NNS keys)) (PP (TO to) (NP (DT the) (NN cabinet)))) (VP (VBP are)"
        " (PP (IN on) (NP (DT the) (NN table)))) (. .))\n(S (PRP I) (VP (VBP do) (RB n't)))"
    )
    options = DataOptions(tokenizer=str(shared_data / "gpt2_bpe"), window=32)
    data = build_data(tmp_path / "one.trees", tmp_path / "out", options)
    end = 50256
    assert content(data)["train"] == {
        "input_ids": [
            [end, 464, 8251, 284, 262, 13447, 389, 319, 262, 3084, 13, end, 40, 836, 470, end]
        ],
        "attachments": [[0, 1, 1, 3, 4, 2, 6, 7, 8, 6, 5, 0, 12, 13, 12, 11]],
        "length": [16],
    }
    assert data.card["splits"]["train"]["differing_sentences"] == 0
    assert (data.card["text"], data.card["unit"]) == ("detokenized", "sentence")
    assert data.card["bos_token_id"] == data.card["eos_token_id"] == data.card["pad_token_id"]


@settings(max_examples=15)
@given(st.lists(strategies.trees(), min_size=1, max_size=5))
def test_trees_come_back(trees: list[Tree]) -> None:
    """Word by word, and piece by piece with the pieces merged again."""
    for tokenizer in ("word", "bpe:259"):
        with TemporaryDirectory() as folder:
            options = DataOptions(
                tokenizer=tokenizer, detokenize=False if ":" in tokenizer else None
            )
            data = build_data(trees, folder, options)
            for example, tree in zip(data.train, trees, strict=True):
                expected = binarize(tree)
                tokens = data.tokenizer.convert_ids_to_tokens(example["input_ids"])[1:-1]
                counts = [1] * len(tokens)
                if tokenizer != "word":
                    bytes_of = [len(word.encode()) for word in tree.words]
                    counts = [bytes_of[0], *[count + 1 for count in bytes_of[1:]]]
                found = tree_from_attachments(example["attachments"], tokens)
                merged = merge_pieces(found, counts, tree.words)
                assert list(merged.spans) == list(expected.spans)
                if tokenizer == "word":
                    assert tokens == list(tree.words)


# ------------------------------------------------------------------ windows and splits


@pytest.mark.usefixtures("small_chunks")
def test_windows_do_not_depend_on_chunks(tmp_path: Path) -> None:
    options = DataOptions(tokenizer="word", window=20)
    data = build_data(many_trees(45), tmp_path, options)
    bos, eos = data.card["bos_token_id"], data.card["eos_token_id"]
    words = []
    for example in data.train:
        ids, attachments = example["input_ids"], example["attachments"]
        assert ids[0] == bos
        assert ids[-1] == eos
        assert example["length"] == len(ids) <= 20
        root = 0
        for position, (token, attachment) in enumerate(zip(ids, attachments, strict=True)):
            root = position if token == bos else root
            assert attachment == root if token in (bos, eos) else root < attachment <= position
        words += [token for token in ids if token not in (bos, eos)]
    sentences = build_data(many_trees(45), tmp_path / "b", DataOptions(tokenizer="word")).train
    assert words == [token for example in sentences for token in example["input_ids"][1:-1]]
    assert data.card["splits"]["train"]["sentences"] == 45


def test_sentence_longer_than_the_window(tmp_path: Path) -> None:
    data = build_data(many_trees(5), tmp_path, DataOptions(tokenizer="word", window=7))
    split = data.card["splits"]["train"]
    assert split["skipped"] == {"longer than 7 tokens": 2}
    assert (split["trees"], split["sentences"]) == (5, 3)


def test_windows_do_not_join_files(tmp_path: Path) -> None:
    for name in ("a.trees", "b.trees"):
        (tmp_path / name).write_text("(S the dog)\n")
    options = DataOptions(tokenizer="word", window=100)
    assert len(build_data(str(tmp_path / "*.trees"), tmp_path / "out", options).train) == 2


def test_explicit_splits_and_closed_vocabulary(tmp_path: Path) -> None:
    train, valid = [Tree(["a", "b"], [(0, 2)])], [Tree(["b", "c"], [(0, 2)])]
    sources = {"train": train, "valid": valid}
    message = "trees in memory, tree 1: expected words of the closed vocabulary, found 'c'"
    with pytest.raises(DataError, match=message):
        build_data(sources, tmp_path / "closed", DataOptions(tokenizer="word"))
    data = build_data(sources, tmp_path / "open", DataOptions(tokenizer="word:min_count=1"))
    assert data.valid is not None
    assert data.valid[0]["input_ids"] == [0, 5, 3, 1]
    assert data.card["splits"]["valid"]["unknown_words"] == 1


def test_split_by_shares(tmp_path: Path) -> None:
    trees = many_trees(400)
    options = DataOptions(tokenizer="word:min_count=1", split=(0.8, 0.1, 0.1), seed=3)
    data = build_data(trees, tmp_path / "a", options)
    counts = {name: split["sentences"] for name, split in data.card["splits"].items()}
    assert sum(counts.values()) == 400
    assert 290 < counts["train"] < 350
    assert min(counts.values()) > 20
    assert data.card["splits"]["valid"]["unknown_words"] > 0, (
        "the tokenizer saw training trees only"
    )
    other = DataOptions(tokenizer="word:min_count=1", split=(0.8, 0.1, 0.1), seed=4)
    assert build_data(trees, tmp_path / "b", other).fingerprint != data.fingerprint


# ------------------------------------------------------------------ the card


def test_card(trees_file: Path, tmp_path: Path) -> None:
    bad = tmp_path / "bad.trees.gz"
    bad.write_bytes(gzip.compress(b"(S the dog)\n(S the\n(S (X -NONE-))\n(S (-NONE- x))\n"))
    options = DataOptions(tokenizer="word:min_count=1", errors="skip")
    card = build_data([trees_file, bad], tmp_path / "out", options).card
    assert card == json.loads((tmp_path / "out" / "card.json").read_text())
    assert [(source["name"], source["trees"]) for source in card["sources"]] == [
        (str(trees_file), 3),
        (str(bad), 2),
    ]
    assert card["sources"][1]["skipped"] == {"unclosed bracket": 1, "no words": 1}
    split = card["splits"]["train"]
    assert split["depths"] == {"2": 2, "3": 1, "4": 1, "8": 1}
    assert split["stack_sizes"] == {"1": 3, "2": 1, "5": 1}
    assert (split["max_depth"], split["max_stack_size"]) == (8, 5)
    assert (split["words"], split["tokens"], split["longest_example"]) == (15, 25, 9)


def test_fingerprint_follows_the_content(tmp_path: Path) -> None:
    trees = [Tree(["a", "b", "c"], [(1, 3), (0, 3)])]
    other = [Tree(["a", "b", "c"], [(0, 2), (0, 3)])]
    options = DataOptions(tokenizer="word")
    first = build_data(trees, tmp_path / "a", options)
    assert build_data(trees, tmp_path / "b", options).fingerprint == first.fingerprint
    assert build_data(other, tmp_path / "c", options).fingerprint != first.fingerprint


# ------------------------------------------------------------------ resuming, processes


def arrow_bytes(folder: Path) -> dict[str, bytes]:
    return {str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*.arrow"))}


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("stop_after", [0, 3])
def test_resumed_build_equals_uninterrupted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stop_after: int
) -> None:
    path = tmp_path / "many.trees"
    path.write_text("".join(to_brackets(tree) + "\n" for tree in many_trees(65)))
    options = DataOptions(tokenizer="bpe:300", window=40)
    whole = build_data(path, tmp_path / "whole", options)

    encoded: list[int] = []
    encode = ChunkEncoding.__call__

    def interrupted(self: ChunkEncoding, chunk: Chunk) -> Shard:
        if len(encoded) == stop_after:
            raise KeyboardInterrupt
        encoded.append(chunk.indices[0])
        return encode(self, chunk)

    monkeypatch.setattr(ChunkEncoding, "__call__", interrupted)
    with pytest.raises(KeyboardInterrupt):
        build_data(path, tmp_path / "resumed", options)
    with pytest.raises(DataError, match=r"no card\.json"):
        load_data(tmp_path / "resumed")

    def counted(self: ChunkEncoding, chunk: Chunk) -> Shard:
        encoded.append(chunk.indices[0])
        return encode(self, chunk)

    monkeypatch.setattr(ChunkEncoding, "__call__", counted)
    resumed = build_data(path, tmp_path / "resumed", options)
    assert encoded == [1, 11, 21, 31, 41, 51, 61]
    assert resumed.card == whole.card
    assert arrow_bytes(resumed.folder) == arrow_bytes(whole.folder)
    assert not (resumed.folder / ".partial").exists()


@pytest.mark.usefixtures("small_chunks")
def test_leftovers_of_other_options_are_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(data_module, "_assemble", _interrupt)
        with pytest.raises(KeyboardInterrupt):
            build_data(many_trees(30), tmp_path, DataOptions(tokenizer="word"))
    data = build_data(many_trees(30), tmp_path, DataOptions(tokenizer="word", binarize="left"))
    expected = DataOptions(tokenizer="word", binarize="left")
    assert build_data(many_trees(30), tmp_path / "b", expected).card == data.card


def _interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.usefixtures("small_chunks")
def test_processes_do_not_matter(tmp_path: Path) -> None:
    sources = {"train": many_trees(65), "valid": many_trees(12)}
    options = DataOptions(tokenizer="bpe:280")
    one = build_data(sources, tmp_path / "one", options, processes=1)
    two = build_data(sources, tmp_path / "two", options, processes=2)
    assert one.card == two.card
    assert arrow_bytes(one.folder) == arrow_bytes(two.folder)
    bad = [*many_trees(15), Tree(["<s>"], []), *many_trees(30), Tree(["</s>"], [])]
    with pytest.raises(DataError, match="tree 16: expected words without special tokens"):
        build_data(bad, tmp_path / "three", options, processes=2)


def test_finished_dataset_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = DataOptions(tokenizer="word")
    first = build_data(many_trees(5), tmp_path, options)
    with monkeypatch.context() as patch:
        patch.setattr(data_module, "_encode", _interrupt)
        assert build_data(many_trees(5), tmp_path, options).card == first.card
    with pytest.raises(DataError, match="holds a dataset of other sources or options"):
        build_data(many_trees(6), tmp_path, options)
    assert len(build_data(many_trees(6), tmp_path, options, overwrite=True).train) == 6
    assert sorted(path.name for path in tmp_path.iterdir()) == ["card.json", "tokenizer", "train"]


def test_other_files_are_not_touched(tmp_path: Path) -> None:
    (tmp_path / "train").mkdir()
    with pytest.raises(DataError, match="expected a new or empty folder, found other files"):
        build_data(many_trees(5), tmp_path, overwrite=True)


# ------------------------------------------------------------------ batches from a dataset


def test_dataset_loads_in_batches(tmp_path: Path) -> None:
    data = build_data(many_trees(50), tmp_path, DataOptions(tokenizer="word"))
    batches = TokenBudgetBatches(data.train["length"], 64, seed=0)
    loader: DataLoader[Any] = DataLoader(
        data.train, batch_sampler=batches, collate_fn=Collator(data.card["pad_token_id"])
    )
    seen = 0
    for batch in loader:
        assert batch["input_ids"].numel() <= 64
        assert set(batch) == {"input_ids", "attachments", "attention_mask", "labels"}
        seen += int(batch["attention_mask"].sum())
    assert seen == data.card["splits"]["train"]["tokens"]


def test_shares_are_parts_of_each_other(tmp_path: Path) -> None:
    data = build_data(many_trees(50), tmp_path, DataOptions(tokenizer="word"))
    whole = data.train["input_ids"][:]
    half, quarter, one = (data.take(share).train["input_ids"][:] for share in (0.5, 0.25, 1e-9))
    assert (len(half), len(quarter), len(one)) == (25, 12, 1)
    assert is_part(quarter, half)
    assert is_part(half, whole)
    assert quarter != whole[:12]
    assert data.take(0.25).train["input_ids"][:] == quarter
    assert data.take(1) is data


def is_part(few: list[Any], many: list[Any]) -> bool:
    """Whether some things are among others, in the same order."""
    rest = iter(many)
    return all(any(one == other for other in rest) for one in few)


# ------------------------------------------------------------------ errors


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"window": 2},
            r"window: expected at least 3 \(BOS, a word, EOS\) and fewer than 2\^31 tokens, got 2",
        ),
        ({"max_length": 0}, "max_length: expected at least 3"),
        ({"binarize": "up"}, r"binarize: expected one of \('right', 'left'\), got 'up'"),
        ({"errors": "no"}, r"errors: expected one of \('raise', 'skip'\), got 'no'"),
        ({"split": (0.5, 0.2, 0.2)}, "split: expected the shares of train, valid and test"),
        ({"split": (0.0, 0.5, 0.5)}, "train's above 0"),
    ],
)
def test_bad_options(options: dict[str, Any], message: str) -> None:
    with pytest.raises(DataError, match=message):
        DataOptions(**options)


def test_bad_sources(trees_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    with pytest.raises(DataError, match=r"none\.trees: no such file"):
        build_data(tmp_path / "none.trees", out)
    with pytest.raises(DataError, match=r"is a folder; give its files, as '.*/\*'"):
        build_data(tmp_path, out)
    with pytest.raises(DataError, match=r"expected train, .* got \['dev'\]"):
        build_data({"dev": trees_file}, out)
    with pytest.raises(DataError, match="train: expected files or trees, got none"):
        build_data([], out)
    both = {"train": trees_file, "valid": trees_file}
    with pytest.raises(DataError, match="split: expected train alone"):
        build_data(both, out, DataOptions(split=(0.8, 0.1, 0.1)))
    with pytest.raises(DataError, match="processes: expected at least 1, got 0"):
        build_data(trees_file, out, processes=0)
    with pytest.raises(DataError, match="detokenize: the tokens of a word vocabulary are words"):
        build_data(trees_file, out, DataOptions(tokenizer="word", detokenize=True))
    with pytest.raises(TokenizationError, match="tokenizer: expected 'bpe:SIZE'"):
        build_data(trees_file, out, DataOptions(tokenizer="nothing"))
    with pytest.raises(DataError, match="expected a folder, found a file"):
        build_data(trees_file, trees_file)


def test_malformed_tree_names_its_place(tmp_path: Path) -> None:
    (tmp_path / "bad.trees").write_text("(S the dog)\n(S the ())\n")
    with pytest.raises(TreeError, match=r"bad\.trees:2:9: expected a word"):
        build_data(tmp_path / "bad.trees", tmp_path / "out")


def test_no_usable_tree(tmp_path: Path) -> None:
    message = (
        r"train: expected at least one usable tree, found none; skipped: {'longer than 3 .*': 5}"
    )
    with pytest.raises(DataError, match=message):
        build_data(many_trees(5), tmp_path / "a", DataOptions(tokenizer="word", max_length=3))
    (tmp_path / "empty.trees").write_text("")
    with pytest.raises(DataError, match="found none; skipped: nothing"):
        build_data(tmp_path / "empty.trees", tmp_path / "b")


def test_bad_folders(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"made by `pushdown data build`, no card\.json"):
        load_data(tmp_path)
    (tmp_path / "card.json").write_text("[]")
    with pytest.raises(DataError, match="expected the card of a dataset, found other content"):
        load_data(tmp_path)
    (tmp_path / "card.json").write_text('{"format_version": 99}')
    with pytest.raises(DataError, match="expected format version 1, found 99"):
        load_data(tmp_path)
    (tmp_path / "card.json").write_text('{"format_version": 1, "splits": {"train": {}}}')
    with pytest.raises(DataError, match=r"fingerprint: expected a dataset's, found None"):
        load_data(tmp_path)


def test_damaged_files(tmp_path: Path) -> None:
    data = build_data(many_trees(20), tmp_path, DataOptions(tokenizer="word"))
    data.verify()
    (file,) = (tmp_path / "train").glob("*.arrow")
    healthy = file.read_bytes()
    ids = np.array(data.train[7]["input_ids"], dtype=np.int32).tobytes()
    assert healthy.count(ids) == 1
    file.write_bytes(healthy.replace(ids, bytes(reversed(ids))))
    with pytest.raises(DataError, match=r"expected content of SHA-256 .*, found"):
        load_data(tmp_path).verify()
    file.write_bytes(healthy[: len(healthy) // 2])
    with pytest.raises(DataError, match="train: expected an Arrow dataset, found a damaged one"):
        load_data(tmp_path)


# ------------------------------------------------------------------ real trees, the command


def test_novel(shared_data: Path, tmp_path: Path) -> None:
    source = shared_data / "dickens" / "valid.trees"
    data = build_data(source, tmp_path, DataOptions(tokenizer="word"))
    trees = list(parse_trees(source.read_text()))
    assert len(data.train) == len(trees) == 346
    for example, tree in zip(data.train, trees, strict=True):
        words = data.tokenizer.convert_ids_to_tokens(example["input_ids"])[1:-1]
        found = tree_from_attachments(example["attachments"], words)
        assert list(found.words) == list(tree.words)
        assert list(found.spans) == list(binarize(tree).spans)


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    def run_command(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["pushdown", *map(str, arguments)])
        with pytest.raises(SystemExit) as status:
            main()
        out, err = capsys.readouterr()
        return int(status.value.code or 0), out, err

    return run_command


def test_command(trees_file: Path, tmp_path: Path, run: Any) -> None:
    out = tmp_path / "out"
    arguments = ["data", "build", tmp_path / "*.trees", "--valid", trees_file, "--out", out]
    arguments += ["--tokenizer", "word", "--max-length", 8, "--binarize", "left"]
    status, shown, _ = run(*arguments)
    assert status == 0
    assert "train: skipped 1: longer than 8 tokens" in shown
    data = load_data(out)
    assert data.valid is not None
    assert (len(data.train), len(data.valid)) == (2, 2)
    assert data.card["options"]["binarize"] == "left"
    assert run("data", "show", out, "--verify")[1] == shown
    assert json.loads(run("data", "show", out, "--json")[1]) == data.card


def test_command_errors(trees_file: Path, tmp_path: Path, run: Any) -> None:
    out = tmp_path / "out"
    status, shown, error = run("data", "build", "no.trees", "--out", out)
    assert (status, shown, error) == (2, "", "pushdown: no.trees: no such file\n")
    status, _, error = run("data", "build", trees_file, "--out", out, "--split", "0.9")
    assert status == 2
    assert error == (
        "pushdown: split: expected three shares as 0.9,0.05,0.05 (train, valid, test), got '0.9'\n"
    )


def test_a_broken_source_leaves_the_dataset_that_it_would_replace(tmp_path: Path) -> None:
    good, broken, out = tmp_path / "good.trees", tmp_path / "broken.trees", tmp_path / "data"
    good.write_text("(S (NP the dog) (VP runs))\n")
    broken.write_text("(S (NP the dog) (VP runs)\n(S a)\n")
    options = DataOptions(tokenizer="word")
    build_data(good, out, options)
    before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
    with pytest.raises(TreeError):
        build_data(broken, out, options, overwrite=True)
    assert {path: path.read_bytes() for path in out.rglob("*") if path.is_file()} == before
