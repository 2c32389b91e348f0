from __future__ import annotations

import io
import json
import math
import random
from collections import Counter
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from pushdown_lm.errors import PushdownError
from pushdown_lm.evals.parsing import (
    PUNCTUATION,
    BracketingScore,
    brackets,
    evaluate_parsing,
    left_branching,
    random_tree,
    reduce_probability,
    right_branching,
    score_brackets,
)
from pushdown_lm.trees import Span, Tree, binarize, is_binary, read_trees, to_brackets

from .conftest import RecordedScorer

WORDS = ("The", "dog", "barks", ",", "it", "ran", ".")


def binary_spans(start: int, end: int) -> list[tuple[Span, ...]]:
    """All binary trees over the words of [start, end), as post-order spans."""
    if end - start == 1:
        return [()]
    return [
        (*left, *right, (start, end))
        for split in range(start + 1, end)
        for left in binary_spans(start, split)
        for right in binary_spans(split, end)
    ]


class TestTrivialParsers:
    def test_left_and_right(self) -> None:
        assert left_branching("abcd").spans == ((0, 2), (0, 3), (0, 4))
        assert right_branching("abcd").spans == ((2, 4), (1, 4), (0, 4))
        assert left_branching("a").spans == right_branching("a").spans == ()

    @pytest.mark.parametrize("length", range(1, 8))
    def test_every_tree_has_the_same_probability(self, length: int) -> None:
        """The product of action probabilities along each tree is 1 / Catalan(n - 1), exactly."""
        trees = binary_spans(0, length)
        for spans in trees:
            ends = Counter(end for _, end in spans)
            probability, depth, remaining = 1.0, 0, 2 * (length - 1)
            for shifted in range(1, length + 1):
                if shifted > 1:
                    probability *= 1 - reduce_probability(depth, remaining)
                    depth, remaining = depth + 1, remaining - 1
                for _ in range(ends[shifted]):
                    probability *= reduce_probability(depth, remaining)
                    depth, remaining = depth - 1, remaining - 1
            assert probability == pytest.approx(1 / len(trees))

    def test_drawn_trees_are_uniform(self) -> None:
        generator = random.Random(0)
        counts = Counter(random_tree("abcd", generator).spans for _ in range(5000))
        assert set(counts) == set(binary_spans(0, 4))
        assert all(abs(count - 1000) < 4 * math.sqrt(800) for count in counts.values())

    @given(st.integers(1, 40), st.integers())
    def test_random_trees_are_binary_and_in_post_order(self, length: int, seed: int) -> None:
        tree = random_tree("w" * length, random.Random(seed))
        assert is_binary(tree)
        assert list(tree.spans) == sorted(tree.spans, key=lambda span: (span[1], -span[0]))
        assert binarize(tree).spans == tree.spans


class TestBrackets:
    def test_words_close_up_and_duplicates_stay(self) -> None:
        """((The dog) ((barks ,) ((it ran) .))) without "," and "."."""
        spans = ((0, 2), (2, 4), (4, 6), (4, 7), (2, 7), (0, 7))
        found = brackets(Tree(WORDS, spans), deleted_words=PUNCTUATION)
        assert found == {(0, 2): 1, (2, 3): 1, (3, 5): 2, (2, 5): 1, (0, 5): 1}

    def test_brackets_without_words_go(self) -> None:
        tree = Tree(("Hi", "!", "!"), ((1, 3), (0, 3)))
        assert brackets(tree, deleted_words=PUNCTUATION) == {(0, 1): 1}

    def test_whole_sentence_not_counted(self) -> None:
        tree = Tree(("It", "ran", "."), ((0, 2), (0, 3)))
        assert brackets(tree, whole_sentence=False) == {(0, 2): 1}
        assert brackets(tree, whole_sentence=False, deleted_words={"."}) == {}


