"""`PushdownScorer` on folders with a model and its tokenizer."""

from __future__ import annotations

import json
import math
import shutil
from itertools import accumulate, pairwise
from pathlib import Path

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, PreTrainedTokenizerFast, pipeline

from pushdown_lm import viz
from pushdown_lm.data.build import DataOptions, build_data
from pushdown_lm.data.encoding import attach_tokens
from pushdown_lm.data.tokenization import (
    detokenize,
    load_tokenizer,
    model_tokenizer,
    train_bpe,
    train_word_vocabulary,
)
from pushdown_lm.files import FolderError, write_manifest
from pushdown_lm.model.loading import ModelFolderError
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.search.beam import SearchError, posteriors, search
from pushdown_lm.search.pushdown_scorer import PushdownScorer, UnknownTokenError
from pushdown_lm.search.scorer import ScoreCache, Scorer
from pushdown_lm.trees import Tree, parse_tree, split_words
from pushdown_lm.trees.oracle import attachments_from_tree, stack_tape
from tests.models import random_model

WORDS = ["the", "dog", "that", "she", "has", "n't", "seen", "is", "here", ",", "and", "barks", "."]
TEXT = "the dog hasn't seen the barking dogs, and is here."


def save(folder: Path, tokenizer: PreTrainedTokenizerFast, **options: object) -> Path:
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    model = random_model(
        seed=1, scale=0.3, vocabulary=len(tokenizer), positions=40, **ids, **options
    )
    model.float().save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def bpe_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = train_bpe([detokenize(WORDS)] * 3, vocab_size=280)
    return save(tmp_path_factory.mktemp("bpe"), tokenizer)


@pytest.fixture(scope="module")
def word_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tokenizer = train_word_vocabulary([WORDS])
    return save(tmp_path_factory.mktemp("word"), tokenizer, pushdown_layers=[1, 2])


@pytest.fixture(scope="module")
def bpe(bpe_folder: Path) -> PushdownScorer:
    return PushdownScorer.from_pretrained(bpe_folder, beam=8)


@pytest.fixture(scope="module")
def word(word_folder: Path) -> PushdownScorer:
    return PushdownScorer.from_pretrained(word_folder, beam=8)


# ------------------------------------------------------------------ sentences to tokens


def test_raw_text_has_words_and_leaves(bpe: PushdownScorer) -> None:
    encoded = bpe.encode("  The dog  hasn't barked. ")
    assert encoded.words == ("The", "dog", "hasn't", "barked.")
    assert encoded.leaves == ("The", "dog", "has", "n't", "barked", ".")
    for counts in (encoded.word_counts, encoded.leaf_counts):
        assert sum(counts) == len(encoded.ids) == len(encoded.tokens) == len(encoded.offsets)
    assert min(encoded.word_counts + encoded.leaf_counts) >= 1


TREES = [
    parse_tree("(S (NP the dog) (VP has (VP n't (VP barked (ADVP (-LRB- -LRB-) yet -RRB-)))) .)"),
    parse_tree("(S `` (S it (VP is (NP Apple Inc.)) .) '')"),
]


@pytest.mark.parametrize("detokenized", [True, False])
@pytest.mark.parametrize("kind", ["bpe:300", "folder", "older"])
def test_scorers_follow_the_rule_of_the_data(
    kind: str, detokenized: bool, tmp_path: Path, shared_data: Path
) -> None:
    """The tokens of the dataset, from the words and from raw text, after a model is saved."""
    tokenizer = kind if kind == "bpe:300" else str(shared_data / "gpt2_bpe")
    if kind == "older":  # a folder of a model without a rule: word by word
        model_tokenizer(load_tokenizer(tokenizer)).save_pretrained(tmp_path / "old")
        (tmp_path / "old" / "config.json").write_text('{"model_type": "pushdown"}')
        tokenizer = str(tmp_path / "old")
    options = DataOptions(tokenizer=tokenizer, detokenize=detokenized)
    data = build_data(TREES, tmp_path / "data", options)
    assert data.card["unit"] == ("word" if kind == "older" else "sentence")
    folder = save(tmp_path / "model", model_tokenizer(data.tokenizer))
    scorer = PushdownScorer.from_pretrained(folder, beam=8)
    for tree, example in zip(TREES, data.train, strict=True):
        encoded = scorer.encode(tree.words)
        assert list(encoded.ids) == example["input_ids"][1:-1]
        attachments = attach_tokens(tree, encoded.leaf_counts)
        assert attachments == example["attachments"]
        assert scorer.parse([tree.words])[0].words == tree.words
        if kind != "older":
            text = "".join(detokenize(tree.words))
            if detokenized or "Inc" not in text:  # where one period is two words
                assert scorer.encode(text).ids == encoded.ids


