"""Prediction formulas of SyntaxGym suites: a parser and an evaluator.

A formula compares region surprisals within an item, for instance

    [(7;%match_sing%) < (7;%mismatch_sing%)] & [(7;%match_plural%) < (7;%mismatch_plural%)]
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from pushdown_lm.errors import PushdownError

EQUAL_RELATIVE_TOLERANCE = 1e-5
EQUAL_ABSOLUTE_TOLERANCE = 1e-3

Surprisals = Mapping[str, Mapping[int, float]]
"""Surprisal in bits by condition and region."""


@dataclass(frozen=True, slots=True)
class Number:
    value: float


@dataclass(frozen=True, slots=True)
class RegionSurprisal:
    """``(5;%condition%)``, or ``(*;%condition%)`` for the sum over all regions (None)."""

    region: int | None
    condition: str


@dataclass(frozen=True, slots=True)
class Operation:
    operator: str
    left: Expression
    right: Expression


Expression = Number | RegionSurprisal | Operation

_PRECEDENCE = {"|": 1, "&": 2, "<": 3, ">": 3, "=": 3, "+": 4, "-": 4, "*": 5, "/": 5}
_CLOSING = {"(": ")", "[": "]"}
_LEXEME = re.compile(
    r"""\s*(?:
        (?P<region> \(\s* (?P<number>\d+|\*) \s*;\s* %(?P<condition>[^%]+)% \s*\) )
      | (?P<literal> \d+(?:\.\d*)?(?:[eE][+-]?\d+)? | \.\d+(?:[eE][+-]?\d+)? )
      | (?P<symbol> [-+*/<>=&|()\[\]] )
      | (?P<end> \Z )
    )""",
    re.VERBOSE,
)


def _equal(left: float, right: float) -> bool:
    """NumPy's `isclose`, as in SyntaxGym: the tolerance is relative to the right side."""
    return abs(left - right) <= EQUAL_ABSOLUTE_TOLERANCE + EQUAL_RELATIVE_TOLERANCE * abs(right)


_COMPARISONS: dict[str, Callable[[float, float], bool]] = {
    "<": lambda left, right: left < right,
    ">": lambda left, right: left > right,
    "=": _equal,
}
_ARITHMETIC: dict[str, Callable[[float, float], float]] = {
    "+": lambda left, right: left + right,
    "-": lambda left, right: left - right,
    "*": lambda left, right: left * right,
    "/": lambda left, right: left / right if right else math.nan,
}


MAX_LENGTH = 4000
MAX_NESTING = 100
"""Formulas are evaluated by recursion; the published ones have a few levels."""


@dataclass(frozen=True, slots=True)
class Formula:
    """A parsed prediction formula.

    From loosest to tightest: ``|``, ``&``, one comparison ``< > =``, ``+ -``, ``* /``, a sign,
    and ``( )`` or ``[ ]`` around anything; operators of one level group to the left. ``=`` holds
    within rtol 1e-5 and atol 1e-3. Dividing by zero gives NaN, of which no comparison is true.

    >>> formula = Formula.parse("[(1;%a%) + (2;%a%)] > (1;%b%)")
    >>> formula.holds({"a": {1: 2.0, 2: 3.0}, "b": {1: 4.5}})
    True
    """

    text: str
    root: Expression

    @classmethod
    def parse(cls, text: str) -> Formula:
        if len(text) > MAX_LENGTH:
            raise PushdownError(
                f"column {MAX_LENGTH + 1}: expected a formula of at most {MAX_LENGTH} characters, "
                f"got {len(text):,}"
            )
        return cls(text, _FormulaParser(text).parse())

    def holds(self, surprisals: Surprisals) -> bool:
        return bool(_evaluate(self.root, surprisals))

    def regions(self) -> list[RegionSurprisal]:
        """The region terms of the formula, from left to right."""
        return [node for node in _walk(self.root) if isinstance(node, RegionSurprisal)]

    def has_tie(self, surprisals: Surprisals) -> bool:
        """Whether both sides of some ``<`` or ``>`` are exactly equal."""
        return any(
            _evaluate(node.left, surprisals) == _evaluate(node.right, surprisals)
            for node in _walk(self.root)
            if isinstance(node, Operation) and node.operator in "<>"
        )

    def is_finite(self, surprisals: Surprisals) -> bool:
        """Whether every region that the formula reads has a finite surprisal."""
        return all(math.isfinite(_evaluate(node, surprisals)) for node in self.regions())


