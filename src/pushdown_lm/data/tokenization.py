"""Words of trees to token ids, by the one rule by which raw text becomes tokens too.

The words of a tree are put back into running text (:mod:`pushdown_lm.data.text`), the sentence is
encoded as a whole, and each token belongs to the word that it starts in:

    words       It      has     n't     (       yet     )       .       ''
    in text     "It"    " has"  "n't"   " ("    "yet"   ")"     "."     '"'
    GPT-2's     It      Ġhasn   't      Ġ(      yet     )       ."

So training sees the tokens of the raw text, whatever the tokenizer. A word that has no token of its
own (the quote above) is left out of the tree, and the card of a dataset counts such words. The BPE
trained here splits where the Penn Treebank does (`do|n't`, one punctuation mark at a time), so that
there are hardly any.

Older datasets were encoded word by word (`unit` of :class:`~pushdown_lm.data.text.TextRule`), which
with GPT-2's BPE gives other tokens than the raw text; their models are still read so.
"""

from __future__ import annotations

import copy
import json
import re
import sys
from bisect import bisect_right
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

from pushdown_lm.data.text import TextRule, detokenize, separate
from pushdown_lm.errors import PushdownError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

__all__ = [
    "EncoderSettings",
    "TextRule",
    "TokenizationError",
    "TokenizerChoice",
    "UnusableTreeError",
    "WordEncoder",
    "check_keeps_spaces",
    "detokenize",
    "is_word_level",
    "load_tokenizer",
    "model_tokenizer",
    "renumber_bpe",
    "separate",
    "text_rule",
    "train_bpe",
    "train_word_vocabulary",
    "vocabulary_size",
]

BOS, EOS, PAD, UNKNOWN = "<s>", "</s>", "<pad>", "<unk>"
"""The special tokens of trained tokenizers; a byte-level BPE needs no `<unk>`."""

MAX_CACHED_WORDS = 1 << 18

BPE_FILES = (("encoder.json", "vocab.bpe"), ("vocab.json", "merges.txt"))
"""Vocabulary and merges under the names of the GPT-2 release and of Transformers."""


class TokenizationError(PushdownError):
    """A tokenizer that cannot be read, trained or used on trees."""


class UnusableTreeError(PushdownError):
    """A tree that cannot be encoded; `reason` is the kind of fault, by which trees are counted."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(reason, message)
        self.reason = reason

    def __str__(self) -> str:
        return str(self.args[1])


# ------------------------------------------------------------------ tokenizers

_PENN_PIECES = "|".join(
    [
        r" ?(?i:n['’]t)\b",
        r" ?['’](?i:s|re|ve|ll|d|m)\b",
        r" ?\p{L}+?(?=(?i:n['’]t)\b)",
        r" ?\p{L}+",
        r" ?\p{N}+",
        r" ?(?<mark>[^\s\p{L}\p{N}])\k<mark>*",
        r"\s+",
    ]
)
_MARK_BEFORE_ANOTHER = r" ?(?<mark>[^\s\p{L}\p{N}])\k<mark>*+(?=[^\s\p{L}\p{N}])"


@dataclass(frozen=True)
class TokenizerChoice:
    """What `--tokenizer` asks for.

    >>> TokenizerChoice.parse("word:min_count=2")
    TokenizerChoice(kind='word', vocab_size=None, min_count=2, folder=None)
    """

    kind: Literal["bpe", "word", "folder"]
    vocab_size: int | None = None
    """Entries of a trained BPE, special tokens and the 256 bytes included."""
    min_count: int | None = None
    """Rarer words are `<unk>`; None means a closed vocabulary without unknown words."""
    folder: Path | None = None

    @classmethod
    def parse(cls, text: str) -> TokenizerChoice:
        """`bpe:SIZE`, `word`, `word:min_count=N` or the path of a folder."""
        kind, _, argument = text.partition(":")
        is_size = re.fullmatch(r"[0-9]{1,8}", argument) is not None
        if kind == "bpe" and is_size and int(argument) >= 256 + 3:
            return cls("bpe", vocab_size=int(argument))
        if text == "word":
            return cls("word")
        if match := re.fullmatch(r"word:min_count=([1-9][0-9]{0,8})", text):
            return cls("word", min_count=int(match[1]))
        if "\0" not in text and Path(text).is_dir():
            return cls("folder", folder=Path(text))
        raise TokenizationError(
            "tokenizer: expected 'bpe:SIZE' with SIZE >= 259 (256 bytes and 3 special tokens), "
            f"'word', 'word:min_count=N' or a folder, got {text!r}"
        )


def train_bpe(sentences: Iterable[Sequence[str]], vocab_size: int) -> PreTrainedTokenizerFast:
    """A byte-level BPE trained on words as :func:`detokenize` gives them.

    Merges never cross a word, and the pre-tokeniser splits raw text where the Penn Treebank does,
    each piece with the space before it.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PENN_PIECES), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[BOS, EOS, PAD],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(sentences, trainer)
    return _wrap(tokenizer, bos_token=BOS, eos_token=EOS, pad_token=PAD)