class TestScore:
    def test_by_hand(self) -> None:
        """Two of three brackets in the first sentence, one of one in the second."""
        gold = [Tree("abcd", ((0, 2), (2, 4), (0, 4))), Tree("ab", ((0, 2),)), Tree("a", ())]
        predicted = [left_branching(tree.words) for tree in gold]
        score = score_brackets(gold, predicted)
        assert score == BracketingScore(
            matched=3, gold=4, predicted=4, sentences=2, exact=1, total_sentence_f1=2 / 3 + 1
        )
        assert score.precision == score.recall == score.f1 == 0.75
        assert score.sentence_f1 == pytest.approx(5 / 6)
        assert score.exact_match == 0.5

    def test_flat_gold(self) -> None:
        score = score_brackets([Tree("abcd", ((0, 4),))], [right_branching("abcd")])
        assert (score.recall, score.precision, score.f1) == (1.0, 1 / 3, 0.5)

    def test_duplicates_match_once_each(self) -> None:
        """Gold has (0, 2) once, the prediction twice after deletion: one match of two."""
        gold = Tree(("a", ".", "b", "c"), ((0, 2), (0, 3), (0, 4)))
        predicted = Tree(("a", ".", "b", "c"), ((1, 3), (0, 3), (0, 4)))
        score = score_brackets([gold], [predicted], deleted_words={"."})
        assert (score.matched, score.gold, score.predicted) == (2, 3, 3)

    def test_nothing_counts(self) -> None:
        score = score_brackets([Tree("a", ())], [Tree("a", ())])
        assert (score.f1, score.sentence_f1, score.exact_match) == (0.0, 0.0, 0.0)

    def test_other_words(self) -> None:
        with pytest.raises(PushdownError, match="tree 1: expected a parse of 'a b', got one of"):
            score_brackets([Tree("ab", ((0, 2),))], [Tree("ac", ((0, 2),))])

    @given(st.integers(1, 12), st.integers(), st.sets(st.integers(0, 11)), st.booleans())
    def test_against_one_to_one_matching(
        self, length: int, seed: int, deleted: set[int], whole_sentence: bool
    ) -> None:
        """EVALB's own loop: each gold bracket takes the first free equal predicted bracket."""
        words = tuple("." if index in deleted else "w" for index in range(length))
        generator = random.Random(seed)
        gold, predicted = random_tree(words, generator), random_tree(words, generator)
        score = score_brackets(
            [gold], [predicted], deleted_words={"."}, whole_sentence=whole_sentence
        )
        assert (score.matched, score.gold, score.predicted) == evalb_counts(
            gold, predicted, whole_sentence
        )


def evalb_counts(gold: Tree, predicted: Tree, whole_sentence: bool) -> tuple[int, int, int]:
    def remaining(tree: Tree) -> list[list[int]]:
        kept = [index for index, word in enumerate(tree.words) if word != "."]
        covered = [[index for index in kept if start <= index < end] for start, end in tree.spans]
        return [leaves for leaves in covered if leaves and (whole_sentence or leaves != kept)]

    ours, free = remaining(gold), remaining(predicted)
    total = len(free)
    for leaves in ours:
        if leaves in free:
            free.remove(leaves)
    return total - len(free), len(ours), total


