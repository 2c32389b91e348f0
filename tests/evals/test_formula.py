from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushdown_lm.errors import PushdownError
from pushdown_lm.evals.formula import Formula

ITEM = {"a": {1: 2.0, 2: 3.0}, "b": {1: 4.0, 2: 0.0}, "with-dash_1": {10: 6.0}}


@pytest.mark.parametrize(
    ("text", "truth"),
    [
        ("(1;%a%) < (2;%a%)", True),
        ("(1;%a%) < 2", False),
        ("(1;%b%) > (2;%a%)", True),
        ("(1;%b%)>4", False),
        ("(1;%a%) + (2;%a%) = 5", True),
        ("(1;%a%) - (2;%a%) = 0 - 1", True),
        ("(1;%a%) * (2;%a%) = 6.0", True),
        ("(1;%b%) / (1;%a%) = 2e0", True),
        ("-(1;%a%) < .5", True),
        ("2 + 3 * 4 = 14", True),
        ("[2 + 3] * 4 = 20", True),
        ("(2 + 3) * 4 = 20", True),
        ("8 - 4 - 2 = 2", True),
        ("8 / 4 / 2 = 1", True),
        ("1 + 1 < 1 + 2", True),
        ("1 < 2 & 2 < 1", False),
        ("1 < 2 | 2 < 1", True),
        ("1 < 2 | 1 < 2 & 2 < 1", True),
        ("[1 < 2 | 1 < 2] & 2 < 1", False),
        ("1 < 2 & 2 < 3 & 4 < 3", False),
        ("(*;%a%) = 5", True),
        ("( 10 ; %with-dash_1% ) = 6 ", True),
        ("1 = 1.0009", True),
        ("1 = 1.0011", False),
        ("1000 = 1000.0105", True),
        ("1000 = 1000.0115", False),
        ("1 / (2;%b%) > 0", False),
        ("1 / (2;%b%) < 0", False),
    ],
)
def test_hand_worked(text: str, truth: bool) -> None:
    assert Formula.parse(text).holds(ITEM) is truth


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "column 1: expected a number, a region .* got the end"),
        ("(1;%a%) <", "column 10: expected a number.* got the end"),
        ("1 < 2 & ", "column 9: expected a number.* got the end"),
        ("1 < & 2", r"column 5: expected a number.* got '&'"),
        ("[1 < 2)", r"column 7: expected '\]', got '\)'"),
        ("[1 < 2", r"column 7: expected '\]', got the end"),
        ("1 < 2]", r"column 6: expected an operator or the end .* got '\]'"),
        ("1 < 2 3", "column 7: expected an operator or the end .* got '3'"),
        ("1 < x", "column 5: expected a number, a region or an operator, got 'x'"),
        ("(1;a) < 2", "column 3: .* got ';'"),
        ("1 + 2", "column 1: expected a comparison, got a number"),
        ("1 < 2 < 3", "column 1: expected a number beside '<', got a comparison"),
        ("1 < 2 & 3", "column 9: expected a comparison beside '&', got a number"),
        ("1 + [2 < 3] > 1", r"column 5: expected a number beside '\+', got a comparison"),
        ("-[2 < 3] > 1", "column 2: expected a number beside '-', got a comparison"),
    ],
)
def test_errors_name_the_column(text: str, message: str) -> None:
    with pytest.raises(PushdownError, match=message):
        Formula.parse(text)


def test_ties_and_values_that_are_not_finite() -> None:
    formula = Formula.parse("[(1;%a%) < (2;%a%)] & [(1;%a%) > 0]")
    assert formula.has_tie({"a": {1: 2.0, 2: 2.0}})
    assert not formula.has_tie({"a": {1: 2.0, 2: 2.5}})
    assert formula.is_finite({"a": {1: 2.0, 2: 2.0, 3: math.inf}})
    assert not formula.is_finite({"a": {1: 2.0, 2: math.inf}})


NUMBERS = st.integers(0, 9).map(str)
SUMS = st.recursive(
    NUMBERS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*"), inner).map(" ".join),
        inner.map("({})".format),
    ),
    max_leaves=8,
)
TRUTHS = st.recursive(
    st.tuples(SUMS, st.sampled_from("<>"), SUMS).map(" ".join),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("&|"), inner).map(" ".join),
        inner.map("({})".format),
    ),
    max_leaves=5,
)


@given(TRUTHS)
def test_agrees_with_python_on_formulas_of_numbers(text: str) -> None:
    python = text.replace("&", " and ").replace("|", " or ")
    assert Formula.parse(text).holds({}) is bool(eval(python))


def test_all_published_formulas_parse(shared_data: Path) -> None:
    paths = sorted((shared_data / "sg_suites").glob("*.json"))
    assert len(paths) == 34
    for path in paths:
        for prediction in json.loads(path.read_text())["predictions"]:
            formula = Formula.parse(prediction["formula"])
            assert len(formula.regions()) == prediction["formula"].count(";")
