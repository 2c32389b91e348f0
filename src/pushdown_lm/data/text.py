"""Words of trees and running text: how one becomes the other, and the rule a model was trained by.

The words of a tree are put back into running text by :func:`detokenize`, each with the white space
that stands before it, and :func:`penn_words` cuts running text into words again:

    words       do      n't     (       go      )       ``      now     ''
    in text     "do"    "n't"   " ("    "go"    ")"     ' "'    "now"   '"'

Which of it a model has seen is part of the model. :class:`TextRule` says so; it is saved in
`tokenizer_config.json` beside the vocabulary, and every scorer and evaluation follows it.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, NamedTuple

from pushdown_lm.errors import PushdownError
from pushdown_lm.trees.brackets import encode_word

_QUOTES = {"``": '"', "''": '"', "`": "'"}
_OPENING = frozenset("([{“‘«$£€¥") | {"US$", "C$", "A$", "HK$", "``", "`"}
_CLOSING = frozenset(".,;:?!%)]}”’»'…") | {"...", "''"}
_CLITIC = re.compile(r"(?:n['’]t|['’](?:s|re|ve|ll|d|m))", re.IGNORECASE)
_ABBREVIATION = re.compile(r".*\w\.", re.DOTALL)
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


def detokenize(words: Sequence[str], *, version: Literal[1, 2] = 2) -> list[str]:
    """The words as they stand in running text, each with the space before it.

    >>> "".join(detokenize(["He", "did", "n't", "say", "``", "no", "''", "(", "twice", ")", "."]))
    'He didn\\'t say "no" (twice).'

    The rules, for text in the Penn Treebank's tokenisation (whose `-LRB-` and `\\/` are decoded
    when trees are read):

    - The quotes `` and '' become ", and ` becomes '. A straight " opens and closes in turn;
      curly quotes show their side; a lone ' closes, as in `the dogs '`.
    - No space before a closing quote or bracket, before any of . , ; : ? ! % ... nor before a
      clitic: n't 's 're 've 'll 'd 'm (with ' or ’, in any case).
    - No space after an opening quote or bracket, nor after a currency sign, nor between # and a
      number.
    - The period after an abbreviation is the abbreviation's own: of `Inc. .` the second is empty.
    - The two halves of a fused word are joined: gon|na, wan|na, got|ta, gim|me, lem|me, 't|is,
      't|was, d'|ye. `can not` stays, since "can not" is written too.
    - All else is separated by one space. Dashes and slashes that a corpus cuts off (`well - known`)
      are not joined: nothing shows which side they belong to.

    Version 1, by which older datasets were made, has `Inc..` and `# 5`.
    """
    surfaces: list[str] = []
    quote_is_open = False
    joins = True
    previous = ""
    for word in words:
        if version > 1 and word == "." and _ABBREVIATION.fullmatch(previous):
            surfaces.append("")
            continue
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
            or (version > 1 and previous == "#" and word[:1].isdecimal())
        )
        surface = _QUOTES.get(word, word)
        surfaces.append(surface if joins else " " + surface)
        joins = opens
        previous = word.lower()
    return surfaces


def separate(words: Sequence[str]) -> list[str]:
    """The words as they are, with one space between any two: text that stays tokenised."""
    return [words[0], *[" " + word for word in words[1:]]]


# ------------------------------------------------------------------ running text to words


class PlacedWord(NamedTuple):
    """A word and its half-open span of characters in the text."""

    word: str
    start: int
    end: int


_LEADING = re.compile(r"``|''|--+|\.\.\.|(?:US|HK|[AC])?\$|[\"“”‘«(\[{<£€¥#]|['`](?=[^\W\d_]{3})")
_TRAILING = re.compile(r"(?:''|--+|\.\.\.|[\"“”’»)\]}>,;:?!%…]|(?<=[^\W\d_])')$")
_CLITIC_END = re.compile(r"(?<=\w)(?:n['’]t|['’](?:s|re|ve|ll|d|m))$", re.IGNORECASE)
_MARK = re.compile(r"[^\w\s]+|n['’]t|['’](?:s|re|ve|ll|d|m|t)|d['’]", re.IGNORECASE)
_INNER = re.compile(r"(?<=\w)(--+|\.\.\.|…|[?!;:,](?=[^\W\d_]))(?=\w)")
_FUSED_HALVES = {first + second: len(first) for first, second in _FUSED} | {"cannot": 3}


def penn_words(text: str, *, penn_quotes: bool = True) -> list[PlacedWord]:
    """Running text cut where the Penn Treebank cuts it; text that is tokenised stays as it is.

    >>> [word for word, _, _ in penn_words('He didn\\'t say "no" (twice).')]
    ['He', 'did', "n't", 'say', '``', 'no', "''", '(', 'twice', ')', '.']

    Periods are cut off at the end of the text only, so that `Mr.` stays whole. With `penn_quotes`
    a straight " becomes `` and '' in turn.
    """
    words: list[PlacedWord] = []
    chunks = list(re.finditer(r"\S+", text))
    for number, chunk in enumerate(chunks):
        _cut(words, chunk.group(), chunk.start(), is_last=number == len(chunks) - 1)
    if not penn_quotes:
        return words
    quoted, is_open = [], False
    for placed in words:
        if placed.word == '"':
            is_open = not is_open
            placed = placed._replace(word="``" if is_open else "''")
        quoted.append(placed)
    return quoted


def _cut(words: list[PlacedWord], chunk: str, start: int, *, is_last: bool) -> None:
    """Append the words of a run of characters without white space."""
    tail: list[PlacedWord] = []
    end = start + len(chunk)

    def is_word() -> bool:
        return len(chunk) < 2 or (_MARK.fullmatch(chunk) is not None and not chunk.startswith('"'))

    while not is_word() and (mark := _LEADING.match(chunk)):
        words.append(PlacedWord(mark[0], start, start + len(mark[0])))
        start, chunk = start + len(mark[0]), chunk[len(mark[0]) :]
    while not is_word():
        if mark := _TRAILING.search(chunk) or _CLITIC_END.search(chunk):
            cut = len(mark[0])
        elif is_last and chunk.endswith(".") and not chunk.endswith(".."):
            cut = 1
        else:
            break
        tail.append(PlacedWord(chunk[-cut:], end - cut, end))
        end, chunk = end - cut, chunk[:-cut]
    if (half := _FUSED_HALVES.get(chunk.lower())) is not None:
        words.append(PlacedWord(chunk[:half], start, start + half))
        start, chunk = start + half, chunk[half:]
    for part in _INNER.split(chunk):
        if part:
            words.append(PlacedWord(part, start, start + len(part)))
            start += len(part)
    words.extend(reversed(tail))


# ------------------------------------------------------------------ the rule of a model

RULE_KEY = "pushdown_text"
"""The key of `tokenizer_config.json` that holds the rule."""


@dataclass(frozen=True)
class TextRule:
    """How the words of a sentence become tokens."""

    text: Literal["detokenized", "tokenized"]
    """Whether words are put back into running text, or kept apart by spaces."""
    unit: Literal["sentence", "word"]
    """What is encoded at once. A token of a sentence may reach into the next word, as GPT-2's
    `Ġhasn` in has|n't; it belongs to the word it starts in. Word vocabularies are encoded word by
    word, and so was all data before there were rules."""
    escaped: str = ""
    """Characters that the text writes as the Penn Treebank's files do: `(` as `-LRB-`."""
    vocabulary: int | None = None
    """Pieces of the tokenizer from this id on are not in the model's vocabulary: they become its
    unknown token, or without one are an error. None where the two have the same entries."""

    @classmethod
    def of(cls, tokenizer: Any, *, is_word_level: bool) -> TextRule:
        """The rule that is saved with a tokenizer, or that of the time before there were rules."""
        saved = tokenizer.init_kwargs.get(RULE_KEY)
        if saved is None:
            return cls("tokenized" if is_word_level else "detokenized", "word")
        try:
            rule = cls(**saved)
        except TypeError:
            rule = cls("", "")  # type: ignore[arg-type]
        if (
            rule.text not in ("detokenized", "tokenized")
            or rule.unit not in ("sentence", "word")
            or not isinstance(rule.escaped, str)
            or not isinstance(rule.vocabulary, int | None)
        ):
            raise PushdownError(
                f"{tokenizer.name_or_path or 'tokenizer'}: tokenizer_config.json: {RULE_KEY}: "
                'expected {"text": "detokenized" or "tokenized", "unit": "sentence" or "word"}, '
                f"got {saved!r}"
            )
        return rule

    def save_in(self, tokenizer: Any) -> None:
        """Make the rule part of what `tokenizer.save_pretrained` writes."""
        rule = asdict(self)
        for name in ("escaped", "vocabulary"):
            if not rule[name]:
                del rule[name]
        tokenizer.init_kwargs[RULE_KEY] = rule

    def surfaces(self, words: Sequence[str]) -> list[str]:
        """The words as the model reads them, each with the space before it."""
        if self.escaped:
            words = [encode_word(word, self.escaped) for word in words]
        if self.text == "tokenized":
            return separate(words)
        return detokenize(words, version=1 if self.unit == "word" else 2)