class TestEvaluate:
    GOLD = (
        Tree(WORDS, ((0, 2), (0, 3), (4, 6), (3, 6), (0, 6), (0, 7))),
        Tree(("a", "<unk>", "b"), ((1, 3), (0, 3))),
        Tree(("it", "ran"), ((0, 2),)),
        Tree(("it", "ran"), ((0, 2),)),
    )

    def test_report(self) -> None:
        scorer = RecordedScorer({})
        report = evaluate_parsing(scorer, self.GOLD, deleted_words=PUNCTUATION, max_length=7)
        assert (report.parsed, report.unknown_words, report.too_long) == (3, 1, 0)
        assert report.gold_is_binary
        assert report.model == report.baselines["right-branching"]
        assert scorer.calls == [[WORDS, ("a", "<unk>", "b"), ("it", "ran")]]
        content = json.loads(json.dumps(report.to_json()))
        assert content["random_trees"] == "uniform over binary trees, seed 0"
        assert (content["items"], content["failures"]) == (3, 1)
        assert report == evaluate_parsing(
            scorer, self.GOLD, deleted_words=PUNCTUATION, max_length=7
        )

    def test_length_limit_counts_all_words(self) -> None:
        report = evaluate_parsing(
            RecordedScorer({}), self.GOLD, max_length=6, deleted_words=PUNCTUATION
        )
        assert (report.parsed, report.too_long) == (2, 1)

    def test_table(self) -> None:
        console = Console(record=True, width=200, file=io.StringIO())
        console.print(evaluate_parsing(RecordedScorer({}), self.GOLD).table())
        text = console.export_text()
        assert "right-branching" in text
        assert "(whole-sentence bracket counted)" in text
        assert text.count("│ right-branching") == 2
        assert "deleted, as COLLINS.prm" in text

    def test_both_conventions_score_the_same_parses(self) -> None:
        kept, deleted = (
            evaluate_parsing(RecordedScorer({}), self.GOLD, deleted_words=words)
            for words in ((), PUNCTUATION)
        )
        assert kept.conventions == deleted.conventions
        for report, name in ((kept, "kept"), (deleted, "deleted")):
            assert report.conventions[name] == {"model": report.model, **report.baselines}
        assert kept.model != deleted.model
        content = kept.to_json()["punctuation"]
        assert content["deleted"]["model"]["f1"] == deleted.model.f1

    def test_bad_input(self) -> None:
        class FlatParser(RecordedScorer):
            def parse(self, sentences: Sequence[Sequence[str]]) -> list[Tree | None]:
                return [Tree(tuple(words), ((0, len(words)),)) for words in sentences]

        with pytest.raises(PushdownError, match=r"a binary tree of 6 constituents .* got 1"):
            evaluate_parsing(FlatParser({}), self.GOLD)
        with pytest.raises(PushdownError, match="at least one gold tree"):
            evaluate_parsing(RecordedScorer({}), [])
        with pytest.raises(PushdownError, match="at most 1 words, got none of 4"):
            evaluate_parsing(RecordedScorer({}), self.GOLD, max_length=1)


@pytest.fixture(scope="module")
def gum(shared_data: Path) -> list[Tree]:
    trees = read_trees(shared_data / "gum" / "dev.trees", format="penn")
    return [binarize(tree) for tree in islice(trees, 300)]


def test_real_trees(gum: list[Tree]) -> None:
    """Gold against itself is perfect; English branches right once punctuation is gone."""
    assert score_brackets(gum, gum, deleted_words=PUNCTUATION).exact_match == 1.0
    kept = evaluate_parsing(RecordedScorer({}), gum)
    assert kept.parsed == 300
    assert all(score.precision == score.recall for score in kept.baselines.values())
    left, right, chance = evaluate_parsing(
        RecordedScorer({}), gum, deleted_words=PUNCTUATION
    ).baselines.values()
    assert right.f1 > 2 * chance.f1 > 2 * left.f1
    assert right.f1 > 2 * kept.model.f1


def test_against_pyevalb(gum: list[Tree]) -> None:
    """PYEVALB, an independent implementation, on all brackets (it deletes no words)."""
    parser = pytest.importorskip("PYEVALB.parser", reason="PYEVALB is not installed")
    scorer = pytest.importorskip("PYEVALB.scorer").Scorer()
    gold = [tree for tree in gum if len(tree.words) > 1]
    predicted = [right_branching(tree.words) for tree in gold]
    results = [
        scorer.score_trees(
            *(parser.create_from_bracket_string(to_brackets(tree, tag="T")) for tree in pair)
        )
        for pair in zip(gold, predicted, strict=True)
    ]
    score = score_brackets(gold, predicted)
    assert score.matched == sum(result.matched_brackets for result in results)
    assert score.gold == sum(result.gold_brackets for result in results)
    assert score.predicted == sum(result.test_brackets for result in results)
    assert score.exact == sum(result.recall == result.prec == 1 for result in results)
