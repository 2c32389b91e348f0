"""What all scorers share that search the parses of a sentence: text to tokens, and the questions.

A sentence is raw text, a `str`, or a sequence of words, which stand for text that is tokenised
already; both become tokens by the rule of the model's training data, which is saved with its
tokenizer (:class:`pushdown_lm.data.text.TextRule`). The *words* of raw text are separated by
white space where surprisals are summed; the *leaves* of its tree are what the tokenizer's
pre-tokeniser cuts it into, punctuation marks among them. For a sequence of words both are the
words.
"""

from __future__ import annotations

import json
import math
import re
from abc import ABC, abstractmethod
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, groupby, pairwise
from pathlib import Path
from typing import Any, ClassVar, Self, overload

import torch
from tokenizers import Tokenizer
from transformers import PreTrainedTokenizerFast

from pushdown_lm.data.text import RULE_KEY, penn_words
from pushdown_lm.data.tokenization import (
    EncoderSettings,
    UnusableTreeError,
    WordEncoder,
    is_word_level,
    load_tokenizer,
    vocabulary_size,
)
from pushdown_lm.model.decoder_model import DecoderModel
from pushdown_lm.model.loading import ModelFolderError, load_weights
from pushdown_lm.search.beam import (
    ScoredTree,
    SearchError,
    SearchResult,
    check_sentence,
    posteriors,
)
from pushdown_lm.search.defaults import DEFAULT_BEAM, DEFAULT_THRESHOLD
from pushdown_lm.search.packaged import find_model
from pushdown_lm.search.read_attention import ReadAttention
from pushdown_lm.search.scorer import (
    Reading,
    Sentence,
    Token,
    TreeScore,
    model_versions,
    weights_fingerprint,
)
from pushdown_lm.trees import Span, Tree


class UnknownTokenError(SearchError):
    """A sentence with a token that is not in the vocabulary."""


@dataclass(frozen=True, slots=True)
class Encoded:
    """A sentence as the model reads it."""

    text: str
    ids: tuple[int, ...]
    tokens: tuple[str, ...]
    """The pieces as the vocabulary writes them."""
    offsets: tuple[Span, ...]
    """Characters of each token in the text; for sequences of words, those of the whole word."""
    words: tuple[str, ...]
    word_counts: tuple[int, ...]
    """How many tokens each word has."""
    leaves: tuple[str, ...]
    leaf_counts: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Analysis:
    """All that search has found about one sentence."""

    sentence: Encoded
    result: SearchResult
    end_token: str

    @property
    def log_prob(self) -> float:
        """log p(x), EOS included."""
        return self.result.log_prob

    @property
    def tokens(self) -> list[Token]:
        """The tokens with their surprisals in bits, EOS last."""
        end = len(self.sentence.text)
        texts = (*self.sentence.tokens, self.end_token)
        offsets = (*self.sentence.offsets, (end, end))
        bits = [nats / math.log(2) for nats in self.result.surprisals]
        return [
            Token(text, start, stop, surprisal)
            for text, (start, stop), surprisal in zip(texts, offsets, bits, strict=True)
        ]

    @property
    def words(self) -> list[tuple[str, float]]:
        """The words with the summed surprisals of their tokens in bits, EOS last."""
        summed = self._sum_tokens(self.sentence.word_counts)
        last = self.tokens[-1].surprisal
        return [*zip(self.sentence.words, summed, strict=True), (self.end_token, last)]

    @property
    def leaf_surprisals(self) -> list[float]:
        """The summed surprisals of the tokens of each leaf, in bits."""
        return self._sum_tokens(self.sentence.leaf_counts)

    def _sum_tokens(self, counts: Sequence[int]) -> list[float]:
        bits = [token.surprisal for token in self.tokens]
        ends = accumulate(counts, initial=0)
        return [math.fsum(bits[start:end]) for start, end in pairwise(ends)]

    def trees(self) -> list[ScoredTree]:
        """The distinct trees of the beam over the leaves, best first."""
        return self.result.trees(self.sentence.leaves, self.sentence.leaf_counts)

    def _repr_html_(self) -> str:
        """What notebooks show: the best parse, and how probable it and others are."""
        return self.result.show(
            self.sentence.leaves, self.leaf_surprisals, self.sentence.leaf_counts
        )


