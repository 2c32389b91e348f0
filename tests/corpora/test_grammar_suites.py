"""Suites from the built-in grammar: the format, the sentences, and what sets conditions apart."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from pushdown_lm.corpora.grammar import generate, grammar, lexicon, nesting
from pushdown_lm.corpora.grammar_suites import (
    MinimalPair,
    minimal_pairs,
    sentence,
    suites,
    write_suites,
)
from pushdown_lm.errors import PushdownError
from pushdown_lm.evals.sg import load_suite

DEPTHS = (1, 2, 3, 5)


def pairs_at(depth: int) -> list[MinimalPair]:
    return list(minimal_pairs(depth=depth, items=4, seed=7))


@pytest.mark.parametrize("depth", DEPTHS)
def test_good_sentences_are_derivable_at_the_depth_and_bad_ones_never(depth: int) -> None:
    for pair in pairs_at(depth):
        parses = grammar().probability_by_nesting(pair.good.split())
        assert min(parses) == depth == pair.depth, pair
        assert not grammar().probability_by_nesting(pair.bad.split()), pair


@pytest.mark.parametrize("depth", DEPTHS)
def test_every_condition_is_on_one_side_of_a_pair(depth: int) -> None:
    """Each condition is a sentence of the grammar exactly when a pair has it as its good side."""
    good = {pair.good for pair in pairs_at(depth)}
    bad = {pair.bad for pair in pairs_at(depth)}
    all_sentences = {
        sentence(condition)
        for suite in suites(depth=depth, items=4, seed=7).values()
        for item in suite["items"]
        for condition in item["conditions"]
    }
    assert good | bad == all_sentences
    assert not good & bad


CONTRASTS = {
    "number": [{"is", "are"}, {"was", "were"}, {"has", "have"}],
    "reflexive": [{"himself", "themselves"}, {"herself", "themselves"}],
    "npi": [{"no", "the"}],
    "fgd": [{"that", "what"}, {"that", "who"}],
}


@pytest.mark.parametrize("depth", DEPTHS)
def test_pairs_differ_only_where_intended(depth: int) -> None:
    for pair in pairs_at(depth):
        good, bad = pair.good.split(), pair.bad.split()
        changes = [(a, b) for a, b in zip(good, bad, strict=True) if a != b]
        family = pair.phenomenon.split("_")[0]
        if family == "center":
            assert len(changes) == 2
            assert [good.index(a) for a, _ in changes] == [len(good) - 3, len(good) - 2]
        else:
            assert len(changes) == 1
        for change in changes:
            singular, plural = sorted(change, key=len, reverse=True)
            is_verb = singular in {plural + "s", plural + "es"} and family in {"number", "center"}
            assert is_verb or set(change) in CONTRASTS[family]


def test_phenomena() -> None:
    names = {pair.phenomenon for pair in pairs_at(2)}
    modifiers = ("prep", "src", "orc")
    assert names == {
        *(f"number_{kind}" for kind in modifiers),
        *(f"reflexive_{kind}_{gender}" for kind in modifiers for gender in ("masc", "fem")),
        *(f"npi_{kind}_{item}" for kind in ("src", "orc") for item in ("any", "ever")),
        "center_embed",
        "fgd_object",
        "fgd_orc",
    }
    assert names - {pair.phenomenon for pair in pairs_at(1)} == {"fgd_orc"}


def test_distractors_have_the_other_number() -> None:
    for pair in pairs_at(3):
        if pair.phenomenon.startswith("number"):
            nouns = [b for a, b in pairwise(pair.good.split()) if a == "the"]
            irregular = {"men", "women", "children"}
            head, *others = (noun.endswith("s") or noun in irregular for noun in nouns)
            assert len(others) == 3
            assert set(others) == {not head}


def test_written_suites_are_read_by_the_evaluation(tmp_path: Path) -> None:
    expected = suites(depth=3, items=5, seed=1)
    paths = write_suites(tmp_path / "new", depth=3, items=5, seed=1)
    assert sorted((tmp_path / "new").iterdir()) == sorted(paths)
    assert [path.stem for path in paths] == list(expected)
    for path, content in zip(paths, expected.values(), strict=True):
        assert json.loads(path.read_text()) == content
        suite = load_suite(path)
        assert suite.name == path.stem
        for item, raw in zip(suite.items, content["items"], strict=True):
            assert [c.sentence for c in item.conditions.values()] == [
                sentence(condition) for condition in raw["conditions"]
            ]


def test_predictions_hold_for_a_model_of_the_grammar_and_fail_for_its_opposite(
    tmp_path: Path,
) -> None:
    for path in write_suites(tmp_path, depth=2, items=3, seed=2):
        suite = load_suite(path)
        (formula,) = suite.predictions
        for item in suite.items:
            derivable = {
                name: bool(grammar().probability_by_nesting(condition.sentence.split()))
                for name, condition in item.conditions.items()
            }
            likely, unlikely = (
                {
                    name: dict.fromkeys(range(1, 9), 1.0 if derivable[name] == wanted else 9.0)
                    for name in derivable
                }
                for wanted in (True, False)
            )
            assert formula.holds(likely)
            assert not formula.holds(unlikely)


def test_same_structure_as_the_published_suites(shared_data: Path) -> None:
    ours = suites(depth=1, items=2, seed=0)
    for name in ("number_src", "reflexive_orc_masc", "npi_orc_any", "fgd_object"):
        theirs = json.loads((shared_data / "sg_suites" / f"{name}.json").read_text())
        suite = ours[f"{name}_1"]
        assert suite.keys() == theirs.keys()
        assert suite["meta"].keys() == theirs["meta"].keys()
        assert suite["items"][0].keys() == theirs["items"][0].keys()
        conditions, theirs_conditions = (s["items"][0]["conditions"] for s in (suite, theirs))
        assert {c["condition_name"] for c in conditions} == {
            c["condition_name"] for c in theirs_conditions
        }
        assert conditions[0]["regions"][0].keys() == theirs_conditions[0]["regions"][0].keys()


CLASSES = {word: symbol.split("_")[0] for symbol, words in lexicon().items() for word in words}


def contexts(words: Sequence[str]) -> set[tuple[str, str]]:
    """Each word but the first, with the class of the word before it."""
    return {(CLASSES.get(a, a), b) for a, b in pairwise(words)}


def test_shallow_sentences_show_every_word_in_the_contexts_of_deep_suites() -> None:
    trees = list(generate(30_000, seed=0))
    assert max(nesting(tree) for tree in trees) == 2
    seen = set().union(*(contexts(tree.words) for tree in trees))
    for pair in minimal_pairs(depth=5, items=20, seed=7):
        assert contexts(pair.good.split()) <= seen


def test_seed_determines_the_suites() -> None:
    assert suites(depth=2, items=3, seed=5) == suites(depth=2, items=3, seed=5)
    assert suites(depth=2, items=3, seed=5) != suites(depth=2, items=3, seed=6)


@pytest.mark.parametrize("arguments", [{"depth": 0, "items": 1}, {"depth": 99, "items": 1}])
def test_bad_depth(arguments: dict[str, int]) -> None:
    with pytest.raises(PushdownError, match=r"depth: expected 1 to 30, got"):
        suites(**arguments, seed=0)


def test_bad_items() -> None:
    with pytest.raises(PushdownError, match="items: expected 1 or more, got 0"):
        suites(depth=1, items=0, seed=0)
