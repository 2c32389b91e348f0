"""Words of trees to token ids, so that no token ever crosses the border of a tree's word.

The words of a tree are put back into running text (:func:`detokenize`), each with the white space
that stands before it, and every word is encoded by itself:

    words       do      n't     (       go      )       ``      now     ''
    in text     "do"    "n't"   " ("    "go"    ")"     ' "'    "now"   '"'

So each token belongs to one word by construction. The ids are those of the whole text wherever the
tokenizer's own pre-tokeniser splits at the borders of words. The BPE trained here splits where the
Penn Treebank does (`do|n't`, one punctuation mark at a time), so the two agree but for a few
sentences; GPT-2's does not (`don|'t`, `."`). The card of a dataset counts the sentences that
differ.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers

from pushdown_lm.errors import PushdownError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

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


# ------------------------------------------------------------------ words in running text

_QUOTES = {"``": '"', "''": '"', "`": "'"}
_OPENING = frozenset("([{“‘«$£€¥") | {"US$", "C$", "A$", "HK$", "``", "`"}
_CLOSING = frozenset(".,;:?!%)]}”’»'…") | {"...", "''"}
_CLITIC = re.compile(r"(?:n['’]t|['’](?:s|re|ve|ll|d|m))", re.IGNORECASE)
_FUSED = frozenset(
    {
        ("gon", "na"),
        ("wan", "na"),
        ("got", "ta"),
        ("gim", "me"),
        ("lem", "me"),
        ("'t", "is"),
        ("'t", "was"),
        ("d'", "ye"),
    }
)


def detokenize(words: Sequence[str]) -> list[str]:
    """The words as they stand in running text, each with the space before it.

    >>> "".join(detokenize(["He", "did", "n't", "say", "``", "no", "''", "(", "twice", ")", "."]))
    'He didn\\'t say "no" (twice).'

    The rules, for text in the Penn Treebank's tokenisation (whose `-LRB-` and `\\/` are decoded
    when trees are read):

    - The quotes `` and '' become ", and ` becomes '. A straight " opens and closes in turn;
      curly quotes show their side; a lone ' closes, as in `the dogs '`.
    - No space before a closing quote or bracket, before any of . , ; : ? ! % ... nor before a
      clitic: n't 's 're 've 'll 'd 'm (with ' or ’, in any case).
    - No space after an opening quote or bracket, nor after a currency sign.
    - The two halves of a fused word are joined: gon|na, wan|na, got|ta, gim|me, lem|me, 't|is,
      't|was, d'|ye. `can not` stays, since "can not" is written too.
    - All else is separated by one space. Dashes and slashes that a corpus cuts off (`well - known`)
      are not joined: nothing shows which side they belong to.
    """
    surfaces: list[str] = []
    quote_is_open = False
    joins = True
    previous = ""
    for word in words:
        if word == '"':
            opens, closes = not quote_is_open, quote_is_open
            quote_is_open = opens
        else:
            opens, closes = word in _OPENING, word in _CLOSING
        joins = (
            joins
            or closes
            or (_CLITIC.fullmatch(word) is not None)
            or (previous, word.lower()) in _FUSED
        )
        surface = _QUOTES.get(word, word)
        surfaces.append(surface if joins else " " + surface)
        joins = opens
        previous = word.lower()
    return surfaces


def separate(words: Sequence[str]) -> list[str]:
    """The words as they are, with one space between any two: text that stays tokenised."""
    return [words[0], *[" " + word for word in words[1:]]]


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
        if kind == "bpe" and argument.isdecimal() and int(argument) >= 256 + 3:
            return cls("bpe", vocab_size=int(argument))
        if text == "word":
            return cls("word")
        if match := re.fullmatch(r"word:min_count=([1-9]\d*)", text):
            return cls("word", min_count=int(match[1]))
        if Path(text).is_dir():
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

        return _with_special_tokens(AutoTokenizer.from_pretrained(folder), folder)
    for vocabulary, merges in BPE_FILES:
        if (folder / vocabulary).is_file() and (folder / merges).is_file():
            end = "<|endoftext|>"
            model = models.BPE.from_file(str(folder / vocabulary), str(folder / merges))
            tokenizer = Tokenizer(model)
            tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
            tokenizer.decoder = decoders.ByteLevel()
            if tokenizer.token_to_id(end) is None:
                raise TokenizationError(f"{folder / vocabulary}: expected an entry {end}")
            return _wrap(tokenizer, bos_token=end, eos_token=end, pad_token=end)
    names = ", or ".join(" with ".join(pair) for pair in BPE_FILES)
    raise TokenizationError(f"{folder}: expected tokenizer.json, or {names}, found none of them")


def _wrap(tokenizer: Tokenizer, **special_tokens: str) -> PreTrainedTokenizerFast:
    from transformers import PreTrainedTokenizerFast

    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special_tokens
    )


def _with_special_tokens(tokenizer: Any, folder: Path) -> PreTrainedTokenizerFast:
    """EOS stands in for a missing BOS or padding token, as in GPT-2."""
    if not tokenizer.is_fast or tokenizer.eos_token_id is None:
        found = "no EOS token" if tokenizer.is_fast else f"the slow {type(tokenizer).__name__}"
        raise TokenizationError(
            f"{folder}: expected a fast tokenizer with an EOS token, found {found}"
        )
    if tokenizer.bos_token_id is None:
        tokenizer.bos_token = tokenizer.eos_token
    if tokenizer.pad_token_id is None:
        tokenizer.pad_token = tokenizer.eos_token
    return tokenizer


def is_word_level(tokenizer: PreTrainedTokenizerFast) -> bool:
    """Whether the tokens of a tokenizer are whole words."""
    return isinstance(tokenizer.backend_tokenizer.model, models.WordLevel)


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
    restore_text: bool
    """Whether words are put back into running text, or kept apart by spaces."""
    allow_unknown: bool

    @classmethod
    def of(
        cls, tokenizer: PreTrainedTokenizerFast, *, restore_text: bool, allow_unknown: bool
    ) -> EncoderSettings:
        bos, eos, pad = tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id
        unknown = tokenizer.unk_token_id
        backend = json.loads(tokenizer.backend_tokenizer.to_str())
        backend.update(truncation=None, padding=None)
        return cls(
            tokenizer=json.dumps(backend, ensure_ascii=False),
            bos_id=bos,
            eos_id=eos,
            unknown_id=None if unknown in (bos, eos, pad) else unknown,
            reserved_ids=frozenset({bos, eos, pad}),
            restore_text=restore_text,
            allow_unknown=allow_unknown,
        )


class WordEncoder:
    """Encodes the words of a tree one by one, from a cache."""

    def __init__(self, settings: EncoderSettings) -> None:
        self.settings = settings
        self.surfaces = detokenize if settings.restore_text else separate
        self._tokenizer = Tokenizer.from_str(settings.tokenizer)
        self._pieces = lru_cache(maxsize=MAX_CACHED_WORDS)(self._encode_surface)

    def __call__(self, surfaces: Sequence[str]) -> list[tuple[int, ...]]:
        """The ids of each word, given as it stands in the text."""
        return list(map(self._pieces, surfaces))

    def encode_texts(self, texts: list[str]) -> list[list[int]]:
        """The ids of whole texts, which may have tokens across the borders of words."""
        batch = self._tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        return [encoding.ids for encoding in batch]

    def _encode_surface(self, surface: str) -> tuple[int, ...]:
        word = surface.strip()
        encoding = self._tokenizer.encode(surface, add_special_tokens=False)
        ids = encoding.ids
        if not self.settings.reserved_ids.isdisjoint(ids):
            raise UnusableTreeError(
                "special token among the words",
                f"expected words without special tokens of the tokenizer, found {word!r}",
            )
        if not self.settings.allow_unknown and self.settings.unknown_id in ids:
            raise UnusableTreeError(
                "word outside the vocabulary",
                f"expected words of the closed vocabulary, found {word!r}",
            )
        reached = len(surface) - len(surface.lstrip())
        for start, end in encoding.offsets:
            if start > reached:
                break
            reached = max(reached, end)
        if not word or reached < len(surface):
            raise UnusableTreeError(
                "tokens that do not match the leaf",
                f"expected tokens that cover the leaf {word!r}, found {encoding.tokens}",
            )
        return tuple(ids)


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
