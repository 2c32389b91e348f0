"""Universal Dependencies to constituents in the manner of the Penn Treebank, by rule.

    She often reads a book on syntax .      (S She often (VP reads (NP (NP a book)
    nsubj(reads, She) advmod(reads, often)        (PP on syntax))) .)
    det(book, a) obj(reads, book) ...

The rules read relations and coarse parts of speech only, so they serve any language; a few word
lists (:mod:`pushdown_lm.trees.word_lists`) tell relative pronouns and negations apart.

- A noun with what stands before it is a base NP. What follows it is adjoined, all at one level:
  (NP (NP the cat) (PP on the mat) (SBAR that sleeps)).
- A case marker before a phrase makes a PP, after it (English 's) closes the base NP.
- A verb and all that follows it are a VP; every auxiliary before it, and the particle of an
  infinitive, adds a VP of its own. Before the first verb of the chain everything is a child of the
  clause. A copula is such a verb, and its complement the phrase of the predicate.
- Where the subject follows the first auxiliary, the clause is flat: (SQ did (NP you) (VP see it)).
- A subordinator or a relative phrase makes an SBAR of itself and the clause.
- Conjuncts, conjunctions and commas are children of one node: of nouns, of VPs where the later
  conjuncts have no subject of their own, of clauses where they have.
- Punctuation belongs to the smallest constituent around it, at the ends of the sentence to the
  whole; what stands in brackets is a constituent with its brackets.

Every phrase is made from those of its dependents, bottom up, so no sentence is too deep.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from pushdown_lm.trees.nodes import (
    Child,
    Node,
    end_of,
    label_of_child,
    make_node,
    parts_of,
    post_order,
    start_of,
)
from pushdown_lm.trees.punctuation import insert_punctuation
from pushdown_lm.trees.tree import Tree
from pushdown_lm.trees.word_lists import word_lists

SUBJECTS = frozenset({"nsubj", "csubj", "expl"})
CHAIN = frozenset({"aux", "cop"})
OF_PREDICATE = frozenset(
    {"det", "amod", "nummod", "compound", "nmod", "clf", "flat", "fixed", "goeswith", "appos"}
    | {"acl", "case"}
)
"""What belongs to the phrase of a predicate with a copula, not to its clause."""
NOMINAL = frozenset({"NOUN", "PROPN", "PRON", "NUM", "SYM", "X", "DET"})
WITHIN_WORD = frozenset({"fixed", "flat", "goeswith"})
OUTSIDE = frozenset({"parataxis", "vocative", "discourse", "dislocated", "reparandum"})
"""What follows a verb without belonging to its VP."""


@dataclass(slots=True)
class _Phrase:
    """What a word and all below it make, and what a coordination must know of it."""

    node: Child
    conjunctions: list[Child] = field(default_factory=list)
    """What joins a conjunct to those before it."""
    has_subject: bool = False
    has_chain: bool = False
    """Whether it has auxiliaries or a copula of its own."""
    has_marker: bool = False
    """Whether a subordinator stands before it."""

    @property
    def parts(self) -> list[Child]:
        """As a conjunct stands in its coordination."""
        return [*self.conjunctions, self.node]


def penn_constituents(
    words: Sequence[str],
    parts_of_speech: Sequence[str],
    heads: Sequence[int],
    relations: Sequence[str],
    language: str | None = "en",
) -> Tree:
    """The labeled n-ary tree of a projective dependency tree.

    Args:
        parts_of_speech: universal ones, such as NOUN.
        heads: of each word its head's number, from 1, and 0 for the root.
        relations: universal ones, with subtypes or without.
        language: the code of a language whose word lists help.

    >>> tree = penn_constituents(
    ...     ["She", "reads", "a", "book", "."],
    ...     ["PRON", "VERB", "DET", "NOUN", "PUNCT"],
    ...     [2, 0, 4, 2, 2],
    ...     ["nsubj", "root", "det", "obj", "punct"],
    ... )
    >>> tree.spans, tree.labels
    (((2, 4), (1, 4), (0, 5)), ('NP', 'VP', 'S'))
    """
    return _Sentence(words, parts_of_speech, heads, relations, language).tree()


class _Sentence:
    """One sentence on its way from dependencies to constituents."""

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
        left_out = set(self.punctuation)
        self.dependents: list[list[int]] = [[] for _ in self.heads]
        for word in range(1, len(words) + 1):
            if word not in left_out:
                self.dependents[self.heads[word]].append(word)
        self.phrases: dict[int, _Phrase] = {}

    def tree(self) -> Tree:
        order = list(self.dependents[0])
        for word in order:
            order += self.dependents[word]
        for word in reversed(order):
            self.phrases[word] = self._phrase(word)
        root = make_node("S", [self.phrases[word].node for word in self.dependents[0]])
        root = insert_punctuation(self.words, root, self.punctuation)
        spans, labels = [], []
        for node in post_order(root):
            spans.append((node.start - 1, node.end))
            labels.append(node.label)
        return Tree(tuple(self.words), tuple(spans), tuple(labels) or ("X",))

    # -------------------------------------------------------------- what a word makes

    def _phrase(self, head: int) -> _Phrase:
        own = self.dependents[head]
        relations = {self.relations[word] for word in own}
        conjunctions = [
            word
            for word in own
            if self.relations[word] == "cc" and word < head and self.relations[head] == "conj"
        ]
        rest = [word for word in own if word not in conjunctions]
        is_clause = self.kinds[head] in ("VERB", "AUX") or relations & (SUBJECTS | CHAIN)
        if is_clause and self.relations[head] not in ("aux", "cop", "case", "mark", "cc"):
            phrase = self._clause(head, rest)
        else:
            phrase = _Phrase(self._phrase_of(head, rest))
        phrase.conjunctions = [self.phrases[word].node for word in conjunctions]
        return phrase

    def _nodes(self, words: Iterable[int]) -> list[Child]:
        return [self.phrases[word].node for word in words]

    def _pick(self, words: Iterable[int], *relations: str) -> list[int]:
        return [word for word in words if self.relations[word] in relations]

    # -------------------------------------------------------------- phrases without a clause

    def _phrase_of(self, head: int, own: Sequence[int]) -> Child:
        """An NP, ADJP, ADVP or PP: base, what is adjoined, coordination, case markers."""
        kind = self.kinds[head]
        conjuncts = self._pick(own, "conj")
        cases = [word for word in self._pick(own, "case", "mark") if word < head]
        others = [word for word in own if word not in conjuncts and word not in cases]
        outer = [word for word in others if cases and word < cases[-1]]
        before = [word for word in others if word < head and word not in outer]
        after = [word for word in others if word > head]
        base: list[Child] = [head]
        for word in before:
            base += self._before_noun(word) if kind in NOMINAL else self._before_adjective(word)
        adjoined: list[int] = []
        for word in after:
            if self._belongs_to_base(head, word, adjoined):
                base.append(self.phrases[word].node)
            else:
                adjoined.append(word)
        label = {"ADJ": "ADJP", "ADV": "ADVP", "NUM": "QP" if before else "NP"}.get(kind, "NP")
        if self.relations[head] in ("case", "mark", "cc", "aux", "cop", "fixed"):
            label = "X"
        phrases = [self.phrases[word] for word in conjuncts]
        whole = [phrase for phrase in phrases if label_of_child(phrase.node) == "PP" and cases]
        parts = [part for phrase in phrases if phrase not in whole for part in phrase.parts]
        first = min((start_of(part) for part in parts), default=len(self.words) + 1)
        is_flat = parts and all(isinstance(part, int) for part in parts)
        if is_flat and all(word > first for word in adjoined):
            node = self._adjoin(label, [*base, *parts], self._nodes(adjoined))
        else:
            inner = [word for word in adjoined if word < first]
            node = self._adjoin(label, base, self._nodes(inner))
            if parts:
                shared = [word for word in adjoined if word > first]
                node = make_node(label, [node, *parts, *self._nodes(shared)])
        if cases or outer:
            markers = [part for case in self._nodes(cases) for part in parts_of(case)]
            node = make_node("PP", [*self._nodes(outer), *markers, node])
        if whole:
            node = make_node("PP", [node, *(part for phrase in whole for part in phrase.parts)])
        return node

    def _before_noun(self, word: int) -> list[Child]:
        """What a modifier adds to a base NP: compounds and coordinated adjectives are flat."""
        node = self.phrases[word].node
        if isinstance(node, int):
            return [node]
        is_flat = all(isinstance(part, int) for part in node.children)
        if self.relations[word] in ("compound", "flat") and is_flat:
            return node.children
        if self.relations[word] == "amod" and is_flat and self._pick(self.dependents[word], "conj"):
            return node.children
        return [node]

    def _before_adjective(self, word: int) -> list[Child]:
        """What a modifier adds to an ADJP or ADVP: (ADJP far less active) is flat."""
        node = self.phrases[word].node
        is_flat = isinstance(node, Node) and all(isinstance(part, int) for part in node.children)
        return parts_of(node) if self.relations[word] == "advmod" and is_flat else [node]

    def _belongs_to_base(self, head: int, word: int, adjoined: Sequence[int]) -> bool:
        """Whether what follows a head is within its base: 's, a second part of a name, `else`."""
        if self.kinds[head] in ("ADJ", "ADV"):
            return not adjoined
        relation = self.relations[word]
        if adjoined:
            return False
        if relation == "acl" and self._is_infinitive(word):
            return True
        return relation in ("case", *WITHIN_WORD) or (
            relation in ("amod", "advmod", "det", "nummod", "compound", "nmod", "appos")
            and isinstance(self.phrases[word].node, int)
            and (relation != "appos" or word == head + 1)
        )

    def _adjoin(self, label: str, base: Sequence[Child], adjoined: Sequence[Child]) -> Child:
        node = make_node(label, base)
        return make_node(label, [node, *adjoined]) if adjoined else node

    # -------------------------------------------------------------- clauses

    def _clause(self, head: int, own: Sequence[int]) -> _Phrase:
        copulas = self._pick(own, "cop")
        if copulas and any(self.full_relations[word].endswith(":outer") for word in own):
            return self._clause_of_clause(head, own, copulas[0])
        is_verb = self.kinds[head] in ("VERB", "AUX") and not copulas
        chain = [word for word in own if word < head and self._is_in_chain(word)]
        subjects = self._pick(own, *SUBJECTS)
        markers = [
            word
            for word in self._pick(own, "mark", *(["case"] if is_verb else []))
            if word < head and word not in chain and not (chain and word > chain[0])
        ]
        conjuncts = self._pick(own, "conj")
        taken = {*chain, *markers, *conjuncts}
        if is_verb:
            core: list[Child] = [head]
        else:
            predicate = [
                word for word in own if word not in taken and self._of_predicate(head, word)
            ]
            nominal = [word for word in conjuncts if self._joins_predicate(word)]
            conjuncts = [word for word in conjuncts if word not in nominal]
            taken |= set(predicate)
            core = [self._phrase_of(head, [*predicate, *nominal])]
        free = [word for word in own if word not in taken]
        before = [word for word in free if word < head]
        after = [word for word in free if word > head]
        outside = [word for word in after if self.relations[word] in OUTSIDE]
        phrases = {word: self.phrases[word] for word in conjuncts}
        clausal = [word for word in conjuncts if phrases[word].has_subject]
        clausal += [word for word in outside if self._stands_beside(word)]
        outside = [word for word in outside if word not in clausal]
        after = [word for word in after if word not in clausal and word not in outside]
        outer = [word for word in conjuncts if word not in clausal and phrases[word].has_chain]
        inner = [word for word in conjuncts if word not in clausal and word not in outer]

        first = min([*inner, *outer, *clausal], default=len(self.words) + 1)
        within = self._complements([word for word in after if word < first])
        if chain:  # an adverb right before the verb is in its VP: to (VP slowly read)
            adverbs = [word for word in before if word > chain[-1] and self._modifies_verb(word)]
            before = [word for word in before if word not in adverbs]
            core = [*self._nodes(adverbs), *core] if is_verb else core
            within = [*within, *(self._nodes(adverbs) if not is_verb else [])]
        shared = [word for word in after if word > first]
        verb = core[0] if not is_verb and chain else make_node("VP", [*core, *within])
        verb = self._coordinate("VP", verb, inner, shared if inner else [])
        is_inverted = bool(chain) and any(chain[0] < word < head for word in subjects)
        flat: list[Child] = []
        for number in reversed(range(len(chain))):
            following = chain[number + 1] if number + 1 < len(chain) else head
            between = [word for word in before if chain[number] < word < following]
            parts = [*self._nodes([chain[number], *between]), verb]
            if not is_verb and number == len(chain) - 1:
                parts += within
            if number == 0 and is_inverted:
                flat = [part for part in parts if part is not verb]
            else:
                verb = make_node("VP", parts)
        verb = self._coordinate("VP", verb, outer, shared if outer and not inner else [])
        left = [word for word in before if not chain or word < chain[0]]
        opening = [word for word in left[:1] if clausal and self.relations[word] == "cc"]
        left = left[len(opening) :]
        marked = [word for word in clausal if self.phrases[word].has_marker]
        unmarked = [word for word in clausal if word not in marked]
        joined = [*opening, *([] if inner or outer else shared)]
        if markers:
            opened = [word for word in left if word < markers[0]]
            left = [word for word in left if word not in opened]
            node = self._close_clause(head, left, flat, verb, outside)
            node = self._coordinate("S", node, unmarked, [])
            parts = [part for marker in self._nodes(markers) for part in parts_of(marker)]
            node = make_node("SBAR", [*self._nodes(opened), *parts, node])
            node = self._coordinate("SBAR", node, marked, joined)
        else:
            node = self._close_clause(head, left, flat, verb, outside)
            node = self._coordinate("S", node, clausal, joined)
        return _Phrase(
            node, has_subject=bool(subjects), has_chain=bool(chain), has_marker=bool(markers)
        )

    def _is_infinitive(self, word: int) -> bool:
        return any(
            self.kinds[marker] == "PART" for marker in self._pick(self.dependents[word], "mark")
        )

    def _is_in_chain(self, word: int) -> bool:
        relation = self.relations[word]
        return relation in CHAIN or (relation == "mark" and self.kinds[word] == "PART")

    def _of_predicate(self, head: int, word: int) -> bool:
        """Whether a dependent of a predicate with a copula is part of its phrase."""
        relation = self.relations[word]
        if relation in OF_PREDICATE or self.full_relations[word] == "advmod:emph":
            return True
        if self.kinds[head] in ("ADJ", "ADV"):
            if relation == "advmod":
                return word < head and self.words[word - 1].lower() not in self.lists.negation
            return word > head and (
                relation in ("obl", "xcomp", "ccomp")
                or (relation in ("advcl", "csubj") and self._is_infinitive(word))
            )
        return False

    def _joins_predicate(self, word: int) -> bool:
        phrase = self.phrases[word]
        is_verb = self.kinds[word] in ("VERB", "AUX")
        return not (phrase.has_subject or phrase.has_chain or is_verb)

    def _modifies_verb(self, word: int) -> bool:
        text = self.words[word - 1].lower()
        return self.relations[word] == "advmod" and text not in self.lists.negation

    def _complements(self, words: Sequence[int]) -> list[Child]:
        """What follows a verb; an object and its predicate make a small clause."""
        nodes: list[Child] = []
        for before, word in pairwise([0, *words]):
            node = self.phrases[word].node
            is_small_clause = (
                before
                and self.relations[before] == "obj"
                and self.relations[word] == "xcomp"
                and start_of(node) == end_of(nodes[-1]) + 1
            )
            if is_small_clause:
                node = make_node("S", [nodes.pop(), node])
            nodes.append(node)
        return nodes

    def _clause_of_clause(self, head: int, own: Sequence[int], copula: int) -> _Phrase:
        """A clause whose predicate is a clause: the problem is that ..."""
        left = [word for word in own if word < copula]
        predicate = self._clause(head, [word for word in own if word > copula]).node
        verb = make_node("VP", [copula, predicate])
        return _Phrase(self._close_clause(head, left, [], verb, []), has_subject=True)

    def _stands_beside(self, word: int) -> bool:
        """Whether a clause is added to another without a conjunction."""
        return self.relations[word] == "parataxis" and self.phrases[word].has_subject

    def _coordinate(
        self, label: str, node: Child, conjuncts: Sequence[int], shared: Sequence[int]
    ) -> Child:
        if not conjuncts and not shared:
            return node
        parts = [part for word in conjuncts for part in self.phrases[word].parts]
        return make_node(label, [node, *parts, *self._nodes(shared)])

    def _close_clause(
        self,
        head: int,
        left: Sequence[int],
        flat: Sequence[Child],
        verb: Child,
        outside: Sequence[int],
    ) -> Child:
        """The clause around its VP: the subject and what precedes it, a relative phrase."""
        relative = left[:1] if left and self._is_relative(head, left[0]) else []
        left = left[len(relative) :]
        node = make_node("S", [*self._nodes(left), *flat, verb, *self._nodes(outside)])
        if relative:
            node = make_node("SBAR", [*self._nodes(relative), node])
        return node

    def _is_relative(self, head: int, word: int) -> bool:
        text = self.words[start_of(self.phrases[word].node) - 1].lower()
        if text not in self.lists.relative:
            case = self.phrases[word].node
            text = self.words[end_of(case) - 1].lower() if label_of_child(case) == "PP" else text
        return text in self.lists.relative and (
            text != "that" or self.relations[head] in ("acl", "ccomp", "advcl", "csubj")
        )