def train_word_vocabulary(
    sentences: Iterable[Sequence[str]], min_count: int = 1
) -> PreTrainedTokenizerFast:
    """One token a word, the most frequent first; words seen less than `min_count` are `<unk>`.

    >>> train_word_vocabulary([["a", "b", "b"]]).get_vocab()["b"]
    4
    """
    counts = Counter(word for sentence in sentences for word in sentence)
    special = [BOS, EOS, PAD, UNKNOWN]
    words = [word for word, count in counts.items() if count >= min_count and word not in special]
    words.sort(key=lambda word: (-counts[word], word))
    vocabulary = {word: number for number, word in enumerate([*special, *words])}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return _wrap(tokenizer, bos_token=BOS, eos_token=EOS, pad_token=PAD, unk_token=UNKNOWN)


def load_tokenizer(folder: str | Path) -> PreTrainedTokenizerFast:
    """The tokenizer of a folder: `tokenizer.json`, or GPT-2's two files under either name.

    GPT-2's has one special token, `<|endoftext|>`, for the start, the end and the padding.
    """
    folder = Path(folder)
    if (folder / "tokenizer.json").is_file():
        from transformers import AutoTokenizer

        try:
            loaded = AutoTokenizer.from_pretrained(folder, trust_remote_code=False)
        except Exception as error:  # whatever a damaged file makes of it
            detail = " ".join(str(error).split())[:200] or type(error).__name__
            raise TokenizationError(
                f"{folder}: not a tokenizer that can be read: {detail}"
            ) from error
        return _with_special_tokens(loaded, folder)
    for vocabulary, merges in BPE_FILES:
        if (folder / vocabulary).is_file() and (folder / merges).is_file():
            end = "<|endoftext|>"
            try:
                model = models.BPE.from_file(str(folder / vocabulary), str(folder / merges))
            except Exception as error:  # tokenizers raises nothing more precise
                raise TokenizationError(
                    f"{folder}: not a vocabulary and merges that can be read: {error}"
                ) from error
            tokenizer = Tokenizer(model)
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = decoders.ByteLevel()
            if tokenizer.token_to_id(end) is None:
                raise TokenizationError(f"{folder / vocabulary}: expected an entry {end}")
            return _wrap(tokenizer, bos_token=end, eos_token=end, pad_token=end)
    names = ", or ".join(" with ".join(pair) for pair in BPE_FILES)
    raise TokenizationError(f"{folder}: expected tokenizer.json, or {names}, found none of them")


def split_marks(tokenizer: PreTrainedTokenizerFast) -> None:
    """Let no token of a pretrained byte-level tokenizer hold two different punctuation marks.

    A token such as ``].`` puts two words together, which no parse then has in two constituents.
    """
    if not any(part["type"] == "ByteLevel" for part in _pre_tokenizers(tokenizer)):
        raise TokenizationError("expected a byte-level tokenizer, whose marks can be split")
    if not splits_marks(tokenizer):
        split = pre_tokenizers.Split(Regex(_MARK_BEFORE_ANOTHER), "isolated")
        backend = tokenizer.backend_tokenizer
        backend.pre_tokenizer = pre_tokenizers.Sequence([split, backend.pre_tokenizer])


def splits_marks(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether :func:`split_marks` has been applied to a tokenizer."""
    pattern = {"Regex": _MARK_BEFORE_ANOTHER}
    return any(part.get("pattern") == pattern for part in _pre_tokenizers(tokenizer))


def _pre_tokenizers(tokenizer: PreTrainedTokenizerFast) -> list[dict[str, Any]]:
    """The settings of a tokenizer's pre-tokenizers, in their order."""

    def parts(described: dict[str, Any]) -> list[dict[str, Any]]:
        inner = described.get("pretokenizers")
        return [described] if inner is None else [part for one in inner for part in parts(one)]

    described = json.loads(tokenizer.backend_tokenizer.to_str())["pre_tokenizer"]
    return parts(described) if described else []


def _wrap(tokenizer: Tokenizer, **special_tokens: str) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special_tokens
    )


def _with_special_tokens(tokenizer: Any, folder: Path) -> PreTrainedTokenizerFast:
    if not tokenizer.is_fast or tokenizer.eos_token_id is None:
        found = "no EOS token" if tokenizer.is_fast else f"the slow {type(tokenizer).__name__}"
        raise TokenizationError(
            f"{folder}: expected a fast tokenizer with an EOS token, found {found}"
        )
    complete_special_tokens(tokenizer)
    return tokenizer