class SearchScorer(ABC):
    """Answers questions about sentences by a search over their parses.

    Subclasses say which model is searched and how (:meth:`analyse_batches`).

    Args:
        beam: entries that search keeps for a sentence.
        threshold: entries further than this below the best, in nats, are dropped; None keeps all
            that the beam keeps, as the paper does with a beam of 300.
        allow_unknown: read words outside the vocabulary as the unknown token; otherwise they are
            an error, `parse` gives None, and the model never predicts that token.
    """

    model: Any
    model_class: ClassVar[type[DecoderModel]]
    model_type: ClassVar[str]
    kind: ClassVar[str]
    """What the model is called in messages."""

    def __init__(
        self,
        model: DecoderModel,
        tokenizer: PreTrainedTokenizerFast,
        *,
        name: str | None = None,
        beam: int = DEFAULT_BEAM,
        threshold: float | None = DEFAULT_THRESHOLD,
        allow_unknown: bool = False,
    ) -> None:
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name or model.config.name_or_path or type(model).__name__
        self.beam, self.threshold = beam, threshold
        settings = EncoderSettings.of(tokenizer, allow_unknown=allow_unknown)
        self.allow_unknown = settings.allow_unknown
        self._encode_words = WordEncoder(settings)
        self._backend = Tokenizer.from_str(settings.tokenizer)
        self._reads_words = settings.rule.text == "tokenized" and not is_word_level(tokenizer)
        if not self.allow_unknown:
            model.forbidden.add([settings.unknown_id])
        self._check_model()

    @classmethod
    def from_pretrained(cls, folder: str | Path, **options: Any) -> Self:
        """The model and the tokenizer saved together in a folder, or an installed model by name."""
        name, folder = str(folder), find_model(folder)
        _check_folder(folder, cls.model_type, cls.kind)
        model = load_weights(cls.model_class, folder, dtype=torch.float32)
        tokenizer = load_tokenizer(folder)
        tokenizer.name_or_path = name  # not where the package happens to be installed
        return cls(model, tokenizer, **{"name": name, **options})

    def _check_model(self) -> None:
        for name, parameter in self.model.named_parameters():
            if not parameter.isfinite().all():
                raise ModelFolderError(
                    f"{self.name}: expected finite weights, found NaN or infinity in {name}"
                )
        entries = vocabulary_size(self.tokenizer)
        rows = self.model.get_input_embeddings().weight.shape[0]
        if entries > rows:
            raise ModelFolderError(
                f"{self.name}: the tokenizer has {entries} entries, but the model embeds {rows}"
            )

    @cached_property
    def _description(self) -> dict[str, Any]:
        vocabulary = self.tokenizer.name_or_path or type(self.tokenizer).__name__
        rule = self.tokenizer.init_kwargs.get(RULE_KEY)
        return {
            "model": self.name,
            "architecture": type(self.model).__name__,
            "decoder": self.model.config.decoder.model_type,
            "pushdown_layers": self.model.config.pushdown_layers,
            "weights": weights_fingerprint(self.model),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "tokenizer": f"{vocabulary} ({vocabulary_size(self.tokenizer)} entries)",
            **({} if rule is None else {"text": rule}),
            "beam": self.beam,
            "threshold": self.threshold,
            "allow_unknown": self.allow_unknown,
            "forbidden_tokens": sorted(self.model.forbidden.ids),
            "versions": model_versions(),
        }

    @property
    @abstractmethod
    def depends_on_parse(self) -> bool:
        """Whether the probabilities of tokens depend on the parse."""

    @property
    @abstractmethod
    def parses(self) -> bool:
        """Whether the model can :meth:`parse`."""

    @property
    def is_exact(self) -> bool:
        return False

    @property
    @abstractmethod
    def attends(self) -> bool:
        """Whether the model can :meth:`read_attention`."""

    @property
    @abstractmethod
    def scores_trees(self) -> bool:
        """Whether the model can :meth:`score_trees`."""

    def describe(self) -> dict[str, Any]:
        return dict(self._description)

    # -------------------------------------------------------------- sentences to ids

    def encode(self, sentence: Sentence) -> Encoded:
        """The sentence as the model reads it; an error if the model cannot read it."""
        encoded = self._encode(sentence)
        check_sentence(encoded.ids, self.model.config.max_positions, repr(encoded.text[:60]))
        return encoded

    def check(self, sentence: Sentence) -> None:
        """Raise :class:`SearchError` unless the model can read the sentence."""
        self.encode(sentence)

    def count_tokens(self, sentence: Sentence) -> int:
        """How many tokens a sentence has, which may be more than the model's positions."""
        return len(self._encode(sentence).ids)

    def _encode(self, sentence: Sentence) -> Encoded:
        if not isinstance(sentence, str):
            return self._encode_pretokenised(sentence)
        return self._encode_as_words(sentence) if self._reads_words else self._encode_text(sentence)

    def _encode_pretokenised(self, words: Sequence[str]) -> Encoded:
        if not words:
            raise SearchError("expected a sentence of at least one word, got an empty one")
        try:
            pieces = self._encode_words(self._encode_words.surfaces(words))
        except UnusableTreeError as error:
            raise UnknownTokenError(str(error)) from None
        ids = tuple(token for piece in pieces for token in piece)
        counts = tuple(map(len, pieces))
        starts = accumulate((len(word) + 1 for word in words), initial=0)
        spans = [(start, start + len(word)) for start, word in zip(starts, words, strict=False)]
        return Encoded(
            text=" ".join(words),
            ids=ids,
            tokens=self._pieces(ids),
            offsets=tuple(
                span for span, count in zip(spans, counts, strict=True) for _ in range(count)
            ),
            words=tuple(words),
            word_counts=counts,
            leaves=tuple(words),
            leaf_counts=counts,
        )

    def _encode_as_words(self, text: str) -> Encoded:
        """Raw text for a model of tokenised text: cut into words first, as its treebank was."""
        placed = penn_words(text, penn_quotes=self._encode_words.knows("Ġ``"))
        encoded = self._encode_pretokenised([word for word, _, _ in placed])
        offsets = tuple(
            (start, end)
            for (_, start, end), count in zip(placed, encoded.leaf_counts, strict=True)
            for _ in range(count)
        )
        words, counts = _words_of_text(text, offsets)
        return replace(encoded, text=text, offsets=offsets, words=words, word_counts=counts)

    def _encode_text(self, text: str) -> Encoded:
        if not text.strip():
            raise SearchError("expected a sentence of at least one word, got an empty one")
        encoding = self._backend.encode(text, add_special_tokens=False)
        self._check_tokens(text, encoding.ids, encoding.offsets)
        words, counts = _words_of_text(text, encoding.offsets)
        leaves, leaf_counts = leaves_of_text(text, encoding.word_ids, encoding.offsets)
        return Encoded(
            text=text,
            ids=tuple(encoding.ids),
            tokens=tuple(encoding.tokens),
            offsets=tuple(encoding.offsets),
            words=words,
            word_counts=counts,
            leaves=tuple(leaves),
            leaf_counts=tuple(leaf_counts),
        )

    def _pieces(self, ids: Sequence[int]) -> tuple[str, ...]:
        """The entries of the vocabulary; a model may embed more ids than it has."""
        return tuple(self._backend.id_to_token(token) or f"<{token}>" for token in ids)

    def token_texts(self, ids: Sequence[int]) -> list[str]:
        """Tokens as text, without the space before them; one that is white space or a part of a
        character only, as the vocabulary writes it."""
        texts = [self._backend.decode([token]).strip() for token in ids]
        return [
            text if text and "\ufffd" not in text else piece
            for text, piece in zip(texts, self._pieces(ids), strict=True)
        ]

    def _check_tokens(self, text: str, ids: Sequence[int], offsets: Sequence[Span]) -> None:
        settings = self._encode_words.settings
        for token, (start, end) in zip(ids, offsets, strict=True):
            if token in settings.reserved_ids:
                raise UnknownTokenError(
                    f"expected text without special tokens, found {text[start:end]!r} at character "
                    f"{start + 1}"
                )
            if token == settings.unknown_id and not self.allow_unknown:
                raise UnknownTokenError(
                    f"expected words of the vocabulary, found {text[start:end].strip()!r} at "
                    f"character {start + 1}"
                )

    # -------------------------------------------------------------- search

    def analyse(self, sentences: Sequence[Sentence]) -> list[Analysis]:
        """Search each sentence once and keep all that was found."""
        encoded = [self.encode(sentence) for sentence in sentences]
        found: dict[int, Analysis] = {}
        for batch in self.analyse_batches(encoded):
            found.update(batch)
        return [found[number] for number in range(len(sentences))]

    @abstractmethod
    def analyse_batches(self, encoded: Sequence[Encoded]) -> Iterator[dict[int, Analysis]]:
        """The same batch by batch, longest sentences first, by the sentence's number."""

    def analysis(self, encoded: Encoded, result: SearchResult) -> Analysis:
        """What was found about a sentence, with its words."""
        return Analysis(encoded, result, self.tokenizer.eos_token)

    def log_prob(self, sentence: Sentence) -> float:
        """log p(x) of one sentence, EOS included: the marginal over the beam, in nats."""
        return self.analyse([sentence])[0].log_prob

    def log_probs(self, sentences: Sequence[Sentence]) -> list[float]:
        """The same of each sentence."""
        return [analysis.log_prob for analysis in self.analyse(sentences)]

    @overload
    def surprisals(self, sentences: str) -> list[Token]: ...  # type: ignore[overload-overlap]
    @overload
    def surprisals(self, sentences: Sequence[Sentence]) -> list[list[Token]]: ...
    def surprisals(self, sentences: Sequence[Sentence]) -> list[Token] | list[list[Token]]:
        """The tokens of each sentence with their surprisals in bits, EOS last."""
        if isinstance(sentences, str):
            return self.analyse([sentences])[0].tokens
        return [analysis.tokens for analysis in self.analyse(sentences)]

    @overload
    def parse(self, sentences: str) -> Tree: ...  # type: ignore[overload-overlap]
    @overload
    def parse(self, sentences: Sequence[Sentence]) -> list[Tree | None]: ...
    def parse(self, sentences: Sequence[Sentence]) -> Tree | list[Tree | None]:
        """The most probable binary tree of each sentence; None where a word is unknown."""
        if isinstance(sentences, str):
            return self.analyse([sentences])[0].trees()[0].tree
        return [reading.tree for reading in self.parse_and_score(sentences)]

    def parse_and_score(self, sentences: Sequence[Sentence]) -> list[Reading]:
        """The same with the tokens of each sentence, as :meth:`surprisals` has them."""
        readable: dict[int, Encoded] = {}
        for number, sentence in enumerate(sentences):
            try:
                readable[number] = self.encode(sentence)
            except UnknownTokenError:
                continue
        numbers = list(readable)
        readings = [Reading(None, None)] * len(sentences)
        for batch in self.analyse_batches(list(readable.values())):
            for row, analysis in batch.items():
                tree = self._binary(analysis.trees()[0].tree)
                readings[numbers[row]] = Reading(tree, analysis.tokens)
        return readings

    def _binary(self, tree: Tree) -> Tree:
        """A tree of the search as a binary one, which it is unless a model says otherwise."""
        return tree

    def posteriors(self, sentence: Sentence) -> dict[Span, float]:
        """The posterior probability of each constituent of the beam, by its span of leaves."""
        return posteriors(self.analyse([sentence])[0].trees())

    @abstractmethod
    def log_joint(self, tree: Tree) -> float:
        """log p(x, y) of a sentence and its tree, in nats."""

    @abstractmethod
    def score_trees(self, trees: Sequence[Tree]) -> list[TreeScore]:
        """The log-probabilities of tokens and of structure, whose sum is :meth:`log_joint`."""

    @abstractmethod
    def read_attention(self, text: str) -> ReadAttention:
        """What the model attends to under its most probable parse of the text so far."""

    @abstractmethod
    def is_likeliest(self, analysis: Analysis) -> list[bool]:
        """Whether each token is the likeliest of all tokens where it stands, EOS included, under
        the most probable parse."""

    def mark_likeliest(self, sentences: Sequence[Sentence]) -> list[list[tuple[Token, bool]]]:
        """The tokens of each sentence, and whether each is the likeliest where it stands."""
        return [
            list(zip(analysis.tokens, self.is_likeliest(analysis), strict=True))
            for analysis in self.analyse(sentences)
        ]


