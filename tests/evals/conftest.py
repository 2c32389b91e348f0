"""A tiny random GPT-2 with its own byte-level BPE, and a scorer that answers from a record."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

from pushdown_lm.search.read_attention import ReadAttention
from pushdown_lm.search.scorer import CausalLMScorer, Reading, Sentence, Token, TreeScore
from pushdown_lm.trees import Tree
from tests.models import plain_model

TEXT = [
    "The dog is happy , and the dogs are here .",
    "The author that the senators like has praised himself .",
    "Who does the café that she knows please ?",
]


class RecordedScorer:
    """Answers from a table of surprisals by word; unknown words cost `default` bits, EOS 1 bit.

    Every word is a token, and offsets leave the joining space out.
    """

    def __init__(self, bits: Mapping[str, float], default: float = 3.0) -> None:
        self.name = "recorded"
        self.parses = True
        self.is_exact = True
        self.scores_trees = self.attends = False
        self.bits = bits
        self.default = default
        self.calls: list[list[Any]] = []

    def describe(self) -> dict[str, Any]:
        return {"model": self.name, "tokenizer": "words", "beam": None, "bits": dict(self.bits)}

    def surprisals(self, sentences: Sequence[str]) -> list[list[Token]]:
        self.calls.append(list(sentences))
        return [self._tokens(sentence) for sentence in sentences]

    def log_probs(self, sentences: Sequence[str]) -> list[float]:
        self.calls.append(list(sentences))
        return [
            -math.log(2) * math.fsum(token.surprisal for token in self._tokens(sentence))
            for sentence in sentences
        ]

    def parse(self, sentences: Sequence[Sequence[str]]) -> list[Tree | None]:
        """Right-branching; a sentence with the word ``<unk>`` has no parse."""
        self.calls.append(list(sentences))
        return [
            None
            if "<unk>" in words
            else Tree(
                tuple(words),
                tuple((start, len(words)) for start in range(len(words) - 2, -1, -1)),
            )
            for words in sentences
        ]

    def parse_and_score(self, sentences: Sequence[Sequence[str]]) -> list[Reading]:
        trees = self.parse(sentences)
        return [
            Reading(tree, None if tree is None else self._tokens(words))
            for words, tree in zip(sentences, trees, strict=True)
        ]

    def score_trees(self, trees: Sequence[Tree]) -> list[TreeScore]:
        raise AssertionError

    def read_attention(self, text: str) -> ReadAttention:
        raise AssertionError

    def _tokens(self, sentence: Sentence) -> list[Token]:
        if not isinstance(sentence, str):
            sentence = " ".join(sentence)
        tokens = []
        end = 0
        for word in sentence.split():
            start = sentence.index(word, end)
            end = start + len(word)
            tokens.append(Token(word, start, end, self.bits.get(word, self.default)))
        return [*tokens, Token("</s>", len(sentence), len(sentence), 1.0)]


def build_tokenizer(*, trim_offsets: bool = False) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=trim_offsets)
    tokenizer.train_from_iterator(
        TEXT * 4,
        trainers.BpeTrainer(
            vocab_size=320,
            special_tokens=["<s>", "</s>"],
            initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
            show_progress=False,
        ),
    )
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="</s>"
    )


@pytest.fixture(scope="session")
def tokenizer() -> PreTrainedTokenizerFast:
    return build_tokenizer()


@pytest.fixture(scope="session")
def model(tokenizer: PreTrainedTokenizerFast) -> GPT2LMHeadModel:
    return plain_model(len(tokenizer))


@pytest.fixture(scope="session")
def tiny_scorer(model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast) -> CausalLMScorer:
    return CausalLMScorer(model, tokenizer, name="tiny")
