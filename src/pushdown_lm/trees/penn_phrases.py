"""Phrases without a clause, from Universal Dependencies: NP, QP, ADJP, ADVP and PP."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import takewhile

from pushdown_lm.trees.nodes import (
    Child,
    Node,
    end_of,
    label_of_child,
    make_node,
    parts_of,
    start_of,
)
from pushdown_lm.trees.word_lists import word_lists

NOMINAL = frozenset({"NOUN", "PROPN", "PRON", "NUM", "SYM", "X", "DET"})
FUNCTION = frozenset({"aux", "cop", "case", "mark", "cc"})
"""Relations of words that mark others and head no phrase."""
WITHIN_NAME = frozenset({"case", "fixed", "flat", "goeswith"})
"""What belongs to a base NP wherever it stands: 's, the second part of a name."""
SHORT_MODIFIERS = frozenset({"amod", "advmod", "det", "nummod", "compound", "nmod", "appos"})
"""What belongs to the base NP before it if it is one word: something (amod) new."""
APPOSED = frozenset({"appos", "parataxis"})
OPENS_FRAGMENT = frozenset({"cc", "discourse", "vocative"})
"""What stands before a phrase without being part of it: oh , (NP my hat)."""


@dataclass(slots=True)
class Phrase:
    """What a word and all below it make, and what a coordination must know of it."""

    node: Child
    conjunctions: list[Child] = field(default_factory=list)
    """What joins it to what precedes it."""
    has_subject: bool = False
    has_chain: bool = False
    """Whether it has auxiliaries or a copula of its own."""
    has_marker: bool = False
    """Whether a subordinator stands before it."""

    @property
    def parts(self) -> list[Child]:
        """As it stands in a larger phrase."""
        return [*self.conjunctions, self.node]