def _words_of_text(text: str, offsets: Sequence[Span]) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """What white space separates, and how many tokens start in each of these words."""
    words = list(re.finditer(r"\S+", text))
    ends = [word.end() for word in words]
    counts = [0] * len(words)
    for start, _ in offsets:
        counts[min(bisect_right(ends, start), len(words) - 1)] += 1
    return tuple(word.group() for word in words), tuple(counts)


def leaves_of_text(
    text: str, word_ids: Sequence[int | None], offsets: Sequence[Span]
) -> tuple[list[str], list[int]]:
    """What the pre-tokeniser cut a text into, and how many tokens each part has.

    A part of white space alone goes with the part on its right, or at the end on its left.
    """
    leaves: list[str] = []
    counts: list[int] = []
    pending, first = 0, 0
    for _, group in groupby(word_ids):
        last = first + len(list(group))
        leaf = text[offsets[first][0] : offsets[last - 1][1]].strip()
        if leaf:
            leaves.append(leaf)
            counts.append(pending + last - first)
        pending = 0 if leaf else pending + last - first
        first = last
    if pending and counts:
        counts[-1] += pending
    return leaves, counts


def _check_folder(folder: Path, model_type: str, name: str) -> None:
    """Raise :class:`ModelFolderError` unless the folder holds a model of this type, whole."""
    try:
        kind = json.loads((folder / "config.json").read_text(encoding="utf-8")).get("model_type")
    except (OSError, ValueError, AttributeError, RecursionError):
        inside = folder / "model"
        hint = f"; did you mean {inside}?" if (inside / "config.json").is_file() else ""
        raise ModelFolderError(
            f"{folder}: expected {name}, found no readable config.json{hint}"
        ) from None
    if kind != model_type:
        raise ModelFolderError(f"{folder}: expected {name}, found model_type {kind!r}")
    if not list(folder.glob("*.safetensors")):
        raise ModelFolderError(f"{folder}: expected weights in *.safetensors, found none")
    if not (folder / "tokenizer.json").is_file():
        raise ModelFolderError(
            f"{folder}: expected the model's tokenizer in tokenizer.json, found none"
        )
