from __future__ import annotations

import io
import json
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from pushdown_lm.errors import PushdownError
from pushdown_lm.evals.sg import (
    CIRCUITS,
    SUITE_SETS,
    SUITES_31,
    SUITES_33,
    Condition,
    Suite,
    evaluate_sg,
    load_suite,
    load_suites,
    region_surprisals,
)
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from pushdown_lm.search.scorer import CausalLMScorer, ScoreCache, Scorer, Token
from tests.models import pushdown_model

from .conftest import RecordedScorer, build_tokenizer


def suite_content() -> dict[str, Any]:
    """Agreement: two items; region 2 is empty in one condition, region 3 is critical."""

    def condition(name: str, *contents: str) -> dict[str, Any]:
        regions = [
            {"region_number": number, "content": content}
            for number, content in enumerate(contents, start=1)
        ]
        return {"condition_name": name, "regions": regions}

    return {
        "meta": {"name": "toy", "metric": "sum"},
        "predictions": [
            {"type": "formula", "formula": "(3;%match%) < (3;%mismatch%)"},
            {"type": "formula", "formula": "(2;%match%) = 0"},
        ],
        "items": [
            {
                "item_number": 7,
                "conditions": [
                    condition("match", "The dog", "", "barks", "loudly"),
                    condition("mismatch", "The dog", "", " bark", "loudly"),
                ],
            },
            {
                "item_number": 8,
                "conditions": [
                    condition("match", "The dogs", "here", "bark", ""),
                    condition("mismatch", "The dogs", "here", "barks", ""),
                ],
            },
        ],
    }


@pytest.fixture
def toy(tmp_path: Path) -> Callable[..., Path]:
    def write(change: Callable[[dict[str, Any]], None] = lambda content: None) -> Path:
        content = suite_content()
        change(content)
        path = tmp_path / "toy.json"
        path.write_text(json.dumps(content))
        return path

    return write


class TestRegions:
    def test_sentence_leaves_empty_regions_out(self) -> None:
        condition = Condition.from_regions({1: "", 2: " The dog ", 3: " ", 4: ", barks"})
        assert condition.sentence == "The dog , barks"
        assert condition.sentence[slice(*condition.spans[4])] == ", barks"

    @pytest.mark.parametrize(
        ("start", "end", "region"),
        [
            (3, 7, 2),
            (4, 7, 2),
            (3, 4, 2),
            (4, 4, 2),
            (1, 7, 1),
            (0, 11, 1),
            (5, 7, 2),
            (7, 9, 3),
            (9, 11, None),
            (9, 9, None),
            (11, 11, None),
        ],
    )
    def test_token_goes_where_its_first_character_is(
        self, start: int, end: int, region: int | None
    ) -> None:
        """Sentence "The dog , ." whose full stop was appended, so no region holds it."""
        condition = Condition.from_regions({1: "The", 2: "dog", 3: ","})
        sums = region_surprisals(condition, [Token("token", start, end, 5.0)])
        assert sums == {number: 5.0 if number == region else 0.0 for number in (1, 2, 3)}

    @pytest.mark.parametrize("trim_offsets", [False, True])
    def test_byte_level_offsets_with_and_without_the_space(
        self, tiny_scorer: CausalLMScorer, trim_offsets: bool
    ) -> None:
        scorer = CausalLMScorer(
            tiny_scorer.model, build_tokenizer(trim_offsets=trim_offsets), name="tiny"
        )
        regions = {1: "The café", 2: "that she", 3: "🎉 knows", 4: "", 5: ", here"}
        condition = Condition.from_regions(regions)
        *tokens, eos = scorer.surprisals([condition.sentence])[0]
        sums = region_surprisals(condition, [*tokens, eos])
        assert math.fsum(sums.values()) == pytest.approx(
            math.fsum(token.surprisal for token in tokens)
        )
        count = 0
        for number, content in regions.items():
            spaced = content and (" " if number > 1 else "") + content
            pieces = scorer.tokenizer(spaced, add_special_tokens=False)["input_ids"]
            own = tokens[count : count + len(pieces)]
            count += len(pieces)
            assert sums[number] == pytest.approx(math.fsum(token.surprisal for token in own))
        assert count == len(tokens)


