"""Universal Dependencies to Penn-style constituents: worked examples, any tree, real treebanks."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushdown_lm.data.encoding import check_spans
from pushdown_lm.trees import read_trees, to_brackets
from pushdown_lm.trees.conllu import lift
from pushdown_lm.trees.penn_constituents import penn_constituents

EXAMPLES = {
    # word/part of speech/head/relation ...
    "the/DET/2/det cat/NOUN/0/root on/ADP/5/case the/DET/5/det mat/NOUN/2/nmod": (
        "(NP (NP the cat) (PP on (NP the mat)))"
    ),
    "She/PRON/4/nsubj has/AUX/4/aux been/AUX/4/aux reading/VERB/0/root ./PUNCT/4/punct": (
        "(S She (VP has (VP been reading)) .)"
    ),
    "They/PRON/2/nsubj want/VERB/0/root to/PART/4/mark leave/VERB/2/xcomp": (
        "(S They (VP want (VP to leave)))"
    ),
    "did/AUX/3/aux you/PRON/3/nsubj see/VERB/0/root it/PRON/3/obj ?/PUNCT/3/punct": (
        "(S did you (VP see it) ?)"
    ),
    "He/PRON/2/nsubj says/VERB/0/root that/SCONJ/5/mark she/PRON/5/nsubj left/VERB/2/ccomp": (
        "(S He (VP says (SBAR that (S she left))))"
    ),
    "the/DET/2/det man/NOUN/0/root who/PRON/5/nsubj has/AUX/5/aux left/VERB/2/acl:relcl": (
        "(NP (NP the man) (SBAR who (VP has left)))"
    ),
    "He/PRON/2/nsubj sings/VERB/0/root songs/NOUN/2/obj and/CCONJ/5/cc dances/VERB/2/conj": (
        "(S He (VP (VP sings songs) and dances))"
    ),
    "I/PRON/2/nsubj sing/VERB/0/root and/CCONJ/5/cc you/PRON/5/nsubj dance/VERB/2/conj": (
        "(S (S I sing) and (S you dance))"
    ),
    "dogs/NOUN/0/root and/CCONJ/3/cc cats/NOUN/1/conj": "(NP dogs and cats)",
    "the/DET/2/det king/NOUN/4/nmod:poss 's/PART/2/case crown/NOUN/0/root": (
        "(NP (NP the king 's) crown)"
    ),
    "She/PRON/4/nsubj is/AUX/4/cop very/ADV/4/advmod happy/ADJ/0/root": (
        "(S She (VP is (ADJP very happy)))"
    ),
    "I/PRON/2/nsubj left/VERB/0/root (/PUNCT/5/punct at/ADP/5/case six/NUM/2/obl )/PUNCT/5/punct": (
        "(S I (VP left (PRN -LRB- (PP at six) -RRB-)))"
    ),
}


@pytest.mark.parametrize(("text", "expected"), EXAMPLES.items(), ids=lambda text: text[:20])
def test_worked_examples(text: str, expected: str) -> None:
    fields = [word.rsplit("/", 3) for word in text.split()]
    words, kinds, heads, relations = zip(*fields, strict=True)
    tree = penn_constituents(words, kinds, [int(head) for head in heads], relations)
    assert to_brackets(tree) == expected


KINDS = ("NOUN", "VERB", "AUX", "ADJ", "ADV", "PRON", "ADP", "PART", "PUNCT", "CCONJ")
RELATIONS = (
    *("nsubj", "nsubj:outer", "obj", "obl", "nmod", "case", "mark", "aux", "cop", "conj", "cc"),
    *("acl:relcl", "advcl", "xcomp", "ccomp", "parataxis", "punct", "det", "amod", "advmod"),
    *("compound", "flat", "fixed", "appos", "discourse"),
)
WORDS = ("a", "who", "not", ",", ".", '"', "(", ")", "``", "''")


@st.composite
def dependencies(draw: st.DrawFn) -> list[tuple[str, str, int, str]]:
    """Any projective tree of words with any relations, sensible or not."""
    count = draw(st.integers(1, 12))
    heads = [0] + [draw(st.integers(1, word - 1)) for word in range(2, count + 1)]
    order = draw(st.permutations(range(1, count + 1)))
    place = {word: at for at, word in enumerate(order, 1)}
    moved = [0] * count
    for word, head in enumerate(heads, 1):
        moved[place[word] - 1] = place[head] if head else 0
    return [
        (draw(st.sampled_from(WORDS)), draw(st.sampled_from(KINDS)), head, relation)
        for head in lift(moved)
        for relation in [draw(st.sampled_from(RELATIONS)) if head else "root"]
    ]


@given(dependencies())
def test_any_dependencies_give_a_tree_over_all_words(rows: list[tuple[str, str, int, str]]) -> None:
    words, kinds, heads, relations = zip(*rows, strict=True)
    tree = penn_constituents(words, kinds, heads, relations)
    assert tree.words == words
    check_spans(tree.spans, len(words))
    assert tree.labels is not None
    assert len(tree.labels) == max(len(tree.spans), 1)


def test_a_deep_sentence() -> None:
    count = 3000
    words = ["that"] * count
    heads = [0, *range(1, count)]
    tree = penn_constituents(words, ["VERB"] * count, heads, ["root", *["ccomp"] * (count - 1)])
    assert len(tree.spans) == count - 1


def test_agreement_with_gum(shared_data: Path) -> None:
    """Unlabeled F1 against the constituents of the same sentences; trivial spans do not count."""
    predicted = read_trees(
        shared_data / "gum_ud" / "test.conllu", constituents="penn", nonprojective="lift"
    )
    gold = list(read_trees(shared_data / "gum" / "test.trees"))
    matched = total = 0
    for ours, theirs in zip(predicted, gold, strict=True):
        whole = (0, len(theirs.words))
        assert ours.words == theirs.words
        ours_spans, gold_spans = set(ours.spans) - {whole}, set(theirs.spans) - {whole}
        matched += 2 * len(ours_spans & gold_spans)
        total += len(ours_spans) + len(gold_spans)
    assert matched / total > 0.88