def _walk(node: Expression) -> list[Expression]:
    if isinstance(node, Operation):
        return [node, *_walk(node.left), *_walk(node.right)]
    return [node]


def _evaluate(node: Expression, surprisals: Surprisals) -> float:
    """The value of an expression; truth values are 1.0 and 0.0."""
    if isinstance(node, Number):
        return node.value
    if isinstance(node, RegionSurprisal):
        by_region = surprisals[node.condition]
        return math.fsum(by_region.values()) if node.region is None else by_region[node.region]
    left, right = _evaluate(node.left, surprisals), _evaluate(node.right, surprisals)
    if node.operator in _ARITHMETIC:
        return _ARITHMETIC[node.operator](left, right)
    if node.operator in _COMPARISONS:
        return float(_COMPARISONS[node.operator](left, right))
    return min(left, right) if node.operator == "&" else max(left, right)


def _is_truth_value(node: Expression) -> bool:
    return isinstance(node, Operation) and node.operator not in _ARITHMETIC


class _FormulaParser:
    """Precedence climbing over the lexemes of a formula, types checked on the way."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.lexeme = self._lexeme_at(0)
        self.nesting = 0

    def parse(self) -> Expression:
        root = self._expression(lowest=1)
        if self.lexeme.lastgroup != "end":
            raise self._error("an operator or the end of the formula")
        if not _is_truth_value(root):
            raise PushdownError(f"column 1: expected a comparison, got a number: {self.text!r}")
        return root

    def _expression(self, lowest: int) -> Expression:
        left_at = self._column()
        left = self._operand()
        while (operator := self._symbol()) in _PRECEDENCE and _PRECEDENCE[operator] >= lowest:
            self._advance()
            right_at = self._column()
            right = self._expression(_PRECEDENCE[operator] + 1)
            for node, column in ((left, left_at), (right, right_at)):
                self._check_operand(operator, node, column)
            left = Operation(operator, left, right)
        return left

    def _operand(self) -> Expression:
        self.nesting += 1
        if self.nesting > MAX_NESTING:
            raise self._error(f"at most {MAX_NESTING} levels of nesting")
        operand = self._bare_operand()
        self.nesting -= 1
        return operand

    def _bare_operand(self) -> Expression:
        lexeme = self.lexeme
        if lexeme["region"]:
            self._advance()
            number = lexeme["number"]
            return RegionSurprisal(None if number == "*" else int(number), lexeme["condition"])
        if lexeme["literal"]:
            self._advance()
            return Number(float(lexeme["literal"]))
        if self._symbol() == "-":
            self._advance()
            column = self._column()
            operand = self._operand()
            self._check_operand("-", operand, column)
            return Operation("-", Number(0.0), operand)
        if self._symbol() in _CLOSING:
            closing = _CLOSING[self._symbol()]
            self._advance()
            inner = self._expression(lowest=1)
            if self._symbol() != closing:
                raise self._error(f"{closing!r}")
            self._advance()
            return inner
        raise self._error("a number, a region such as (5;%condition%) or an opening bracket")

    def _check_operand(self, operator: str, operand: Expression, column: int) -> None:
        wanted = "comparison" if operator in "&|" else "number"
        got = "comparison" if _is_truth_value(operand) else "number"
        if got != wanted:
            raise PushdownError(
                f"column {column}: expected a {wanted} beside {operator!r}, got a {got}: "
                f"{self.text!r}"
            )

    def _lexeme_at(self, position: int) -> re.Match[str]:
        lexeme = _LEXEME.match(self.text, position)
        if lexeme is None:
            found = len(self.text) - len(self.text[position:].lstrip())
            raise PushdownError(
                f"column {found + 1}: expected a number, a region or an operator, "
                f"got {self.text[found]!r}: {self.text!r}"
            )
        return lexeme

    def _advance(self) -> None:
        self.lexeme = self._lexeme_at(self.lexeme.end())

    def _symbol(self) -> str:
        return self.lexeme["symbol"] or ""

    def _column(self) -> int:
        return self.lexeme.end() - len(self.lexeme[0].lstrip()) + 1

    def _error(self, expected: str) -> PushdownError:
        found = self.lexeme[0].strip()
        return PushdownError(
            f"column {self._column()}: expected {expected}, "
            f"got {repr(found) if found else 'the end'}: {self.text[:200]!r}"
        )