class PhraseRules:
    """A sentence with the phrases made so far, and the rules for phrases without a clause.

    Words have the numbers 1, 2, ..., as in CoNLL-U. Leaf punctuation is set aside: it is in
    `punctuation`, not in `dependents`.
    """

    def __init__(
        self,
        words: Sequence[str],
        parts_of_speech: Sequence[str],
        heads: Sequence[int],
        relations: Sequence[str],
        language: str | None,
    ) -> None:
        self.words, self.lists = words, word_lists(language)
        self.heads = [0, *heads]
        self.kinds = ["", *parts_of_speech]
        self.full_relations = ["", *relations]
        self.relations = [relation.partition(":")[0] for relation in self.full_relations]
        has_dependents = set(heads)
        self.punctuation = [
            word
            for word in range(1, len(words) + 1)
            if self.relations[word] == "punct" and word not in has_dependents
        ]
        set_aside = set(self.punctuation)
        self.dependents: list[list[int]] = [[] for _ in self.heads]
        for word in range(1, len(words) + 1):
            if word not in set_aside:
                self.dependents[self.heads[word]].append(word)
        self.phrases: dict[int, Phrase] = {}

    # -------------------------------------------------------------- questions about words

    def text(self, word: int) -> str:
        return self.words[word - 1].lower()

    def nodes(self, words: Iterable[int]) -> list[Child]:
        """The phrases of these words, with what joins them to what precedes them."""
        return [part for word in words for part in self.phrases[word].parts]

    def pick(self, words: Iterable[int], *relations: str) -> list[int]:
        return [word for word in words if self.relations[word] in relations]

    def is_infinitive(self, word: int) -> bool:
        return any(
            self.kinds[marker] == "PART" for marker in self.pick(self.dependents[word], "mark")
        )

    def is_before_comma(self, word: int) -> bool:
        return end_of(self.phrases[word].node) + 1 in self.punctuation

    # -------------------------------------------------------------- phrases

    def phrase_of(self, head: int, own: Sequence[int]) -> Child:
        """The phrase of a head and some of its dependents, a clause left out of account.

        From the inside: the base, what is adjoined to it, appositions, coordination, case markers,
        coordination of PPs, and what precedes it all.
        """
        before = (word for word in own if word < head)
        opening = list(takewhile(lambda word: self.relations[word] in OPENS_FRAGMENT, before))
        own = own[len(opening) :]
        conjuncts = self.pick(own, "conj")
        cases = [word for word in self.pick(own, "case", "mark") if word < head]
        others = [word for word in own if word not in conjuncts and word not in cases]
        outer = [word for word in others if cases and word < cases[-1]]
        others = [word for word in others if word not in outer]
        kind = self._kind(head, others)
        base, adjoined = self._base(kind, head, others)
        label = self._label(kind, head, base)

        phrases = [self.phrases[word] for word in conjuncts]
        whole = [phrase for phrase in phrases if cases and label_of_child(phrase.node) == "PP"]
        parts = [part for phrase in phrases if phrase not in whole for part in phrase.parts]
        first = min((start_of(part) for part in parts), default=len(self.words) + 1)
        inner = [word for word in adjoined if word < first]
        shared = self.nodes(word for word in adjoined if word > first)
        is_flat = parts and not inner and all(isinstance(part, int) for part in parts)
        if is_flat:  # (NP the cats and dogs)
            node = self._adjoin(label, [*base, *parts], shared)
        else:
            appositions = [word for word in inner if self.relations[word] in APPOSED]
            modifiers = [word for word in inner if word not in appositions]
            node = self._adjoin(label, base, self.nodes(modifiers))
            node = make_node(label, [node, *self.nodes(appositions)])
            node = self._adjoin(label, [node, *parts], shared)
        for case in reversed(cases):
            node = self._mark(case, node)
        node = make_node("PP", [*self.nodes(outer), node])
        node = make_node("PP", [node, *(part for phrase in whole for part in phrase.parts)])
        if conjuncts:  # (NP both (NP the cat) and (NP the dog))
            pair = [word for word in opening if self.full_relations[word] == "cc:preconj"]
            opening = [word for word in opening if word not in pair]
            node = make_node(label, [*self.nodes(pair), *parts_of(node)]) if pair else node
        return make_node("FRAG", [*self.nodes(opening), node])

    def _base(self, kind: str, head: int, own: Sequence[int]) -> tuple[list[Child], list[int]]:
        """The head with its short modifiers, and the dependents to adjoin to it."""
        base: list[Child] = [head]
        adjoined: list[int] = []
        for word in own:
            if word < head:
                base += self._before(kind, word)
            elif not adjoined and self._belongs_to_base(kind, head, word):
                base += self.nodes([word])
            else:
                adjoined.append(word)
        return base, adjoined

    def _kind(self, head: int, own: Sequence[int]) -> str:
        """The part of speech; with a determiner an adjective is a noun: (NP a few)."""
        return "NOUN" if self.pick(own, "det") else self.kinds[head]

    def _label(self, kind: str, head: int, base: Sequence[Child]) -> str:
        if self.relations[head] in FUNCTION or self.relations[head] == "fixed":
            return "X"
        has_modifiers = any(start_of(part) < head for part in base)
        return {
            "ADJ": "ADJP",
            "ADV": "ADVP",
            "NUM": "QP" if has_modifiers else "NP",
        }.get(kind, "NP")

    def _before(self, kind: str, word: int) -> list[Child]:
        """What a modifier adds to the base that it precedes: compounds and quantities are flat."""
        node = self.phrases[word].node
        if kind == "NUM":
            return parts_of(node)
        is_flat = isinstance(node, Node) and all(isinstance(part, int) for part in node.children)
        is_compound = kind in NOMINAL and self.relations[word] in ("compound", "flat")
        return parts_of(node) if is_compound and is_flat else [node]

    def _belongs_to_base(self, kind: str, head: int, word: int) -> bool:
        """Whether what follows a head is within its base."""
        node, relation = self.phrases[word].node, self.relations[word]
        if kind in ("ADJ", "ADV"):  # but (ADVP (ADVP as well) (PP as ever))
            return self.text(start_of(node)) not in self.lists.comparison
        if relation == "acl":
            return self._is_complement(word)
        if relation == "appos" and word != head + 1:
            return False
        is_short = relation in SHORT_MODIFIERS and isinstance(node, int)
        return is_short or relation in WITHIN_NAME

    def _is_complement(self, clause: int) -> bool:
        """Whether a clause says what a noun is: (NP the wish to win), (NP the idea that ...)."""
        phrase = self.phrases[clause]
        is_relative = self.full_relations[clause] != "acl"
        has_conjunction = phrase.has_marker and phrase.has_subject
        return self.is_infinitive(clause) or (has_conjunction and not is_relative)

    def _mark(self, case: int, node: Child) -> Child:
        """A phrase with its case marker: (PP out (PP of town)), but (PP such as cats)."""
        first, *others = parts_of(self.phrases[case].node)
        text = " ".join(self.text(start_of(part)) for part in (first, *others))
        if len(others) == 1 and text not in self.lists.flat_adpositions:
            return make_node("PP", [first, make_node("PP", [*others, node])])
        return make_node("PP", [first, *others, node])

    def _adjoin(self, label: str, base: Sequence[Child], adjoined: Sequence[Child]) -> Child:
        return make_node(label, [make_node(label, base), *adjoined])
