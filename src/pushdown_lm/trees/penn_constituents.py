"""Universal Dependencies to constituents in the manner of the Penn Treebank, by rule.

    She often reads a book on syntax .      (S She often (VP reads (NP (NP a book)
    nsubj(reads, She) advmod(reads, often)        (PP on syntax))) .)
    det(book, a) obj(reads, book) ...

The rules read relations and coarse parts of speech only, so they serve any language; a few word
lists (:mod:`pushdown_lm.trees.word_lists`) help: relative pronouns, negations, and the like.

Phrases (:mod:`pushdown_lm.trees.penn_phrases`):

- A noun with what stands before it is a base NP. What follows it is adjoined, all at one level,
  appositions at one more: (NP (NP the cat) (PP on the mat) (SBAR that sleeps)). A clause that says
  what the noun is belongs to the base: (NP the idea that ...).
- A case marker before a phrase makes a PP, after it (English 's) closes the base NP.
- Conjuncts, conjunctions and commas are children of one node: of nouns, of VPs where the later
  conjuncts have no subject of their own, of clauses where they have.

Clauses (:mod:`pushdown_lm.trees.penn_clauses`):

- A verb and all that follows it are a VP; every auxiliary before it, and the particle of an
  infinitive, adds a VP of its own. Before the first verb of the chain everything is a child of the
  clause. A copula is such a verb, and its complement the phrase of the predicate.
- Where the subject follows the first auxiliary, the clause is flat: (SQ did (NP you) (VP see it)).
- A subordinator or a relative phrase makes an SBAR of itself and the clause.
- What opens coordinated clauses stands before them all: (S So (S I sang) and (S you danced)).

Punctuation (:mod:`pushdown_lm.trees.punctuation`) belongs to the smallest constituent around it, at
the ends of the sentence to the whole; what stands in brackets or between dashes is a constituent
with its marks.

Every phrase is made from those of its dependents, bottom up, so no sentence is too deep.
"""

from __future__ import annotations

from collections.abc import Sequence

from pushdown_lm.trees.nodes import make_node, parts_of, post_order
from pushdown_lm.trees.penn_clauses import ClauseRules
from pushdown_lm.trees.penn_phrases import FUNCTION, Phrase
from pushdown_lm.trees.punctuation import insert_punctuation
from pushdown_lm.trees.tree import Tree

FINAL_MARKS = frozenset({".", "?", "!"})
OPENING_BRACKETS = frozenset({"(", "["})


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


class _Sentence(ClauseRules):
    """One sentence on its way from dependencies to constituents."""

    def tree(self) -> Tree:
        order = list(self.dependents[0])
        for word in order:
            order += self.dependents[word]
        references = self._cut_references()
        for word in reversed(order):
            self.phrases[word] = self._phrase(word)
        root = make_node("S", self.nodes(self.dependents[0]))
        if references:
            root = make_node("S", [*parts_of(root), *self.nodes(references)])
        root = insert_punctuation(self.words, self.heads, root, self.punctuation)
        spans, labels = [], []
        for node in post_order(root):
            spans.append((node.start - 1, node.end))
            labels.append(node.label)
        return Tree(tuple(self.words), tuple(spans), tuple(labels) or ("X",))

    def _cut_references(self) -> list[int]:
        """Words cut from their heads: what stands in brackets after the final mark, as . [ 6 ]."""
        marks = [
            mark
            for mark in self.punctuation[:-1]
            if self.words[mark - 1] in FINAL_MARKS and self.words[mark] in OPENING_BRACKETS
        ]
        references = [
            word
            for mark in marks[-1:]
            for word in range(mark + 1, len(self.words) + 1)
            if 0 < self.heads[word] < mark and word not in self.punctuation
        ]
        for word in references:
            self.dependents[self.heads[word]].remove(word)
        return references

    def _phrase(self, head: int) -> Phrase:
        conjunctions = self._conjunctions(head)
        own = [word for word in self.dependents[head] if word not in conjunctions]
        if self.is_clause(head) and self.relations[head] not in FUNCTION:
            phrase = self.clause(head, own)
        else:
            phrase = Phrase(self.phrase_of(head, own))
        phrase.conjunctions = self.nodes(conjunctions)
        return phrase

    def _conjunctions(self, head: int) -> list[int]:
        """What joins a conjunct, or a clause set beside another, to what precedes it.

        An adverb does so in (S I was late) , so (S she left).
        """
        before = [word for word in self.dependents[head] if word < head]
        if self.relations[head] == "conj":
            return self.pick(before, "cc")
        if self.relations[head] == "parataxis" and head > self.heads[head]:
            return [*self.pick(before[:1], "advmod"), *self.pick(before, "cc")]
        return []