def complete_special_tokens(tokenizer: Any) -> None:
    """Let EOS stand in for a missing BOS or padding token, as in GPT-2."""
    for name in ("bos_token", "pad_token"):
        if getattr(tokenizer, name) is None:
            setattr(tokenizer, name, tokenizer.eos_token)


def is_word_level(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether the tokens of a tokenizer are whole words."""
    return isinstance(tokenizer.backend_tokenizer.model, models.WordLevel)


def text_rule(tokenizer: PreTrainedTokenizerFast) -> TextRule:
    """How the words of a sentence become the tokens of this tokenizer's model."""
    return TextRule.of(tokenizer, is_word_level=is_word_level(tokenizer))


def vocabulary_size(tokenizer: Any) -> int:
    """How many ids a model of this tokenizer has; the tokenizer may know further pieces."""
    return text_rule(tokenizer).vocabulary or len(tokenizer)


def renumber_bpe(
    tokenizer: PreTrainedTokenizerFast, ids: Mapping[str, int], **special_tokens: str
) -> PreTrainedTokenizerFast:
    """A BPE that cuts text as before, its pieces numbered by a model's vocabulary.

    A BPE cannot do without the pieces that the vocabulary lacks, since longer ones are merged from
    them. They are numbered from ``len(ids)`` on, which :attr:`TextRule.vocabulary` must tell.
    """
    described = json.loads(tokenizer.backend_tokenizer.to_str())
    if described["model"]["type"] != "BPE":
        raise TokenizationError(
            f"tokenizer: expected GPT-2's BPE, found a model of type {described['model']['type']}"
        )
    vocabulary = dict(ids)
    for piece in described["model"]["vocab"]:
        vocabulary.setdefault(piece, len(vocabulary))
    described["model"]["vocab"] = vocabulary
    described["added_tokens"] = []
    return _wrap(Tokenizer.from_str(json.dumps(described)), **special_tokens)


def model_tokenizer(tokenizer: PreTrainedTokenizerFast) -> PreTrainedTokenizerFast:
    """The tokenizer as it is saved with a model, for Transformers' own `generate` and pipelines.

    It puts ROOT before a text, as the model expects, and its tokens decode to text: each word of a
    word vocabulary with the space before it, so that what follows a prompt can be joined to it.
    Everything in this library encodes with ``add_special_tokens=False`` and is not affected.
    """
    tokenizer = copy.deepcopy(tokenizer)
    backend = tokenizer.backend_tokenizer
    bos = str(tokenizer.bos_token)
    root = processors.TemplateProcessing(
        single=f"{bos} $A",
        pair=f"{bos} $A {bos} $B",
        special_tokens=[(bos, int(tokenizer.bos_token_id))],
    )
    kept = [processors.ByteLevel(**options) for options in _byte_level_options(backend)]
    backend.post_processor = processors.Sequence([*kept, root]) if kept else root
    if is_word_level(tokenizer):
        spaced = decoders.Replace(Regex("^"), " ")
        backend.decoder = decoders.Sequence([spaced, decoders.Fuse()])
    return tokenizer


def _byte_level_options(backend: Tokenizer) -> list[dict[str, bool]]:
    """Of a post-processor that trims the spaces off byte-level tokens, its options."""
    described = json.loads(backend.to_str())["post_processor"] or {}
    parts = described.get("processors", [described])
    names = ("add_prefix_space", "trim_offsets", "use_regex")
    return [
        {name: part[name] for name in names if name in part}
        for part in parts
        if part.get("type") == "ByteLevel"
    ]


# ------------------------------------------------------------------ encoding


@dataclass(frozen=True)
class EncoderSettings:
    """All that a :class:`WordEncoder` needs, in plain values that travel between processes."""

    tokenizer: str
    """The serialised `tokenizers.Tokenizer`."""
    bos_id: int
    eos_id: int
    unknown_id: int | None
    reserved_ids: frozenset[int]
    """Tokens that no word may contain: BOS, EOS and padding."""
    rule: TextRule
    allow_unknown: bool

    @classmethod
    def of(
        cls,
        tokenizer: PreTrainedTokenizerFast,
        *,
        allow_unknown: bool,
        rule: TextRule | None = None,
    ) -> EncoderSettings:
        """The settings of a tokenizer; the rule is the one saved with it unless given."""
        bos, eos, pad = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id
        unknown = tokenizer.unk_token_id
        rule = rule or text_rule(tokenizer)
        backend = json.loads(tokenizer.backend_tokenizer.to_str())
        backend.update(truncation=None, padding=None)
        return cls(
            tokenizer=json.dumps(backend, ensure_ascii=False),
            bos_id=bos,
            eos_id=eos,
            unknown_id=None if unknown in (bos, eos, pad) else unknown,
            reserved_ids=frozenset({bos, eos, pad}),
            rule=rule,
            allow_unknown=allow_unknown or rule.vocabulary is not None,
        )


class WordEncoder:
    """Encodes the words of sentences."""

    def __init__(self, settings: EncoderSettings) -> None:
        self.settings = settings
        self.surfaces = settings.rule.surfaces
        self._limit = settings.rule.vocabulary or sys.maxsize
        self._tokenizer = Tokenizer.from_str(settings.tokenizer)
        self._pieces = lru_cache(maxsize=MAX_CACHED_WORDS)(self._encode_surface)

    def __call__(self, surfaces: Sequence[str]) -> list[tuple[int, ...]]:
        """The ids of each word, given as it stands in the text, by the model's rule.

        Of a sentence that is encoded as a whole, a token belongs to the word that it starts in,
        and a word may have none.
        """
        if self.settings.rule.unit == "word":
            return list(map(self._pieces, surfaces))
        return self._encode_sentence(surfaces)

    def encode_texts(self, texts: list[str]) -> list[list[int]]:
        """The ids of whole texts."""
        batch = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in batch]

    def knows(self, piece: str) -> bool:
        """Whether a piece is in the model's vocabulary."""
        token = self._tokenizer.token_to_id(piece)
        return token is not None and token < self._limit

    def _encode_sentence(self, surfaces: Sequence[str]) -> list[tuple[int, ...]]:
        text = "".join(surfaces)
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        pieces: list[list[int]] = [[] for _ in surfaces]
        ends = list(accumulate(map(len, surfaces)))
        word, last, reached = 0, len(ends) - 1, 0
        for token, (start, end) in zip(encoding.ids, encoding.offsets, strict=True):
            while word < last and ends[word] <= start:
                word += 1
            if start > reached and text[reached:start].strip():
                break
            reached = max(reached, end)
            pieces[word].append(self._accept(token, surfaces[word].strip()))
        if not pieces[0] or text[reached:].strip():
            lost = bisect_right(ends[:-1], reached)
            raise _lost_leaf(surfaces[lost].strip(), encoding.tokens)
        return list(map(tuple, pieces))

    def _encode_surface(self, surface: str) -> tuple[int, ...]:
        word = surface.strip()
        encoding = self._tokenizer.encode(surface, add_special_tokens=False)
        ids = tuple(self._accept(token, word) for token in encoding.ids)
        reached = len(surface) - len(surface.lstrip())
        for start, end in encoding.offsets:
            if start > reached:
                break
            reached = max(reached, end)
        if not word or reached < len(surface):
            raise _lost_leaf(word, encoding.tokens)
        return ids

    def _accept(self, token: int, word: str) -> int:
        """The id by which the model knows a token of a word; an error if it must not read it."""
        if token >= self._limit:
            if self.settings.unknown_id is None:
                raise UnusableTreeError(
                    "piece outside the vocabulary",
                    "expected pieces of the model's vocabulary, found "
                    f"{self._tokenizer.id_to_token(token)!r} in the word {word!r}",
                )
            return self.settings.unknown_id
        if token in self.settings.reserved_ids:
            raise UnusableTreeError(
                "special token among the words",
                f"expected words without special tokens of the tokenizer, found {word!r}",
            )
        if token == self.settings.unknown_id and not self.settings.allow_unknown:
            raise UnusableTreeError(
                "word outside the vocabulary",
                f"expected words of the closed vocabulary, found {word!r}",
            )
        return token


def _lost_leaf(word: str, tokens: Sequence[str]) -> UnusableTreeError:
    return UnusableTreeError(
        "tokens that do not match the leaf",
        f"expected tokens that cover the leaf {word!r}, found {list(tokens)}",
    )


def check_keeps_spaces(tokenizer: PreTrainedTokenizerFast, source: str | Path) -> None:
    """Refuse a tokenizer of pieces that adds or drops spaces when words are encoded one by one."""
    if is_word_level(tokenizer):
        return
    words = ["(", "the", " dog", ")"]
    pieces = tokenizer(words, add_special_tokens=False)["input_ids"]
    text = tokenizer.decode([token for ids in pieces for token in ids])
    if text != "".join(words):
        raise TokenizationError(
            f"{source}: expected a byte-level BPE or a word-level tokenizer, whose tokens of the "
            f"words {words} spell {''.join(words)!r}, found {text!r}"
        )