class TestEvaluate:
    def test_recorded_surprisals_give_the_truth_values(self, toy: Callable[..., Path]) -> None:
        """barks costs less than bark, so only the first item is right."""
        scorer = RecordedScorer({"barks": 1.0, "bark": 2.0})
        report = evaluate_sg(scorer, [load_suite(toy())], trailing_period=False)
        [result] = report.results
        assert result.outcomes == ((True, False), (True, False))
        assert report.accuracy == 0.5
        assert report.to_json()["suites"]["toy"]["wrong_items"] == [8]
        assert report.to_json()["suites"]["toy"]["accuracy_by_prediction"] == [0.5, 0.5]
        assert scorer.calls == [
            [
                "The dog barks loudly",
                "The dog bark loudly",
                "The dogs here bark",
                "The dogs here barks",
            ]
        ]

    def test_trailing_period_is_appended_and_stated(self, toy: Callable[..., Path]) -> None:
        scorer = RecordedScorer({"barks": 1.0, "bark": 2.0, ".": 50.0})
        report = evaluate_sg(scorer, [load_suite(toy())])
        assert scorer.calls[0][0] == "The dog barks loudly ."
        assert report.accuracy == 0.5
        assert report.to_json()["trailing_period"] is True

    @pytest.mark.parametrize("kind", ["plain", "pushdown"])
    def test_running_text(self, tiny_scorer: CausalLMScorer, kind: str) -> None:
        """The regions of words are those of the same sentence with its punctuation joined."""
        scorer: Scorer = tiny_scorer
        if kind == "pushdown":
            scorer = PushdownScorer(
                pushdown_model("llama", vocabulary=len(tiny_scorer.tokenizer)),
                tiny_scorer.tokenizer,
                beam=3,
            )
        regions = {1: "The dog", 2: "barks", 3: ", she knows ."}
        condition = Condition.from_regions(regions)
        words = condition.as_read(trailing_period=True, running_text=True)
        assert words == ("The", "dog", "barks", ",", "she", "knows", ".")
        joined = Condition("The dog barks, she knows.", {1: (0, 7), 2: (8, 13), 3: (13, 25)})
        [of_words], [of_text] = scorer.surprisals([words]), scorer.surprisals([joined.sentence])
        expected = region_surprisals(joined, of_text)
        assert region_surprisals(condition, of_words) == pytest.approx(expected)
        spaced = condition.as_read(trailing_period=False, running_text=False)
        [of_spaced] = scorer.surprisals([spaced])
        assert region_surprisals(condition, of_spaced) != pytest.approx(expected)

    def test_running_text_is_stated(self, toy: Callable[..., Path]) -> None:
        scorer = RecordedScorer({"barks": 1.0, "bark": 2.0})
        report = evaluate_sg(scorer, [load_suite(toy())], running_text=True)
        assert scorer.calls[0][0] == ("The", "dog", "barks", "loudly", ".")
        assert report.accuracy == 0.5
        assert report.to_json()["running_text"] is True

    def test_ties_and_failures_are_wrong_and_counted(self, toy: Callable[..., Path]) -> None:
        suite = load_suite(toy())
        tied = evaluate_sg(RecordedScorer({}), [suite]).to_json()
        assert (tied["accuracy"], tied["ties"], tied["failures"]) == (0.0, 2, 0)
        broken = evaluate_sg(RecordedScorer({"bark": math.inf}), [suite]).to_json()
        assert (broken["accuracy"], broken["ties"], broken["failures"]) == (0.0, 0, 2)

    def test_means_are_unweighted_over_suites(self, toy: Callable[..., Path]) -> None:
        suite = load_suite(toy())
        suites = [
            Suite("number_orc", suite.predictions, suite.items),
            Suite("number_src", suite.predictions, suite.items[:1]),
            Suite("center_embed", suite.predictions, suite.items[1:]),
        ]
        report = evaluate_sg(RecordedScorer({"barks": 1.0}), suites)
        assert report.circuits == {"Agreement": 0.75, "Center Embedding": 0.0}
        assert report.accuracy == 0.5
        assert report.suite_set == "other"

    def test_table(self, toy: Callable[..., Path]) -> None:
        console = Console(record=True, width=120, file=io.StringIO())
        console.print(evaluate_sg(RecordedScorer({"barks": 1.0}), [load_suite(toy())]).table())
        text = console.export_text()
        assert 'with " ." appended' in text
        assert "50.0%" in text

    def test_no_suites(self) -> None:
        with pytest.raises(PushdownError, match="at least one suite"):
            evaluate_sg(RecordedScorer({}), [])