def test_transformers_own_pipeline(word_folder: Path, tmp_path: Path) -> None:
    shutil.copytree(word_folder, tmp_path, dirs_exist_ok=True)
    model_tokenizer(load_tokenizer(word_folder)).save_pretrained(tmp_path)
    generator = pipeline("text-generation", model=str(tmp_path))
    (made,) = generator("the dog that", max_new_tokens=5, do_sample=False)
    scorer = PushdownScorer.from_pretrained(tmp_path)
    prompt = torch.tensor([[scorer.model.config.bos_token_id, *scorer.encode("the dog that").ids]])
    expected = scorer.model.generate(prompt, max_new_tokens=5, do_sample=False)
    text = scorer.tokenizer.decode(expected[0], skip_special_tokens=True).strip()
    assert made["generated_text"] == text
    assert set(text.split()) <= {*WORDS, "<unk>"}


def test_words_become_tokens_as_in_training(bpe: PushdownScorer, word: PushdownScorer) -> None:
    text = "".join(detokenize(WORDS))
    assert text == "the dog that she hasn't seen is here, and barks."
    assert bpe.encode(WORDS).ids == bpe.encode(text).ids
    assert bpe.encode(WORDS).leaf_counts == bpe.encode(text).leaf_counts
    assert bpe.encode(WORDS).words == bpe.encode(text).leaves == tuple(WORDS)
    assert word.encode(WORDS).ids == word.encode(" ".join(WORDS)).ids
    assert word.encode(WORDS).leaf_counts == (1,) * len(WORDS)


def test_offsets_point_into_the_sentence(bpe: PushdownScorer) -> None:
    tokens = bpe.surprisals(TEXT)
    assert "".join(TEXT[token.start : token.end] for token in tokens) == TEXT
    assert (tokens[-1].text, tokens[-1].start, tokens[-1].end) == ("</s>", len(TEXT), len(TEXT))


@pytest.mark.parametrize(
    ("sentence", "error", "message"),
    [
        ("the cat is here", UnknownTokenError, "found 'cat' at character 5"),
        (["the", "cat"], UnknownTokenError, "found 'cat'"),
        ("the </s> dog", UnknownTokenError, "special tokens, found '</s>' at character 5"),
        (["</s>"], UnknownTokenError, "special tokens"),
        ("", SearchError, "at least one word, got an empty one"),
        (" \t", SearchError, "at least one word, got an empty one"),
        ([], SearchError, "at least one word, got an empty one"),
        ("the dog " * 20, SearchError, "expected at most 39 tokens .* got 40"),
    ],
)
def test_unreadable_sentences(
    word: PushdownScorer, sentence: str | list[str], error: type[Exception], message: str
) -> None:
    with pytest.raises(error, match=message):
        word.log_prob(sentence)


def test_unknown_words_may_be_allowed(word_folder: Path) -> None:
    scorer = PushdownScorer.from_pretrained(word_folder, beam=3, allow_unknown=True)
    assert scorer.encode("the cat").tokens == ("the", "<unk>")
    tree = scorer.parse("the cat is here")
    assert tree.words == ("the", "cat", "is", "here")


# ------------------------------------------------------------------ results


def test_satisfies_the_protocol_of_the_evaluations(bpe: PushdownScorer, tmp_path: Path) -> None:
    assert isinstance(bpe, Scorer)
    cached = ScoreCache(bpe, tmp_path / "scores.jsonl")
    assert cached.log_probs([TEXT]) == bpe.log_probs([TEXT])
    assert cached.parse([WORDS]) == bpe.parse([WORDS])
    description = bpe.describe()
    assert description["beam"] == 8
    json.dumps(description)


