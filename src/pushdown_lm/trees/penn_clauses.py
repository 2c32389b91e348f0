"""Clauses, from Universal Dependencies: VP, S and SBAR."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise, takewhile

from pushdown_lm.trees.nodes import Child, end_of, label_of_child, make_node, parts_of, start_of
from pushdown_lm.trees.penn_phrases import Phrase, PhraseRules

VERBAL = frozenset({"VERB", "AUX"})
SUBJECTS = frozenset({"nsubj", "csubj", "expl"})
CHAIN = frozenset({"aux", "cop"})
OF_PREDICATE = frozenset(
    {"det", "amod", "nummod", "compound", "nmod", "clf", "flat", "fixed", "goeswith", "appos"}
    | {"acl", "case"}
)
"""What belongs to the phrase of a predicate with a copula, not to its clause."""
CLAUSES = frozenset({"advcl", "ccomp", "parataxis"})
OPENS_SENTENCE = frozenset(
    {"cc", "discourse", "advcl", "advmod", "vocative", "parataxis", "dislocated", "reparandum"}
)
"""What precedes coordinated clauses without being part of the first: so (S I sang) and (S ...)."""


@dataclass(slots=True)
class _Roles:
    """What the dependents of a clause's head do in it, each list in the order of the words."""

    is_verb: bool
    """Whether the head is a verb, not a predicate with a copula."""
    subjects: list[int]
    chain: list[int]
    """Auxiliaries, the copula and the particle of an infinitive."""
    markers: list[int]
    """Subordinators."""
    predicate: list[int]
    """What belongs to the phrase of a predicate with a copula."""
    inner: list[int]
    """Conjuncts of the verb and what follows it: will (VP (VP sing songs) and dance)."""
    outer: list[int]
    """Conjuncts of the VP with its auxiliaries: (VP (VP will sing) and (VP can dance))."""
    clausal: list[int]
    """Clauses joined to the whole clause."""
    before: list[int]
    """All else that precedes the head."""
    within: list[int]
    """All else that follows the head, before the conjuncts."""
    shared: list[int]
    """What follows the conjuncts."""