def remove(key: str) -> Callable[[dict[str, Any]], None]:
    return lambda content: content.pop(key)


def set_formula(formula: Any) -> Callable[[dict[str, Any]], None]:
    return lambda content: content["predictions"][1].update(formula=formula)


class TestErrors:
    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (remove("items"), r"toy\.json: expected 'items' to be list, got nothing"),
            (lambda content: content.update(items=[]), "expected at least one item"),
            (lambda content: content.update(predictions=[]), "expected at least one prediction"),
            (lambda content: content["meta"].update(metric="mean"), "metric 'sum', got 'mean'"),
            (set_formula("(3;%match%) <"), r"toy\.json: prediction 2, column 14: expected a num"),
            (set_formula(3), r"prediction 2: expected 'formula' to be str, got int 3"),
            (set_formula("(3;%mtch%) < 1"), r"toy\.json: item 7: expected the condition 'mtch'"),
            (
                set_formula("(9;%match%) < 1"),
                r"item 7, condition 'match': expected the region 9 of prediction 2, "
                r"got regions \[1, 2, 3, 4\]",
            ),
            (
                lambda content: content["items"][1].pop("item_number"),
                "item at index 1: expected 'item_number' to be int, got nothing",
            ),
            (
                lambda content: content["items"][1]["conditions"][0]["regions"][2].pop("content"),
                "item 8, condition 'match', region at index 2: expected 'content'",
            ),
            (
                lambda content: content["items"][1]["conditions"][1].update(condition_name="match"),
                "item 8: expected distinct conditions, got 'match' twice",
            ),
        ],
    )
    def test_malformed_suites_name_the_place(
        self,
        toy: Callable[..., Path],
        change: Callable[[dict[str, Any]], None],
        message: str,
    ) -> None:
        with pytest.raises(PushdownError, match=message):
            load_suite(toy(change))

    def test_not_json(self, tmp_path: Path) -> None:
        path = tmp_path / "bad.json"
        path.write_text('{"meta": {},\n "items": [}')
        with pytest.raises(PushdownError, match=r"bad\.json:2:12: expected JSON"):
            load_suite(path)

    def test_missing_file(self, tmp_path: Path) -> None:
        with pytest.raises(PushdownError, match=r"number_orc\.json: expected a SyntaxGym suite"):
            load_suites(tmp_path, ["number_orc"])


class TestPublishedSuites:
    def test_sets(self, shared_data: Path) -> None:
        assert (len(SUITES_31), len(SUITES_33)) == (31, 33)
        assert sum(map(len, CIRCUITS.values())) == 33
        suites = load_suites(shared_data / "sg_suites", SUITE_SETS["31"])
        assert len(suites) == 31
        files = {path.stem for path in (shared_data / "sg_suites").glob("*.json")}
        assert files - set(SUITES_33) == {"nn-nv-rpl"}

    def test_tiny_model_on_two_items_of_each(
        self, shared_data: Path, tiny_scorer: CausalLMScorer, tmp_path: Path
    ) -> None:
        suites = [
            Suite(suite.name, suite.predictions, suite.items[:2])
            for suite in load_suites(shared_data / "sg_suites")
        ]
        path = tmp_path / "scores.jsonl"
        report = evaluate_sg(ScoreCache(tiny_scorer, path), suites, chunk_size=64)
        content = report.to_json()
        assert (content["suite_set"], content["items"], content["failures"]) == ("33", 66, 0)
        assert content["circuits"].keys() == CIRCUITS.keys()
        assert 0 < report.accuracy < 1
        assert evaluate_sg(ScoreCache(tiny_scorer, path), suites).to_json() == content
        json.dumps(content)