def test_answers_are_those_of_search(bpe: PushdownScorer) -> None:
    encoded = bpe.encode(TEXT)
    result = search(bpe.model, [encoded.ids], beam=8)[0]
    assert bpe.log_prob(TEXT) == pytest.approx(result.log_prob)
    assert bpe.log_probs([TEXT, "the dog"])[0] == pytest.approx(result.log_prob, abs=1e-4)
    bits = [token.surprisal for token in bpe.surprisals(TEXT)]
    assert math.fsum(bits) * math.log(2) == pytest.approx(-result.log_prob)
    assert bpe.surprisals([TEXT]) == [bpe.surprisals(TEXT)]
    trees = result.trees(encoded.leaves, encoded.leaf_counts)
    assert bpe.parse(TEXT) == trees[0].tree
    assert bpe.posteriors(TEXT) == pytest.approx(posteriors(trees))
    assert math.fsum(bpe.posteriors(TEXT).values()) == pytest.approx(len(encoded.leaves) - 1)


def test_surprisals_of_words_are_sums(bpe: PushdownScorer) -> None:
    analysis = bpe.analyse([TEXT])[0]
    words = analysis.words
    assert [word for word, _ in words] == [*TEXT.split(), "</s>"]
    bits = [token.surprisal for token in analysis.tokens]
    assert math.fsum(surprisal for _, surprisal in words) == pytest.approx(math.fsum(bits))
    first = analysis.sentence.word_counts[0]
    assert words[0][1] == pytest.approx(math.fsum(bits[:first]))
    assert words[-1][1] == bits[-1]


def test_parse_of_words(word: PushdownScorer) -> None:
    trees = word.parse([WORDS, ["the", "cat"], ["dog"]])
    assert trees[0] is not None
    assert trees[0].words == tuple(WORDS)
    assert len(trees[0].spans) == len(WORDS) - 1
    assert trees[1] is None
    assert trees[2] == Tree(("dog",), ())


def test_joint_of_a_tree_is_that_of_its_history(bpe: PushdownScorer) -> None:
    tree = parse_tree("(S (NP the dog) (VP is (ADVP here)) .)")
    encoded = bpe.encode(tree.words)
    wide = search(bpe.model, [encoded.ids], beam=5000)[0]
    ends = accumulate(encoded.leaf_counts, initial=0)
    pieces = [encoded.tokens[start:end] for start, end in pairwise(ends)]
    history = attachments_from_tree(split_words(tree, pieces))[1:-1]
    row = wide.histories.tolist().index(history)
    assert bpe.log_joint(tree) == pytest.approx(wide.log_joints[row], abs=1e-4)


def test_attention_under_the_best_parse(word: PushdownScorer) -> None:
    maps = word.attention("the dog is here .")
    length = 6
    assert maps.tokens == ("<s>", "the", "dog", "is", "here", ".")
    assert maps.weights.shape == (3, 2, length, length)
    torch.testing.assert_close(maps.weights.sum(-1), torch.ones(3, 2, length))
    assert torch.equal(maps.weights.triu(1), torch.zeros_like(maps.weights))
    assert torch.equal(maps.tape, stack_tape(torch.tensor(maps.attachments)))


def test_the_longest_sentence(word: PushdownScorer) -> None:
    """39 words and ROOT fill the 40 positions."""
    words = ["dog"] * 39
    tree = Tree(tuple(words), tuple((start, 39) for start in range(37, -1, -1)))
    assert len(word.surprisals([words])[0]) == 40
    assert word.attention(words).weights.shape[-1] == 40
    assert math.isfinite(word.log_joint(tree))


def test_reading_back(bpe: PushdownScorer, word: PushdownScorer) -> None:
    encoded = bpe.encode(TEXT)
    history = search(bpe.model, [encoded.ids], beam=1)[0].histories[0].tolist()
    text, tree = bpe.read_back(encoded.ids, history)
    assert text == TEXT
    assert tree is not None
    assert tree.words == encoded.leaves
    split = bpe._backend.token_to_id("o"), bpe._backend.token_to_id("g")
    text, tree = bpe.read_back((bpe._backend.token_to_id("d"), *split), [1, 1, 2])
    assert (text, tree) == ("dog", Tree(("d", "o", "g"), ((0, 2), (0, 3))))
    assert word.read_back((), []) == ("", None)


