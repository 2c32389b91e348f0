"""Universal Dependencies to Penn-style constituents: worked examples, any tree, real treebanks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushdown_lm.data.encoding import check_spans
from pushdown_lm.trees import to_brackets
from pushdown_lm.trees.conllu import lift
from pushdown_lm.trees.penn_constituents import penn_constituents
from tests.command_line import run_pushdown

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
    "the/DET/2/det idea/NOUN/0/root that/SCONJ/5/mark she/PRON/5/nsubj left/VERB/2/acl": (
        "(NP the idea (SBAR that (S she left)))"
    ),
    "an/DET/2/det isle/NOUN/0/root of/ADP/4/case joy/NOUN/2/nmod ,/PUNCT/6/punct "
    "Rum/PROPN/2/appos": ("(NP (NP (NP an isle) (PP of joy)) , Rum)"),
    "a/DET/2/det few/ADJ/0/root of/ADP/4/case us/PRON/2/nmod": "(NP (NP a few) (PP of us))",
    "an/DET/5/det old/ADJ/5/amod but/CCONJ/4/cc good/ADJ/2/conj car/NOUN/0/root": (
        "(NP an (ADJP old but good) car)"
    ),
    "both/CCONJ/2/cc:preconj cats/NOUN/0/root and/CCONJ/4/cc dogs/NOUN/2/conj": (
        "(NP both cats and dogs)"
    ),
    "Oh/INTJ/4/discourse ,/PUNCT/1/punct my/PRON/4/nmod:poss hat/NOUN/0/root !/PUNCT/4/punct": (
        "(FRAG Oh , (NP my hat) !)"
    ),
    "out/ADP/3/case of/ADP/1/fixed town/NOUN/0/root": "(PP out (PP of town))",
    "such/ADJ/3/case as/ADP/1/fixed cats/NOUN/0/root": "(PP such as cats)",
    "as/ADV/2/advmod well/ADV/0/root as/ADP/4/case ever/ADV/2/obl": (
        "(ADVP (ADVP as well) (PP as ever))"
    ),
    "It/PRON/4/nsubj was/AUX/4/aux soon/ADV/4/advmod sold/VERB/0/root again/ADV/4/advmod": (
        "(S It (VP was soon (VP sold again)))"
    ),
    "It/PRON/2/nsubj began/VERB/0/root to/PART/5/mark slowly/ADV/5/advmod rise/VERB/2/xcomp": (
        "(S It (VP began (VP to (VP slowly rise))))"
    ),
    "Now/ADV/4/advmod he/PRON/4/nsubj is/AUX/4/cop fond/ADJ/0/root of/ADP/6/case us/PRON/4/obl": (
        "(S Now he (VP is (ADJP fond (PP of us))))"
    ),
    "I/PRON/2/nsubj know/VERB/0/root what/PRON/2/ccomp that/PRON/3/nsubj was/AUX/3/cop": (
        "(S I (VP know (SBAR what (S that was))))"
    ),
    "Here/ADV/0/root is/AUX/1/cop the/DET/4/det key/NOUN/1/nsubj": "(S Here is (NP the key))",
    "So/ADV/3/advmod I/PRON/3/nsubj sang/VERB/0/root and/CCONJ/6/cc you/PRON/6/nsubj "
    "slept/VERB/3/conj": ("(S So (S I sang) and (S you slept))"),
    "I/PRON/2/nsubj slept/VERB/0/root ,/PUNCT/6/punct so/ADV/6/advmod she/PRON/6/nsubj "
    "left/VERB/2/parataxis": ("(S (S I slept) , so (S she left))"),
    "Yes/INTJ/5/discourse ,/PUNCT/1/punct because/SCONJ/5/mark it/PRON/5/nsubj "
    "rained/VERB/0/root": ("(S Yes , (SBAR because (S it rained)))"),
    "Sit/VERB/0/root there/ADV/1/advmod ./PUNCT/1/punct": "(S (VP Sit there) .)",
    "It/PRON/2/nsubj fell/VERB/0/root down/ADV/2/advmod ./PUNCT/2/punct [/PUNCT/6/punct "
    "6/NUM/2/dep ]/PUNCT/6/punct": ("(S It (VP fell down) . (PRN -LSB- 6 -RSB-))"),
    "Tom/PROPN/6/nsubj –/PUNCT/4/punct my/PRON/4/nmod:poss boss/NOUN/1/appos –/PUNCT/1/punct "
    "slept/VERB/0/root": "(S (NP Tom (PRN – (NP my boss) –)) slept)",
    "in/ADP/5/case “/PUNCT/3/punct easy/ADJ/5/amod ”/PUNCT/3/punct steps/NOUN/0/root": (
        "(PP in (NP “ easy ” steps))"
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


KINDS = ("NOUN", "VERB", "AUX", "ADJ", "ADV", "PRON", "NUM", "ADP", "PART", "PUNCT", "CCONJ")
RELATIONS = (
    *("nsubj", "nsubj:outer", "obj", "obl", "nmod", "case", "mark", "aux", "cop", "conj", "cc"),
    *("acl:relcl", "advcl", "xcomp", "ccomp", "parataxis", "punct", "det", "amod", "advmod"),
    *("compound", "flat", "fixed", "appos", "discourse", "cc:preconj", "dep", "reparandum"),
)
WORDS = ("a", "who", "not", "as", ",", ".", '"', "(", ")", "``", "''", "–")


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
    trees, gold = shared_data / "gum_ud" / "test.conllu", shared_data / "gum" / "test.trees"
    score = json.loads(run_pushdown("corpus", "compare", trees, gold, "--json").output)
    assert score["f1"] > 0.90
