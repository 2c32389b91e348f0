"""Running text, tokenizers, and words to tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import AutoTokenizer, PreTrainedTokenizerFast

from pushdown_lm.data.text import TextRule, penn_words
from pushdown_lm.data.tokenization import (
    EncoderSettings,
    TokenizationError,
    TokenizerChoice,
    UnusableTreeError,
    WordEncoder,
    check_keeps_spaces,
    detokenize,
    is_word_level,
    load_tokenizer,
    model_tokenizer,
    separate,
    split_marks,
    splits_marks,
    text_rule,
    train_bpe,
    train_word_vocabulary,
)
from pushdown_lm.errors import PushdownError
from pushdown_lm.trees import read_trees
from tests import strategies

SENTENCES = [
    ["The", "dog", "did", "n't", "see", "the", "cats", "."],
    ["``", "I", "ca", "n't", "see", "the", "dog", "'s", "tail", ",", "''", "said", "the", "cat"],
    ["The", "cats", "saw", "(", "and", "see", ")", "the", "dogs", "..."],
] * 3


@pytest.fixture(scope="module")
def bpe() -> PreTrainedTokenizerFast:
    return train_bpe(map(detokenize, SENTENCES), 300)


@pytest.fixture(scope="module")
def words() -> PreTrainedTokenizerFast:
    return train_word_vocabulary([["the", "dog", "saw", "the", "cat"], ["the", "dog"]])


def encoder(
    tokenizer: PreTrainedTokenizerFast,
    *,
    allow_unknown: bool = False,
    unit: Literal["sentence", "word"] = "word",
) -> WordEncoder:
    rule = replace(text_rule(tokenizer), unit=unit)
    return WordEncoder(EncoderSettings.of(tokenizer, allow_unknown=allow_unknown, rule=rule))


# ------------------------------------------------------------------ running text


@pytest.mark.parametrize(
    ("words", "text"),
    [
        ("The dog barks .", "The dog barks."),
        ("I do n't know , ca n't you ?", "I don't know, can't you?"),
        ("I DO N'T and I don’t", "I DON'T and I don’t"),
        ("It 's John 's ; we 've , they 'll , I 'd", "It's John's; we've, they'll, I'd"),
        ("It ’s", "It’s"),
        ("`` No , '' he said .", '"No," he said.'),
        ('" No , " he said : " yes " .', '"No," he said: "yes".'),
        ("“ Carton ! ” said he", "“Carton!” said he"),
        ("` so ' it is", "'so' it is"),
        ("the dogs ' tails", "the dogs' tails"),
        ("give 'em hell", "give 'em hell"),
        ("a ( b ) [ c ] d", "a (b) [c] d"),
        ("( b )", "(b)"),
        ("$ 5 or US$ 6 or 7 %", "$5 or US$6 or 7%"),
        ("well ... yes -- no", "well... yes -- no"),
        ("gon na , wan na , Got ta , lem me , 'T is , d' ye", "gonna, wanna, Gotta, lemme, 'Tis, d'ye"),  # noqa: E501
        ("can not", "can not"),
        ("well - known and / or", "well - known and / or"),
        ("It is Apple Inc. .", "It is Apple Inc."),
        ("`` I saw Apple Inc. . ''", '"I saw Apple Inc."'),
        ("Wait ... . No", "Wait.... No"),
        ("# 5 and # one", "#5 and # one"),
    ],
)  # fmt: skip
def test_detokenize(words: str, text: str) -> None:
    assert "".join(detokenize(words.split())) == text


@given(st.lists(strategies.words(), min_size=1))
def test_detokenize_keeps_the_words_but_for_quotes(words: list[str]) -> None:
    surfaces = detokenize(words)
    quotes = {"``": '"', "''": '"', "`": "'"}
    for surface, word in zip(surfaces, words, strict=True):
        shown = surface.removeprefix(" ")
        assert shown == quotes.get(word, word) or (shown, word) == ("", ".")
    assert not surfaces[0].startswith(" ")


def test_detokenize_as_before() -> None:
    assert "".join(detokenize(["Inc.", "."], version=1)) == "Inc.."
    assert "".join(detokenize(["#", "5"], version=1)) == "# 5"


@pytest.mark.parametrize(
    "words",
    [
        "The dog barks .",
        "I do n't know , ca n't you ?",
        "It 's John 's ; we 've , they 'll , I 'd",
        "`` No , '' he said .",
        "the dogs ' tails",
        "a ( b ) [ c ] d",
        "$ 5 or US$ 6 or 7 %",
        "Mr. Smith left the well-known U.S. firm at 5.30 p.m. on 1/2/03 .",
        "well ... yes -- no !",
        "I can not and I am gon na go",
        "`` ( Yes ) ? '' she asked ; 1,000.50 : it is .",
    ],
)
def test_penn_words(words: str) -> None:
    text = "".join(detokenize(words.split()))
    placed = penn_words(text.replace("can not", "cannot"))
    assert [word for word, _, _ in placed] == words.split()
    assert [word for word, _, _ in penn_words(words)] == words.split()  # tokenised already
    for word, start, end in penn_words(text, penn_quotes=False):
        assert text[start:end] == word


@given(st.text())
def test_penn_words_keep_every_character(text: str) -> None:
    placed = penn_words(text, penn_quotes=False)
    assert "".join(word for word, _, _ in placed) == "".join(text.split())
    assert all(text[start:end] == word for word, start, end in placed)


def test_separate() -> None:
    assert separate(["I", "do", "n't"]) == ["I", " do", " n't"]


# ------------------------------------------------------------------ tokenizers


def test_word_vocabulary_is_sorted_by_count(words: PreTrainedTokenizerFast) -> None:
    expected = ["<s>", "</s>", "<pad>", "<unk>", "the", "dog", "cat", "saw"]
    assert words.convert_ids_to_tokens(range(len(words))) == expected
    assert is_word_level(words)


def test_word_vocabulary_with_min_count() -> None:
    tokenizer = train_word_vocabulary([["a", "b", "b"], ["c", "c", "<s>", "<s>"]], min_count=2)
    assert set(tokenizer.get_vocab()) == {"<s>", "</s>", "<pad>", "<unk>", "b", "c"}
    assert tokenizer("a b")["input_ids"] == [3, 4]


def test_word_tokenizer_gives_offsets(words: PreTrainedTokenizerFast) -> None:
    encoded = words("the  dog", return_offsets_mapping=True)
    assert encoded["input_ids"] == [4, 5]
    assert encoded["offset_mapping"] == [(0, 3), (5, 8)]


def test_tokenizers_survive_saving(
    bpe: PreTrainedTokenizerFast, words: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    for tokenizer, text in ((bpe, "The dog didn't — 'see' ünïcode."), (words, "the dog saw")):
        tokenizer.save_pretrained(tmp_path)
        expected = tokenizer(text)["input_ids"]
        loaded: Sequence[PreTrainedTokenizerFast] = (
            load_tokenizer(tmp_path),
            AutoTokenizer.from_pretrained(tmp_path),
            PreTrainedTokenizerFast.from_pretrained(tmp_path),
        )
        for again in loaded:
            assert again(text)["input_ids"] == expected
            assert (again.bos_token_id, again.eos_token_id, again.pad_token_id) == (0, 1, 2)
            assert again.decode(expected) == text


def test_bpe_training_is_deterministic(bpe: PreTrainedTokenizerFast) -> None:
    again = train_bpe(map(detokenize, SENTENCES), 300)
    assert again.backend_tokenizer.to_str() == bpe.backend_tokenizer.to_str()
    assert 259 < len(bpe) <= 300


def test_bpe_splits_text_where_the_penn_treebank_does(bpe: PreTrainedTokenizerFast) -> None:
    split = bpe.backend_tokenizer.pre_tokenizer.pre_tokenize_str
    text = "I didn't see \"John's\" (3%)... N'T they’ve"
    pieces = [text[start:end] for _, (start, end) in split(text)]
    assert pieces == [
        "I", " did", "n't", " see", ' "', "John", "'s", '"', " (", "3", "%", ")", "...",
        " N'T", " they", "’ve",
    ]  # fmt: skip


@given(st.lists(st.text(max_size=12)))
def test_bpe_is_lossless(bpe: PreTrainedTokenizerFast, texts: list[str]) -> None:
    texts = [text for text in texts if not any(token in text for token in bpe.all_special_tokens)]
    for text in texts:
        assert bpe.decode(bpe(text)["input_ids"]) == text


@pytest.mark.parametrize("names", [("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt")])
def test_gpt2_folder(shared_data: Path, tmp_path: Path, names: tuple[str, str]) -> None:
    for source, target in zip(("encoder.json", "vocab.bpe"), names, strict=True):
        (tmp_path / target).symlink_to(shared_data / "gpt2_bpe" / source)
    tokenizer = load_tokenizer(tmp_path)
    ids = [464, 8251, 284, 262, 13447, 389, 319, 262, 3084, 13]
    assert tokenizer("The keys to the cabinet are on the table.")["input_ids"] == ids
    assert tokenizer.bos_token_id == tokenizer.eos_token_id == tokenizer.pad_token_id == 50256
    check_keeps_spaces(tokenizer, tmp_path)
    words = ["The", "keys", "to", "the", "cabinet", "are", "on", "the", "table", "."]
    pieces = encoder(tokenizer)(detokenize(words))
    assert pieces == [(token,) for token in ids]


def test_rule_is_saved_with_the_tokenizer(bpe: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    assert text_rule(bpe) == TextRule("detokenized", "word")  # of older models
    rule = TextRule("tokenized", "sentence")
    copied = model_tokenizer(bpe)
    rule.save_in(copied)
    copied.save_pretrained(tmp_path)
    assert text_rule(load_tokenizer(tmp_path)) == rule
    assert text_rule(bpe) == TextRule("detokenized", "word")
    copied.init_kwargs["pushdown_text"] = {"text": "as it is", "unit": "word"}
    with pytest.raises(PushdownError, match=r"tokenizer_config\.json: pushdown_text: expected"):
        text_rule(copied)


def test_tokenizer_of_a_model(
    bpe: PreTrainedTokenizerFast, words: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    for tokenizer, text in ((bpe, "The dog didn't see"), (words, "the dog saw")):
        model_tokenizer(tokenizer).save_pretrained(tmp_path)
        saved = AutoTokenizer.from_pretrained(tmp_path)
        ids = saved(text)["input_ids"]
        assert ids[0] == saved.bos_token_id
        assert ids[1:] == tokenizer(text, add_special_tokens=False)["input_ids"]
        assert saved.decode(ids, skip_special_tokens=True).strip() == text
        start = len(saved(text[:7])["input_ids"])  # "The dog", continued
        assert text[:7] + saved.decode(ids[start:]) == text


def test_tokenizer_of_a_model_trims_offsets_as_before(bpe: PreTrainedTokenizerFast) -> None:
    trimming = model_tokenizer(bpe)
    backend = trimming.backend_tokenizer
    backend.post_processor = processors.ByteLevel(trim_offsets=True)
    again = model_tokenizer(model_tokenizer(trimming)).backend_tokenizer
    assert again.encode("The dog").offsets[1:] == backend.encode("The dog").offsets


def test_marks_of_a_pretrained_tokenizer_are_split(tmp_path: Path) -> None:
    text = 'He said: "(See [12].)" -- don\'t... "'
    texts = [[text], ["]."], ['."'], ["the dog's ..."]]
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=400, special_tokens=["</s>"], show_progress=False)
    backend.train_from_iterator((line for lines in texts for line in lines * 9), trainer)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    assert "]." in tokenizer.tokenize("[12].")
    assert not splits_marks(tokenizer)
    split_marks(tokenizer)
    split_marks(tokenizer)  # once more makes no difference
    tokenizer.save_pretrained(tmp_path)
    saved = load_tokenizer(tmp_path)
    assert splits_marks(saved)
    tokens = saved.tokenize(text)
    assert saved.decode(saved.convert_tokens_to_ids(tokens)) == text
    pieces = [piece for piece, _ in saved.backend_tokenizer.pre_tokenizer.pre_tokenize_str(text)]
    wanted = 'He Ġsaid : Ġ" ( See Ġ[ 12 ] . ) " Ġ-- Ġdon \'t ... Ġ"'
    assert pieces == wanted.split()


def test_marks_of_other_tokenizers_are_not_split(words: PreTrainedTokenizerFast) -> None:
    with pytest.raises(TokenizationError, match="expected a byte-level tokenizer"):
        split_marks(words)


def test_eos_stands_in_for_bos_and_padding(tmp_path: Path) -> None:
    backend = Tokenizer(models.WordLevel({"<e>": 0, "the": 1}, unk_token="<e>"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="<e>").save_pretrained(tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.bos_token_id, tokenizer.pad_token_id) == (0, 0)


@pytest.mark.parametrize("text", ["bpe", "bpe:100", "bpe:x", "word:2", "word:min_count=0", "no/x"])
def test_choice_of_nothing(text: str) -> None:
    with pytest.raises(TokenizationError, match=f"expected 'bpe:SIZE' .* got '{text}'"):
        TokenizerChoice.parse(text)


def test_choice(tmp_path: Path) -> None:
    assert TokenizerChoice.parse("bpe:500") == TokenizerChoice("bpe", vocab_size=500)
    assert TokenizerChoice.parse("word") == TokenizerChoice("word")
    assert TokenizerChoice.parse("word:min_count=3") == TokenizerChoice("word", min_count=3)
    assert TokenizerChoice.parse(str(tmp_path)) == TokenizerChoice("folder", folder=tmp_path)


def test_folder_without_tokenizer(tmp_path: Path) -> None:
    with pytest.raises(TokenizationError, match=r"expected tokenizer\.json, or encoder\.json with"):
        load_tokenizer(tmp_path)


def test_folder_without_end_token(tmp_path: Path) -> None:
    (tmp_path / "vocab.json").write_text('{"a": 0}')
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    with pytest.raises(TokenizationError, match=r"vocab\.json: expected an entry <\|endoftext\|>"):
        load_tokenizer(tmp_path)


def test_folder_without_any_end(tmp_path: Path) -> None:
    backend = Tokenizer(models.WordLevel({"the": 0}, unk_token="the"))
    PreTrainedTokenizerFast(tokenizer_object=backend).save_pretrained(tmp_path)
    with pytest.raises(TokenizationError, match="a fast tokenizer with an EOS token, found no EOS"):
        load_tokenizer(tmp_path)


def test_tokenizer_that_marks_every_start() -> None:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="always")
    backend.decoder = decoders.Metaspace(prepend_scheme="always")
    backend.train_from_iterator(["(the dog)"], trainers.BpeTrainer(special_tokens=["</s>"]))
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=backend, eos_token="</s>")
    with pytest.raises(TokenizationError, match=r"spell '\(the dog\)', found '\( the dog \)'"):
        check_keeps_spaces(tokenizer, "folder")


# ------------------------------------------------------------------ encoding


@given(st.lists(strategies.words(), min_size=1))
def test_tokens_of_a_word_spell_the_word(bpe: PreTrainedTokenizerFast, words: list[str]) -> None:
    encode = encoder(bpe)
    surfaces = encode.surfaces(words)
    assert [bpe.decode(list(ids)) for ids in encode(surfaces)] == surfaces


def test_a_token_belongs_to_the_word_it_starts_in(shared_data: Path) -> None:
    tokenizer = load_tokenizer(shared_data / "gpt2_bpe")
    words = ["``", "I", "do", "n't", ".", "''"]
    whole, by_word = encoder(tokenizer, unit="sentence"), encoder(tokenizer)
    assert whole.encode_texts(['"I don\'t."']) == [[1, 40, 836, 470, 526]]  # "|I| don|'t|."
    assert whole(whole.surfaces(words)) == [(1,), (40,), (836,), (470,), (526,), ()]
    assert by_word(by_word.surfaces(words)) == [(1,), (40,), (466,), (77, 470), (13,), (1,)]


@given(st.lists(strategies.words(), min_size=1))
def test_whole_sentences_have_the_tokens_of_their_text(
    bpe: PreTrainedTokenizerFast, words: list[str]
) -> None:
    encode = encoder(bpe, unit="sentence")
    surfaces = encode.surfaces(words)
    pieces = encode(surfaces)
    assert [[token for ids in pieces for token in ids]] == encode.encode_texts(["".join(surfaces)])
    assert [len(ids) > 0 for ids in pieces] == [len(surface) > 0 for surface in surfaces] or (
        bpe.decode([token for ids in pieces for token in ids]) == "".join(surfaces)
    )


def test_whole_texts_agree_with_words(bpe: PreTrainedTokenizerFast) -> None:
    encode = encoder(bpe)
    for sentence in SENTENCES:
        surfaces = encode.surfaces(sentence)
        ids = [token for pieces in encode(surfaces) for token in pieces]
        assert encode.encode_texts(["".join(surfaces)]) == [ids]


def test_whole_texts_agree_with_words_of_a_novel(shared_data: Path) -> None:
    trees = list(read_trees(shared_data / "dickens" / "valid.trees"))
    encode = encoder(train_bpe((detokenize(tree.words) for tree in trees), 1000))
    surfaces = [encode.surfaces(tree.words) for tree in trees]
    apart = [[token for pieces in encode(words) for token in pieces] for words in surfaces]
    assert encode.encode_texts(list(map("".join, surfaces))) == apart


def test_special_token_among_the_words(bpe: PreTrainedTokenizerFast) -> None:
    with pytest.raises(
        UnusableTreeError, match=r"without special tokens .* found 'a</s>'"
    ) as error:
        encoder(bpe)(["the", " a</s>"])
    assert error.value.reason == "special token among the words"


def test_word_outside_the_vocabulary(words: PreTrainedTokenizerFast) -> None:
    with pytest.raises(UnusableTreeError, match="the closed vocabulary, found 'bird'") as error:
        encoder(words)(["the", " bird"])
    assert error.value.reason == "word outside the vocabulary"
    assert encoder(words, allow_unknown=True)(["the", " bird"]) == [(4,), (3,)]


@pytest.mark.parametrize("word", ["", " ", "x\u00a0"])
def test_tokens_that_do_not_match_the_leaf(words: PreTrainedTokenizerFast, word: str) -> None:
    with pytest.raises(UnusableTreeError, match="tokens that cover the leaf") as error:
        encoder(words, allow_unknown=True)([word])
    assert error.value.reason == "tokens that do not match the leaf"