# ------------------------------------------------------------------ folders


def test_folders_that_are_no_pushdown_model(bpe_folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match=r"found no readable config\.json"):
        PushdownScorer.from_pretrained(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "model").symlink_to(bpe_folder)
    with pytest.raises(ModelFolderError, match=r"did you mean .*/model\?"):
        PushdownScorer.from_pretrained(tmp_path / "run")
    plain = tmp_path / "plain"
    config = GPT2Config(
        n_layer=1, n_head=1, n_embd=4, vocab_size=10, bos_token_id=0, eos_token_id=0
    )
    GPT2LMHeadModel(config).save_pretrained(plain)
    with pytest.raises(
        ModelFolderError, match="expected a Pushdown model, found model_type 'gpt2'"
    ):
        PushdownScorer.from_pretrained(plain)


def copy_without(folder: Path, copy: Path, name: str) -> Path:
    copy.mkdir()
    for path in folder.iterdir():
        if path.name != name:
            (copy / path.name).write_bytes(path.read_bytes())
    return copy


def test_folders_that_are_not_whole(bpe_folder: Path, tmp_path: Path) -> None:
    without_weights = copy_without(bpe_folder, tmp_path / "a", "model.safetensors")
    with pytest.raises(ModelFolderError, match=r"expected weights in \*\.safetensors"):
        PushdownScorer.from_pretrained(without_weights)
    without_tokenizer = copy_without(bpe_folder, tmp_path / "b", "tokenizer.json")
    with pytest.raises(ModelFolderError, match=r"tokenizer in tokenizer\.json, found none"):
        PushdownScorer.from_pretrained(without_tokenizer)
    damaged = copy_without(bpe_folder, tmp_path / "c", "nothing")
    write_manifest(damaged)
    PushdownScorer.from_pretrained(damaged)
    (damaged / "tokenizer.json").write_text("{}")
    with pytest.raises(FolderError, match="damaged"):
        PushdownScorer.from_pretrained(damaged)


def test_broken_weights_are_named(word: PushdownScorer, word_folder: Path) -> None:
    model = PushdownForCausalLM.from_pretrained(word_folder)
    with torch.no_grad():
        model.head.key.weight[0, 0] = math.nan
    with pytest.raises(ModelFolderError, match=r"NaN or infinity in head\.key\.weight"):
        PushdownScorer(model, word.tokenizer)


def test_a_tokenizer_with_more_entries_than_the_model(
    word: PushdownScorer, bpe: PushdownScorer
) -> None:
    with pytest.raises(ModelFolderError, match="the tokenizer has 280 entries, but the model"):
        PushdownScorer(word.model, bpe.tokenizer)


# ------------------------------------------------------------------ notebooks


def test_notebooks_show_analyses(bpe: PushdownScorer) -> None:
    analysis = bpe.analyse([TEXT])[0]
    best, *_ = trees = analysis.trees()
    shown = analysis._repr_html_()
    assert shown.startswith(viz.parse(best.tree, analysis.leaf_surprisals))
    assert shown.count("<tr>") == 1 + min(5, len(trees))
    posterior = math.exp(best.log_prob - analysis.log_prob)
    assert f"<td>{posterior:.3f}</td>" in shown
    assert math.fsum(analysis.leaf_surprisals) == pytest.approx(
        math.fsum(token.surprisal for token in analysis.tokens[:-1])
    )


def test_notebooks_show_trees_results_and_attention(word: PushdownScorer) -> None:
    analysis = word.analyse([["the", "dog"]])[0]
    scored = analysis.trees()[0]
    assert scored._repr_html_().startswith(viz.tree(scored.tree))
    assert ">1</text>" in analysis.result._repr_html_()
    maps = word.attention(["the", "dog"])
    mean = maps.weights.double().mean((0, 1))
    assert maps._repr_html_() == viz.attention(maps.tokens, mean)
