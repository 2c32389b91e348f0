"""The built-in grammar: well-formed trees, agreement and licensing, exact probabilities."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushdown_lm.corpora.grammar import (
    Grammar,
    GrammarOptions,
    Rule,
    generate,
    grammar,
    is_word,
    lexicon,
    nesting,
    read_rules,
    vocabulary,
)
from pushdown_lm.corpora.grammar_rules import VERBS
from pushdown_lm.errors import PushdownError
from pushdown_lm.trees import Tree, parse_tree, to_brackets

# An independent reading of the trees: it knows English, not the rules.

MALE = {"boy", "man", "king", "father", "brother", "prince", "son", "he"}
FEMALE = {"girl", "woman", "queen", "mother", "sister", "daughter", "lady", "she"}
PERSONS = {
    "teacher",
    "doctor",
    "lawyer",
    "farmer",
    "writer",
    "singer",
    "driver",
    "child",
    "student",
    "pilot",
}
PRONOUNS = {"he", "she", "it", "they"}
RELATIVES = {"who", "that", "which", "what"}
SINGULAR_AUXILIARIES, PLURAL_AUXILIARIES = (
    {"is", "was", "has", "does"},
    {"are", "were", "have", "do"},
)
TRANSITIVE = {form for verb in VERBS["TV"] for form in verb}
ADVERBS_BEFORE_VERBS = {"often", "always", "sometimes", "usually", "never"}


@dataclass(eq=False)
class Node:
    label: str
    start: int
    end: int
    children: list[Node | str] = field(default_factory=list)


def to_node(tree: Tree) -> Node:
    assert tree.labels is not None
    stack: list[Node | str] = []
    starts: list[int] = []
    position = 0
    for (start, end), label in zip(tree.spans, tree.labels, strict=True):
        for index in range(position, end):
            stack.append(tree.words[index])
            starts.append(index)
        position = max(position, end)
        first = starts.index(start)
        node = Node(label, start, end, stack[first:])
        stack[first:], starts[first:] = [node], [start]
    (root,) = stack
    assert isinstance(root, Node)
    return root


def is_plural_noun(word: str) -> bool:
    return word.endswith("s") or word in {"men", "women", "children", "they"}


def reflexives_of(word: str) -> set[str]:
    if is_plural_noun(word):
        return {"themselves"}
    if word in PERSONS:
        return {"himself", "herself"}
    return {"himself"} if word in MALE else {"herself"} if word in FEMALE else {"itself"}


@dataclass(frozen=True)
class Subject:
    plural: bool
    reflexives: frozenset[str]
    negative: bool = False


def subject_of(node: Node | str) -> Subject:
    if isinstance(node, str):
        return Subject(node == "they", frozenset(reflexives_of(node)))
    assert node.label == "NP"
    if "and" in node.children:
        return Subject(True, frozenset({"themselves"}))
    if isinstance(node.children[0], Node):
        return subject_of(node.children[0])
    noun = node.children[-1]
    assert isinstance(noun, str)
    negative = node.children[0] == "no"
    return Subject(is_plural_noun(noun), frozenset(reflexives_of(noun)), negative)


def is_subject(node: Node | str) -> bool:
    return node in PRONOUNS if isinstance(node, str) else node.label == "NP"


class Checker:
    """Asserts agreement, reflexives and licensing; counts constructions and gaps."""

    def __init__(self) -> None:
        self.seen: Counter[str] = Counter()

    def sentence(self, root: Node) -> None:
        assert root.label == "S"
        assert root.children[-1] == "."
        parts = root.children[:-1]
        if len(parts) == 3:
            assert parts[1] in {"and", "but"}
            self.seen["sentence coordination"] += 1
            for part in (parts[0], parts[2]):
                assert isinstance(part, Node)
                assert self.clause(part.children, licensed=False) == 0
        else:
            assert self.clause(parts, licensed=False) == 0

    def clause(self, parts: Sequence[Node | str], licensed: bool) -> int:
        subject_node, predicate = parts
        assert is_subject(subject_node)
        self.phrase(subject_node, licensed)
        subject = subject_of(subject_node)
        self.seen["negative subject"] += subject.negative
        return self.predicate(predicate, subject, licensed or subject.negative)

    def predicate(
        self, node: Node | str, subject: Subject, licensed: bool, finite: bool = True
    ) -> int:
        """Check a verb phrase; the number of transitive verbs in it that lack their object."""
        children = [node] if isinstance(node, str) else node.children
        if "and" in children:
            self.seen["verb coordination"] += 1
            return sum(
                self.predicate(child, subject, licensed) for child in children if child != "and"
            )
        words = [child for child in children if isinstance(child, str)]
        if finite:
            self.agreement(next(w for w in words if w not in ADVERBS_BEFORE_VERBS), subject)
        gaps = 0
        for index, child in enumerate(children):
            if isinstance(child, Node):
                if child.label == "VP":
                    gaps += self.predicate(child, subject, licensed, finite=False)
                elif child.label == "SBAR":
                    gaps += self.complement(child, licensed)
                else:
                    self.phrase(child, licensed)
            elif child == "ever":
                assert licensed
                self.seen["ever"] += 1
            elif child in {"not", "never"}:
                licensed = True
            elif child.endswith(("self", "selves")):
                assert child in subject.reflexives
                self.seen["reflexive"] += 1
            elif child in TRANSITIVE:
                after = children[index + 1 : index + 2]
                has_object = any(
                    part.label == "NP" if isinstance(part, Node) else "sel" in part
                    for part in after
                )
                gaps += not has_object
        return gaps

    def agreement(self, verb: str, subject: Subject) -> None:
        if verb in SINGULAR_AUXILIARIES or (verb.endswith("s") and verb not in PLURAL_AUXILIARIES):
            assert not subject.plural
            self.seen["singular verb"] += 1
        elif verb in PLURAL_AUXILIARIES or {verb + "s", verb + "es"} & set(vocabulary()):
            assert subject.plural
            self.seen["plural verb"] += 1

    def complement(self, node: Node, licensed: bool) -> int:
        filler, body = node.children
        if filler == "that":
            assert isinstance(body, Node)
            return self.clause(body.children, licensed)
        assert filler in {"who", "what"}
        either = frozenset({"himself", "herself"})
        self.after_filler(body, Subject(False, either), licensed, "question")
        return 0

    def phrase(self, node: Node | str, licensed: bool) -> None:
        if isinstance(node, str):
            return
        if "any" in node.children:
            assert licensed
            self.seen["any"] += 1
        for child in node.children:
            if isinstance(child, str):
                continue
            if child.label == "SBAR":
                self.relative(child, subject_of(node), licensed)
            else:
                self.phrase(child, licensed)

    def relative(self, node: Node, head: Subject, licensed: bool) -> None:
        if node.children[0] in RELATIVES:
            self.after_filler(node.children[1], head, licensed, "relative")
        else:
            assert self.clause(node.children, licensed) == 1
            self.seen["reduced relative"] += 1

    def after_filler(self, body: Node | str, head: Subject, licensed: bool, kind: str) -> None:
        if isinstance(body, Node) and is_subject(body.children[0]):
            assert self.clause(body.children, licensed) == 1
            self.seen[f"object {kind}"] += 1
        else:
            assert self.predicate(body, head, licensed) == 0
            self.seen[f"subject {kind}"] += 1


@pytest.fixture(scope="module")
def shallow() -> list[Tree]:
    return list(generate(6000, seed=11))


@pytest.fixture(scope="module")
def deep() -> list[Tree]:
    return [
        tree
        for depth in (3, 4, 5)
        for tree in generate(300, seed=12, min_nesting=depth, max_nesting=depth)
    ]


def test_vocabulary(shallow: list[Tree]) -> None:
    words = vocabulary()
    assert list(words) == sorted(set(words))
    assert 150 <= len(words) <= 300
    assert all(word == word.lower() and word.split() == [word] for word in words)
    assert {word for tree in shallow for word in tree.words} == set(words)


def test_the_article_a_stands_before_consonants_only() -> None:
    symbols = [s for s in lexicon() if s.startswith(("N_s", "ADJ"))]
    assert not [word for s in symbols for word in lexicon()[s] if word[0] in "aeiou"]


def test_trees_are_well_formed(shallow: list[Tree], deep: list[Tree]) -> None:
    for tree in shallow + deep:
        assert tree.words[-1] == "."
        assert tree.spans[-1] == (0, len(tree.words))
        assert len(set(tree.spans)) == len(tree.spans) == len(tree.labels or ())
        assert all(0 <= start <= end - 2 for start, end in tree.spans)
        assert list(tree.spans) == sorted(tree.spans, key=lambda span: (span[1], -span[0]))
        assert parse_tree(to_brackets(tree), labels=True) == tree


def test_constructions_and_their_dependencies(shallow: list[Tree], deep: list[Tree]) -> None:
    checker = Checker()
    for tree in shallow + deep:
        checker.sentence(to_node(tree))
    assert all(
        checker.seen[construction] >= 40
        for construction in (
            "sentence coordination", "verb coordination", "negative subject", "ever", "any",
            "reflexive", "singular verb", "plural verb", "reduced relative", "subject relative",
            "object relative", "subject question", "object question",
        )
    ), checker.seen  # fmt: skip


@pytest.mark.parametrize(
    "bracketed",
    [
        "(S (NP the boys) sleeps .)",
        "(S (NP (NP the boy) (PP near (NP the dogs))) (VP are happy) .)",
        "(S (NP (NP the boy) (SBAR that (S (NP the dogs) sees))) sleeps .)",
        "(S (NP the boy) (VP likes herself) .)",
        "(S (NP (NP the boy) (SBAR that (S (NP no girl) liked))) (VP has ever slept) .)",
        "(S (NP the boy) (VP likes (NP any dogs)) .)",
        "(S she (VP knows (SBAR that (S (NP the boy) saw))) .)",
        "(S she (VP knows (SBAR what (S (NP the boy) (VP saw (NP the car))))) .)",
    ],
)
def test_the_checker_and_the_chart_reject(bracketed: str) -> None:
    tree = parse_tree(bracketed, labels=True)
    with pytest.raises(AssertionError):
        Checker().sentence(to_node(tree))
    assert not grammar().probability_by_nesting(tree.words)


@pytest.mark.parametrize("depth", range(6))
def test_nesting_is_as_asked(depth: int) -> None:
    exact = generate(100, seed=3, min_nesting=depth, max_nesting=depth)
    assert {nesting(tree) for tree in exact} == {depth}
    bounded = generate(3000, seed=3, max_nesting=min(depth, 3))
    assert {nesting(tree) for tree in bounded} == set(range(min(depth, 3) + 1))


def test_nesting_by_hand() -> None:
    text = (
        "(S (NP (NP the boy) (SBAR who (VP runs (PP near (NP the car))))) (VP is (PP near it)) .)"
    )
    assert nesting(parse_tree(text, labels=True)) == 2
    with pytest.raises(PushdownError, match="expected a tree with labels"):
        nesting(parse_tree(text))


def test_very_deep_sentences() -> None:
    (tree,) = generate(1, seed=0, min_nesting=100, max_nesting=100)
    assert nesting(tree) == 100


@given(st.integers(0, 2**32), st.integers(0, 3))
def test_the_seed_determines_the_sentences(seed: int, depth: int) -> None:
    trees = list(generate(20, seed=seed, max_nesting=depth))
    assert list(generate(20, seed=seed, max_nesting=depth)) == trees
    assert list(generate(5, seed=seed, max_nesting=depth)) == trees[:5]
    assert list(generate(20, seed=seed + 1, max_nesting=depth)) != trees


@given(st.integers(0, 2**32), st.integers(0, 4))
def test_the_chart_accepts_what_is_generated(seed: int, depth: int) -> None:
    (tree,) = generate(1, seed=seed, min_nesting=depth, max_nesting=depth)
    assert grammar().probability_by_nesting(tree.words)[depth] > 0
    bounded = grammar().log_probability(tree.words, max_nesting=depth, min_nesting=depth)
    assert -math.inf < bounded < 0


def test_unique() -> None:
    sentences = [tree.words for tree in generate(5000, seed=1, max_nesting=0, unique=True)]
    assert len(set(sentences)) == 5000
    draws = dict.fromkeys(tree.words for tree in generate(6000, seed=1, max_nesting=0))
    assert 5000 <= len(draws) < 6000
    assert list(draws)[:5000] == sentences


TOY = """
S_root -> NP_x VP_x .
NP_x -> he : 2
NP_x -> @both
NP_x -> NP_base PP_x
NP_base -> he
@both -> he and she
VP_x -> ran
VP_x -> ran PP_x : 0.5
VP_x -> thought SBAR_x : 0.5
SBAR_x -> that S_x
SBAR_x -> S_x : 0.5
S_x -> NP_x VP_x
PP_x -> near NP_x
"""


def enumerate_derivations(
    rules: Sequence[Rule], symbol: str, depth: int
) -> Iterator[tuple[tuple[str, ...], int, float]]:
    """Words, nesting and probability of every derivation up to a nesting, by brute force."""
    if is_word(symbol):
        yield (symbol,), 0, 1.0
        return
    nests = symbol.startswith(("SBAR", "PP"))
    if nests and depth == 0:
        return
    for rule in rules:
        if rule.left == symbol:
            parts = [list(enumerate_derivations(rules, s, depth - nests)) for s in rule.right]
            for combination in product(*parts):
                words = tuple(word for part in combination for word in part[0])
                deepest = max(part[1] for part in combination) + nests
                yield words, deepest, rule.probability * math.prod(p for _, _, p in combination)


def test_probabilities_against_enumeration() -> None:
    """Chart, nesting distribution and sampler agree with all derivations of a small grammar."""
    toy = Grammar(rules=TOY)
    by_sentence: Counter[tuple[tuple[str, ...], int]] = Counter()
    for words, deepest, probability in enumerate_derivations(toy.rules, "S_root", 2):
        by_sentence[words, deepest] += probability
    assert len(by_sentence) > 300
    for depth in range(3):
        total = sum(p for (_, deepest), p in by_sentence.items() if deepest == depth)
        assert toy.nesting_probability(depth) == pytest.approx(total)
    for (words, deepest), probability in by_sentence.items():
        assert toy.probability_by_nesting(words)[deepest] == pytest.approx(probability)

    for low, high in ((0, 2), (1, 2), (2, 2)):
        count = 8_000
        drawn = Counter(
            (tree.words, nesting(tree))
            for tree in toy.generate(count, seed=5, min_nesting=low, max_nesting=high)
        )
        total = sum(p for (_, deepest), p in by_sentence.items() if low <= deepest <= high)
        for (words, deepest), probability in by_sentence.items():
            expected = count * probability / total if low <= deepest <= high else 0.0
            assert abs(drawn[words, deepest] - expected) <= 5 * math.sqrt(expected + 1)
        assert sum(
            math.exp(toy.log_probability(words, min_nesting=low, max_nesting=high))
            for words in {words for words, _ in by_sentence}
        ) == pytest.approx(1)


def test_the_rules_of_a_symbol_sum_to_one() -> None:
    totals: Counter[str] = Counter()
    for rule in grammar().rules:
        totals[rule.left] += rule.probability
    assert all(total == pytest.approx(1) for total in totals.values())


def test_dead_ends_are_dropped() -> None:
    assert read_rules("A -> B\nA -> a\nB -> C b\nC -> C c", {}) == [Rule("A", ("a",), 1.0)]


def test_options_switch_constructions_off() -> None:
    options = replace(GrammarOptions(), negation=0.0, subject_relative=0.0, pronoun=0.0)
    trees = generate(2000, seed=0, options=options)
    words = {word for tree in trees for word in tree.words}
    assert not words & {"no", "not", "never", "any", "ever", *PRONOUNS}


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"count": -1, "seed": 0}, "expected a count >= 0, got -1"),
        ({"count": 1, "seed": 0, "max_nesting": 1, "min_nesting": 2}, "got 2 and 1"),
        ({"count": 1, "seed": 0, "min_nesting": -1}, "got -1 and 2"),
    ],
)
def test_bad_arguments(arguments: dict[str, int], message: str) -> None:
    with pytest.raises(PushdownError, match=message):
        generate(**arguments)


def test_bad_options() -> None:
    with pytest.raises(PushdownError, match=r"negation: expected finite odds >= 0, got -1"):
        GrammarOptions(negation=-1)
    flat = Grammar(rules="S_root -> he ran .")
    with pytest.raises(PushdownError, match="no sentence of nesting 1"):
        flat.generate(1, seed=0, min_nesting=1)
    with pytest.raises(PushdownError, match="after 1 of them"):
        list(flat.generate(2, seed=0, unique=True))
