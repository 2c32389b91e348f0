"""Words that the rules from dependencies to constituents ask for, for some languages."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class WordLists:
    """Words of one language, in lower case."""

    relative: frozenset[str] = frozenset()
    """Pronouns and adverbs that open a relative clause or a question."""
    negation: frozenset[str] = frozenset()
    comparison: frozenset[str] = frozenset()
    """Markers of what something is compared with."""
    flat_adpositions: frozenset[str] = frozenset()
    """Adpositions of two words that stand beside their noun phrase."""


def _words(text: str) -> frozenset[str]:
    return frozenset(text.split())


LANGUAGES = {
    "en": WordLists(
        relative=_words(
            "who whom whose which what that where when why how whoever whatever whichever wherever "
            "however whether"
        ),
        negation=_words("not n't n’t never"),
        comparison=_words("as than"),
        flat_adpositions=frozenset({"because of", "instead of", "such as"}),
    ),
    "de": WordLists(
        relative=_words(
            "der die das den dem deren dessen denen welcher welche welches welchen welchem wer wen "
            "wem wessen was wo wohin woher wann warum wieso weshalb wie ob wofür womit worauf worin"
        ),
        negation=_words("nicht nie niemals"),
    ),
    "fr": WordLists(
        relative=_words(
            "qui que qu' quoi dont où lequel laquelle lesquels lesquelles duquel auquel quel "
            "quelle quels quelles quand comment pourquoi combien"
        ),
        negation=_words("ne n' pas jamais plus point"),
    ),
    "es": WordLists(
        relative=_words(
            "que quien quienes cual cuales cuyo cuya cuyos cuyas donde cuando como qué quién "
            "quiénes cuál cuáles dónde cuándo cómo cuánto cuánta"
        ),
        negation=_words("no nunca jamás"),
    ),
}


def word_lists(language: str | None) -> WordLists:
    """The lists of a language, empty for one that has none."""
    return LANGUAGES.get(language or "", WordLists())
