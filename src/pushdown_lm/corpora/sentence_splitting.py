"""Where the sentences of running text end, by rule, in any script.

A sentence ends with . ! ? … or their like in other scripts, with the quotes and brackets that close
there, before white space (the full stops of Chinese and Japanese need none). It does not end

- before a lower-case letter;
- after an initial (J. Smith), or an abbreviation that stands before something (Dr., No.);
- after any other abbreviation (Inc., U.S.), unless a word that often begins sentences is next;
- after a number at the start (2. Results), and in some languages (German) after any number.

The rules are the same for text that is tokenized already (`he left . " Why ? "`).
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from pushdown_lm.trees.tree import Span


@dataclass(frozen=True)
class SentenceWords:
    """Words of one language that the rules ask for, in lower case and without a final period."""

    before: frozenset[str] = frozenset()
    """Abbreviations that stand before something, and so never end a sentence."""
    abbreviations: frozenset[str] = frozenset()
    """Abbreviations that may end one. Words with inner periods (U.S., z.B.) always count."""
    starters: frozenset[str] = frozenset()
    """Words that, with a capital, show that a sentence begins."""
    has_ordinals: bool = False
    """Whether a number with a period is an ordinal: 3. Oktober."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LANGUAGES = {
    "en": SentenceWords(
        before=_words(
            "mr mrs ms mx dr prof rev hon sen rep gov gen col maj capt cmdr lt sgt cpl adm pres "
            "fr st mt ft messrs mme mlle no nos vol fig figs eq sec ch pp ed eds vs v cf approx ca "
            "al e.g i.e viz"
        ),
        abbreviations=_words(
            "inc corp co ltd bros jr sr esq etc dept est ave blvd rd univ assn jan feb mar apr jun "
            "jul aug sep sept oct nov dec mon tue wed thu fri sat sun ph.d m.d b.a m.a"
        ),
        starters=_words(
            "the a an this that these those he she it they we i you there here his her its their "
            "our my in on at for from with by as if when while after before since although "
            "because but and or so yet however what who where why how all some many most no not"
        ),
    ),
    "de": SentenceWords(
        before=_words("dr prof hr fr st nr bd bzw ca evtl ggf inkl sog vgl z d s u abs art"),
        abbreviations=_words("usw etc jr"),
        starters=_words("der die das ein eine er sie es wir ich in im am auf mit und aber doch"),
        has_ordinals=True,
    ),
    "fr": SentenceWords(
        before=_words("m mm mme mlle dr pr st ste no vol p pp cf art"),
        abbreviations=_words("etc av"),
        starters=_words("le la les l un une des il elle ils elles ce cette nous vous je on en et"),
    ),
    "es": SentenceWords(
        before=_words("sr sra srta dr dra d da prof núm pág vol cf art ud uds"),
        abbreviations=_words("etc ee.uu"),
        starters=_words("el la los las un una es en y pero no se su esta este él ella ellos"),
    ),
}
"""Word lists by language code. Without one, only the rules that need no words apply."""

_CLOSING = "\"'”’»›)\\]}」』】）＂"
_END = re.compile(rf"[.!?…؟۔।॥።]+[{_CLOSING}]*(?=\s)|[。！？｡]+[{_CLOSING}]*")
_CLOSING_AFTER_SPACE = re.compile(r"\s+(\"|''|”|’|»|\)|\])(?=\s|$)")
_NEXT = re.compile(r"\s*[\"'“‘«‹¡¿(\[{`「『]*\s*([^\W_]*)")
_LAST_WORD = re.compile(r"(\S*)$")
_OPENING = "\"'“‘«‹(`[{"
_NUMBER = re.compile(r"\d+|[ivxlc]+|[a-z]", re.IGNORECASE)


def split_sentences(text: str, language: str | None = "en") -> list[Span]:
    """The half-open spans of the sentences of one paragraph, white space left out.

    >>> text = 'Dr. Smith left at 5 p.m. The dog barked. "Why?" she asked.'
    >>> [text[start:end] for start, end in split_sentences(text)]
    ['Dr. Smith left at 5 p.m.', 'The dog barked.', '"Why?" she asked.']
    """
    words = LANGUAGES.get(language or "", SentenceWords())
    spans: list[Span] = []
    start = 0
    for mark in _END.finditer(text):
        if mark.start() < start:
            continue
        end = mark.end()
        closing = _CLOSING_AFTER_SPACE.match(text, end)
        while closing and _closes(text[start:end], closing[1]):
            end = closing.end()
            closing = _CLOSING_AFTER_SPACE.match(text, end)
        if _ends_sentence(text, start, mark, end, words):
            spans.append((start, end))
            start = end
    spans.append((start, len(text)))
    return [stripped for span in spans if (stripped := _strip(text, span))[0] < stripped[1]]


def _closes(sentence: str, mark: str) -> bool:
    """Whether a mark that stands alone closes something that the sentence has opened."""
    opening = {"''": "``", "”": "“", "’": "‘", "»": "«", ")": "(", "]": "["}.get(mark)
    if opening is None:
        return sentence.count(mark) % 2 == 1
    return sentence.count(opening) > sentence.count(mark)


def _ends_sentence(
    text: str, start: int, mark: re.Match[str], end: int, words: SentenceWords
) -> bool:
    following = _NEXT.match(text, end)
    next_word = following[1] if following else ""
    if not mark[0].startswith("."):
        return not next_word[:1].islower()
    if next_word[:1].islower():
        return False
    found = _LAST_WORD.search(text[max(start, mark.start() - 40) : mark.start()])
    last = (found[1] if found else "").lstrip(_OPENING)
    if not last or mark[0].startswith(".."):
        return True
    lower = last.lower()
    if _NUMBER.fullmatch(last) and not text[start : mark.start()].removesuffix(last).strip():
        return False
    if words.has_ordinals and last.isdecimal():
        return False
    if lower in words.before:
        return not (next_word[:1].isupper() or next_word[:1].isdigit())
    if (len(last) == 1 and last.isupper() and last != "I") or (
        "." in last or lower in words.abbreviations
    ):
        return next_word.lower() in words.starters and next_word[:1].isupper()
    return True


def _strip(text: str, span: Span) -> Span:
    start, end = span
    while start < end and text[start].isspace():
        start += 1
    while end > start and text[end - 1].isspace():
        end -= 1
    return start, end