class ClauseRules(PhraseRules):
    """The rules for clauses."""

    def is_clause(self, head: int) -> bool:
        own = {self.relations[word] for word in self.dependents[head]}
        return self.kinds[head] in VERBAL or not own.isdisjoint(SUBJECTS | CHAIN)

    def clause(self, head: int, own: Sequence[int]) -> Phrase:
        copulas = self.pick(own, "cop")
        if copulas and any(self.full_relations[word].endswith(":outer") for word in own):
            return self._clause_of_clause(head, own, copulas[0])
        if copulas and copulas[0] > head:
            return self._clause_after_predicate(head, own, copulas[0])
        roles = self._roles(head, own, is_verb=self.kinds[head] in VERBAL and not copulas)
        verb = self._verb_phrase(head, roles)
        start = roles.chain[0] if roles.chain else head
        left = [word for word in roles.before if word < start]
        opening = self._opening(left) if roles.clausal else []
        left = left[len(opening) :]
        joined = opening if roles.inner or roles.outer else [*opening, *roles.shared]
        if roles.markers:
            opened = [word for word in left if word < roles.markers[0]]
            marked = [word for word in roles.clausal if self.phrases[word].has_marker]
            unmarked = [word for word in roles.clausal if word not in marked]
            node = self._close(head, [word for word in left if word not in opened], verb)
            node = self._coordinate("S", node, unmarked)
            node = self._subordinate(opened, roles.markers, node)
            node = self._coordinate("SBAR", node, marked, joined)
        else:
            node = self._coordinate("S", self._close(head, left, verb), roles.clausal, joined)
        return Phrase(
            node,
            has_subject=bool(roles.subjects),
            has_chain=bool(roles.chain),
            has_marker=bool(roles.markers),
        )

    # -------------------------------------------------------------- who does what

    def _roles(self, head: int, own: Sequence[int], *, is_verb: bool) -> _Roles:
        chain = [word for word in own if word < head and self._is_in_chain(word)]
        start = chain[0] if chain else head
        markers = self.pick(own, "mark", "case") if is_verb else self.pick(own, "mark")
        markers = [word for word in markers if word < start]
        conjuncts = self.pick(own, "conj")
        predicate = [
            word
            for word in own
            if not is_verb
            and word not in markers
            and not (chain and word <= chain[-1])
            and (self._joins_predicate(word) or self._is_of_predicate(head, word))
        ]
        conjuncts = [word for word in conjuncts if word not in predicate]
        clausal = [word for word in conjuncts if self.phrases[word].has_subject]
        clausal += [word for word in own if word > head and self._stands_beside(word)]
        verbal = [word for word in conjuncts if word not in clausal]
        outer = [word for word in verbal if self.phrases[word].has_chain]
        inner = [word for word in verbal if word not in outer]
        first = min([*verbal, *clausal], default=len(self.words) + 1)
        taken = {*chain, *markers, *predicate, *verbal, *clausal}
        free = [word for word in own if word not in taken]
        return _Roles(
            is_verb=is_verb,
            subjects=self.pick(own, *SUBJECTS),
            chain=chain,
            markers=markers,
            predicate=predicate,
            inner=inner,
            outer=outer,
            clausal=clausal,
            before=[word for word in free if word < head],
            within=[word for word in free if head < word < first],
            shared=[word for word in free if head < word and first < word],
        )

    def _is_in_chain(self, word: int) -> bool:
        relation = self.relations[word]
        return relation in CHAIN or (relation == "mark" and self.kinds[word] == "PART")

    def _is_negation(self, word: int) -> bool:
        return self.text(word) in self.lists.negation

    def _is_of_predicate(self, head: int, word: int) -> bool:
        """Whether a dependent of a predicate with a copula is part of its phrase."""
        relation = self.relations[word]
        if relation in OF_PREDICATE or self.full_relations[word] == "advmod:emph":
            return True
        if self.kinds[head] not in ("ADJ", "ADV"):
            return False
        if word < head:  # very happy
            return relation == "advmod" and not self._is_negation(word)
        if relation == "obl":  # fond of cats
            return start_of(self.phrases[word].node) == head + 1
        if relation in ("advcl", "csubj"):
            return self.is_infinitive(word)
        return relation in ("obj", "xcomp", "ccomp")

    def _joins_predicate(self, word: int) -> bool:
        """Whether a word is a conjunct of the predicate's phrase: is (ADJP tired and hungry)."""
        return self.relations[word] == "conj" and not self.is_clause(word)

    def _stands_beside(self, word: int) -> bool:
        """Whether a clause is added to another without a conjunction."""
        return self.relations[word] == "parataxis" and self.is_clause(word)

    # -------------------------------------------------------------- from the verb outwards

    def _verb_phrase(self, head: int, roles: _Roles) -> list[Child]:
        """The VP, with one more for every auxiliary.

        Where the subject follows the first auxiliary, that auxiliary and what stands between
        are the clause's own children, as is the VP.
        """
        chain, before = roles.chain, roles.before
        within = self._complements(roles.within)
        beside_copula: list[Child] = []
        if roles.is_verb:
            adverbs = self._adverbs_of_infinitive(roles)
            before = [word for word in before if word not in adverbs]
            verb = make_node("VP", [*self.nodes(adverbs), head, *within])
        else:
            verb = self.phrase_of(head, roles.predicate)
            if chain:
                beside_copula = within
            else:
                verb = make_node("VP", [verb, *within])
        if roles.inner:
            verb = self._coordinate("VP", verb, roles.inner, roles.shared)
        is_inverted = bool(chain) and any(chain[0] < word < head for word in roles.subjects)
        beside_verb: list[Child] = []
        for auxiliary, following in reversed(list(pairwise([*chain, head]))):
            between = [word for word in before if auxiliary < word < following]
            parts = [*self.nodes([auxiliary, *between]), *beside_copula]
            beside_copula = []
            if is_inverted and auxiliary == chain[0]:
                beside_verb = parts
            else:
                verb = make_node("VP", [*parts, verb])
        if roles.outer:
            verb = self._coordinate("VP", verb, roles.outer, [] if roles.inner else roles.shared)
        return [*beside_verb, verb]

    def _adverbs_of_infinitive(self, roles: _Roles) -> list[int]:
        """Adverbs between the particle of an infinitive and the verb: to (VP slowly read it)."""
        if not roles.chain or self.relations[roles.chain[-1]] != "mark":
            return []
        between = [word for word in roles.before if word > roles.chain[-1]]
        return [word for word in self.pick(between, "advmod") if not self._is_negation(word)]

    def _complements(self, words: Sequence[int]) -> list[Child]:
        """What follows a verb; an object and its predicate make a small clause."""
        nodes: list[Child] = []
        for before, word in pairwise([0, *words]):
            parts = self.nodes([word])
            is_predicate = self.relations[word] == "xcomp" and self.kinds[word] != "ADV"
            if is_predicate and self.relations[before] == "obj":
                parts = [make_node("S", [nodes.pop(), *parts])]
            nodes += parts
        return nodes

    def _close(self, head: int, left: Sequence[int], verb: Sequence[Child]) -> Child:
        """The clause around its VP: the subject and what precedes it, a relative phrase."""
        relative = [word for word in left[:1] if self._is_relative(head, word)]
        node = make_node("S", [*self.nodes(left[len(relative) :]), *verb])
        return make_node("SBAR", [*self.nodes(relative), node])

    def _is_relative(self, head: int, word: int) -> bool:
        """Whether a phrase at the front is a relative or an interrogative one."""
        if self.relations[word] in CLAUSES:
            return False
        node = self.phrases[word].node
        text = self.text(start_of(node))
        if text not in self.lists.relative and label_of_child(node) == "PP":
            text = self.text(end_of(node))
        return text in self.lists.relative and (
            text != "that" or self.relations[head] in ("acl", "ccomp", "advcl", "csubj")
        )

    def _subordinate(self, opened: Sequence[int], markers: Sequence[int], node: Child) -> Child:
        """A clause with its subordinators: (SBAR just because (S ...)), but yes , (SBAR ...)."""
        outside = [word for word in opened if self.is_before_comma(word)]
        inside = [word for word in opened if word not in outside]
        parts = [part for marker in self.nodes(markers) for part in parts_of(marker)]
        node = make_node("SBAR", [*self.nodes(inside), *parts, node])
        return make_node("S", [*self.nodes(outside), node])

    def _opening(self, left: Sequence[int]) -> list[int]:
        return list(takewhile(lambda word: self.relations[word] in OPENS_SENTENCE, left))

    def _coordinate(
        self, label: str, node: Child, conjuncts: Sequence[int], shared: Sequence[int] = ()
    ) -> Child:
        return make_node(label, [node, *self.nodes(conjuncts), *self.nodes(shared)])

    # -------------------------------------------------------------- clauses around a copula

    def _clause_after_predicate(self, head: int, own: Sequence[int], copula: int) -> Phrase:
        """A clause whose predicate precedes its copula: what (S that was), here is (NP the key)."""
        joined = [
            word for word in own if self.relations[word] == "conj" or self._stands_beside(word)
        ]
        own = [word for word in own if word not in joined]
        subjects = self.pick(own, *SUBJECTS)
        start = min([copula, *subjects])
        of_predicate = [word for word in own if word < start and self._is_of_predicate(head, word)]
        predicate = self.phrase_of(head, of_predicate)
        rest = [word for word in own if word not in of_predicate]
        opening = self.nodes(word for word in rest if word < head)
        clause = self.nodes(word for word in rest if word > head)
        if self.text(start_of(predicate)) in self.lists.relative:
            node = make_node("SBAR", [*opening, predicate, make_node("S", clause)])
        else:
            node = make_node("S", [*opening, predicate, *clause])
        return Phrase(self._coordinate("S", node, joined), has_subject=bool(subjects))

    def _clause_of_clause(self, head: int, own: Sequence[int], copula: int) -> Phrase:
        """A clause whose predicate is a clause: the problem is (SBAR that ...)."""
        left = [word for word in own if word < copula]
        predicate = self.clause(head, [word for word in own if word > copula]).node
        verb = make_node("VP", [*self.nodes([copula]), predicate])
        return Phrase(self._close(head, left, [verb]), has_subject=True)
