"""The built-in corpus: a probabilistic grammar of English-like sentences with their trees.

The rules are in `grammar_rules`. The *nesting* of a sentence is the largest number of clauses
(SBAR) and prepositional phrases (PP) around one word. All recursion passes through these two, so
the sentences of bounded nesting are finitely many, and conditioning on the nesting is exact: with

    E_d(A) = P(nesting of A = d),   C_d(A) = E_0(A) + ... + E_d(A),

a rule A -> B_1 ... B_m of probability p adds to E_d(A), for every i,

    p * C_{d-1}(B_1) ... C_{d-1}(B_{i-1}) * E_d(B_i) * C_d(B_{i+1}) ... C_d(B_m):

the first child that reaches nesting d is the i-th. (SBAR and PP take d - 1 for d on the right.)
`generate` draws from these sums, `log_probability` adds up the parses of a given sentence.
"""

from __future__ import annotations

import itertools
import math
import random
import re
from bisect import bisect
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import asdict, dataclass, fields
from functools import cache, cached_property
from graphlib import TopologicalSorter
from typing import NamedTuple, TypeAlias

from pushdown_lm.corpora.grammar_rules import CLOSED_CLASSES, DOMAINS, NOUNS, RULES, SHARES, VERBS
from pushdown_lm.errors import PushdownError
from pushdown_lm.trees import Tree

_Key: TypeAlias = str | tuple[str, ...]
_Cell: TypeAlias = dict[_Key, dict[int, float]]

REPEATS_BEFORE_GIVING_UP = 10_000
"""Draws without a new sentence after which `unique` generation ends with an error."""

NESTING_LABELS = frozenset({"SBAR", "PP"})
"""The constituents that `nesting` counts."""


@dataclass(frozen=True)
class GrammarOptions:
    """How often each construction is used: its odds, the plain alternative having odds 1."""

    prepositional_modifier: float = 0.18
    """ "the boy *near the car*", for one noun phrase without a modifier."""
    subject_relative: float = 0.14
    """ "the boys *who see the dog*", for one noun phrase without a modifier."""
    object_relative: float = 0.2
    """ "the boy *that the dogs follow*", for one noun phrase without a modifier."""
    reduced_relative: float = 0.3
    """ "the boy *the dogs follow*", for one object relative with its pronoun."""
    noun_coordination: float = 0.08
    """ "*the boy and the girls*", for one plural noun phrase."""
    verb_coordination: float = 0.05
    """ "the boy *sleeps and likes the dog*", for one verb phrase."""
    sentence_coordination: float = 0.03
    """ "*he sleeps* and *she laughs*", for one simple sentence; the same again with "but"."""
    complement_clause: float = 0.15
    """ "the boy thinks *that she sleeps*", for one transitive verb."""
    question: float = 0.2
    """ "the boy knows *what she saw*", for one transitive verb."""
    reflexive: float = 0.2
    """ "the boy likes *himself*", for one transitive verb with another object."""
    negation: float = 0.15
    """ "no", "not" or "never", for one positive alternative."""
    polarity: float = 0.5
    """ "any" or "ever" where it is licensed, for one alternative without."""
    pronoun: float = 0.2
    """ "*he* sleeps", for one full noun phrase as the subject."""
    adjective: float = 0.15
    """ "the *happy* boy", for one plain noun."""
    adverb: float = 0.15
    """ "sleeps *again*", "*often* sleeps", for one verb phrase without."""
    prepositional_adjunct: float = 0.08
    """ "sleeps *near the car*", for one verb phrase without."""
    copula: float = 0.6
    """ "the boy *is happy*", for one verb phrase in the past tense."""
    present: float = 1.2
    """ "sleeps", for one "slept"."""
    perfect: float = 0.3
    """ "has slept", for one "slept"."""
    future: float = 0.15
    """ "will sleep", for one "slept"."""

    def __post_init__(self) -> None:
        for option in fields(self):
            odds = getattr(self, option.name)
            if not 0 <= odds < math.inf:
                raise PushdownError(f"{option.name}: expected finite odds >= 0, got {odds}")


@cache
def lexicon() -> Mapping[str, tuple[str, ...]]:
    """The words, equally likely, of each preterminal: `N_sm` is boy, man, king, ..."""
    words = {symbol: tuple(members) for symbol, members in CLOSED_CLASSES.items()}
    for kind, nouns in NOUNS.items():
        words[f"N_s{kind}"] = tuple(singular for singular, _ in nouns)
    words["N_pt"] = tuple(plural for _, plural in NOUNS["t"])
    words["N_pa"] = tuple(plural for kind in "mfeb" for _, plural in NOUNS[kind])
    for kind, verbs in VERBS.items():
        for form, index in zip("bpsdn", (0, 0, 1, 2, 3), strict=True):
            words[f"{kind}_{form}"] = tuple(verb[index] for verb in verbs)
    return words


@cache
def vocabulary() -> tuple[str, ...]:
    """All words of the grammar, sorted."""
    rules = grammar().rules
    literals = {symbol for rule in rules for symbol in rule.right if is_word(symbol)}
    return tuple(sorted(literals.union(*lexicon().values())))


def nesting(tree: Tree) -> int:
    """The largest number of SBAR and PP constituents around one word of a labelled tree.

    >>> nesting(Tree(["he", "sleeps", "near", "cars"], [(2, 4), (1, 4), (0, 4)], ["PP", "VP", "S"]))
    1
    """
    if tree.labels is None:
        raise PushdownError("nesting: expected a tree with labels, got one without")
    deepest = 0
    above = [(0, len(tree.words), 0)]
    for (start, end), label in zip(reversed(tree.spans), reversed(tree.labels), strict=True):
        while not above[-1][0] <= start < end <= above[-1][1]:
            above.pop()
        depth = above[-1][2] + (label in NESTING_LABELS)
        deepest = max(deepest, depth)
        above.append((start, end, depth))
    return deepest


class Rule(NamedTuple):
    """`left -> right`, chosen for `left` with this probability."""

    left: str
    right: tuple[str, ...]
    probability: float


def is_word(symbol: str) -> bool:
    """Whether a symbol of a rule stands for itself, as "and" and "." do."""
    return symbol == "." or symbol[0].islower()


def read_rules(text: str, odds: Mapping[str, float]) -> list[Rule]:
    """The rules of a text like `RULES`: variables filled in, dead ends dropped, odds normalised.

    >>> for rule in read_rules("X_{n} -> IV_{n} : 3 * y\\nX_s -> DET_s\\nX_p -> Z", {"y": 0.5}):
    ...     print(rule.left, *rule.right, rule.probability)
    X_s IV_s 0.6
    X_p IV_p 1.0
    X_s DET_s 0.4
    """
    drafts: list[Rule] = []
    for line in filter(None, text.splitlines()):
        pattern, _, factors = line.partition(":")
        names = factors.split("*") if factors else []
        variables = sorted(set(re.findall(r"{(\w)", line)))
        for values in itertools.product(*(DOMAINS[variable] for variable in variables)):
            features = dict(zip(variables, values, strict=True))
            left, _, *right = pattern.format(**features).split()
            weight = math.prod(_number(name.strip().format(**features), odds) for name in names)
            if weight > 0:
                drafts.append(Rule(left, tuple(right), weight))

    productive = set(lexicon())
    alive: list[Rule] = []
    while len(alive) < len(found := [rule for rule in drafts if _is_alive(rule, productive)]):
        alive = found
        productive.update(rule.left for rule in alive)
    totals: dict[str, float] = defaultdict(float)
    for rule in alive:
        totals[rule.left] += rule.probability
    return [rule._replace(probability=rule.probability / totals[rule.left]) for rule in alive]


def _number(name: str, odds: Mapping[str, float]) -> float:
    return odds[name] if name in odds else float(name)


def _is_alive(rule: Rule, productive: Set[str]) -> bool:
    return all(is_word(symbol) or symbol in productive for symbol in rule.right)


class _State:
    """A symbol to be expanded, its nesting being exactly or at most `depth`.

    `label` is that of its bracket, if it has one. A leaf has `words`; any other state is given its
    `productions` and their `cumulative` weights when it is first met.
    """

    __slots__ = ("cumulative", "depth", "exactly", "label", "productions", "symbol", "words")

    def __init__(self, symbol: str, depth: int, exactly: bool, words: tuple[str, ...]) -> None:
        self.symbol = symbol
        self.depth = depth
        self.exactly = exactly
        self.words = words
        self.label = None if words or symbol.startswith("@") else _label(symbol)
        self.cumulative: list[float] = []
        self.productions: list[tuple[_State, ...]] = []


def _label(symbol: str) -> str:
    return symbol.partition("_")[0]


def _nests(symbol: str) -> bool:
    return _label(symbol) in NESTING_LABELS


def _choose(cumulative: list[float], fraction: float) -> int:
    """The index drawn by a random number in [0, 1), weights being given as running sums."""
    return bisect(cumulative, fraction * cumulative[-1], hi=len(cumulative) - 1)


def _without_repeats(trees: Iterator[Tree]) -> Iterator[Tree]:
    seen: set[tuple[str, ...]] = set()
    repeats = 0
    for tree in trees:
        words = tuple(tree.words)
        if words not in seen:
            seen.add(words)
            repeats = 0
            yield tree
        elif (repeats := repeats + 1) == REPEATS_BEFORE_GIVING_UP:
            raise PushdownError(
                f"expected more unique sentences, but after {len(seen)} of them "
                f"{repeats} draws brought no other"
            )


class Grammar:
    """A grammar at given odds: a sampler and an exact chart of one distribution."""

    start = "S_root"

    def __init__(self, options: GrammarOptions | None = None, rules: str = RULES) -> None:
        self.options = options or GrammarOptions()
        shares = {f"share_{name}": share for name, share in SHARES.items()}
        self.rules = read_rules(rules, asdict(self.options) | shares)
        self._by_left: dict[str, list[Rule]] = defaultdict(list)
        for rule in self.rules:
            self._by_left[rule.left].append(rule)
        within_level = {
            left: [] if _nests(left) else [symbol for rule in own_rules for symbol in rule.right]
            for left, own_rules in self._by_left.items()
        }
        order = TopologicalSorter(within_level).static_order()
        self._order = [symbol for symbol in order if symbol in self._by_left]
        self._exact: list[dict[str, float]] = []
        self._most: list[dict[str, float]] = []
        self._states: dict[tuple[str, int, bool], _State] = {}

    def nesting_probability(self, depth: int) -> float:
        """E_d(S): the probability that a sentence of the unbounded grammar has this nesting."""
        while len(self._exact) <= depth:
            self._add_level()
        return self._exact[depth][self.start]

    def generate(
        self,
        count: int,
        *,
        seed: int,
        max_nesting: int = 2,
        min_nesting: int = 0,
        unique: bool = False,
    ) -> Iterator[Tree]:
        """Labelled trees of independent sentences with nesting from `min_nesting` to `max_nesting`.

        The first sentences of a longer run are those of a shorter run. `unique` leaves out
        sentences that came before, by their words.
        """
        if count < 0:
            raise PushdownError(f"expected a count >= 0, got {count}")
        if not 0 <= min_nesting <= max_nesting:
            raise PushdownError(
                f"expected 0 <= min_nesting <= max_nesting, got {min_nesting} and {max_nesting}"
            )
        depths = range(min_nesting, max_nesting + 1)
        cumulative = list(itertools.accumulate(map(self.nesting_probability, depths)))
        if cumulative[-1] == 0:
            raise PushdownError(f"these odds give no sentence of nesting {min_nesting} or more")
        roots = [self._state(self.start, depth, exactly=True) for depth in depths]
        source = random.Random(seed)
        draws = (
            self._sample(roots[_choose(cumulative, source.random())], source)
            for _ in itertools.repeat(None)
        )
        return itertools.islice(_without_repeats(draws) if unique else draws, count)

    def probability_by_nesting(self, words: Sequence[str]) -> dict[int, float]:
        """P(words, nesting = d) for each d of a parse, all parses added up; empty if there is none.

        The inside algorithm. A cell holds complete symbols and, as tuples, the first children of
        rules under way; a new symbol brings the symbols that unary chains lead up to.
        """
        size = len(words)
        cells: list[list[_Cell]] = [[{} for _ in range(size + 1)] for _ in range(size + 1)]
        for end in range(1, size + 1):
            self._complete(cells[end - 1][end], words[end - 1], 0, 1.0)
            for start in range(end - 2, -1, -1):
                cell = cells[start][end]
                for middle in range(start + 1, end):
                    right_cell = cells[middle][end]
                    if right_cell:
                        self._combine(cell, cells[start][middle], right_cell)
        return dict(cells[0][size].get(self.start, {})) if size else {}

    def log_probability(
        self, words: Sequence[str], *, max_nesting: int, min_nesting: int = 0
    ) -> float:
        """Natural log of the probability that `generate` draws these words; -inf if it cannot."""
        depths = range(min_nesting, max_nesting + 1)
        parses = self.probability_by_nesting(words)
        mass = sum(parses.get(depth, 0.0) for depth in depths)
        return math.log(mass / sum(map(self.nesting_probability, depths))) if mass else -math.inf

    def _add_level(self) -> None:
        """Fill in E_d and C_d of the next d, children before parents."""
        depth = len(self._exact)
        self._exact.append({})
        self._most.append({})
        for left in self._order:
            level = depth - _nests(left)
            self._exact[depth][left] = sum(
                rule.probability * weight
                for rule in self._by_left[left]
                for weight in self._first_to_reach(rule.right, level)
            )
            below = self._at_most(left, depth - 1)
            self._most[depth][left] = below + self._exact[depth][left]

    def _exactly(self, symbol: str, depth: int) -> float:
        if symbol not in self._by_left:
            return float(depth == 0)
        return self._exact[depth][symbol] if depth >= 0 else 0.0

    def _at_most(self, symbol: str, depth: int) -> float:
        if symbol not in self._by_left:
            return float(depth >= 0)
        return self._most[depth][symbol] if depth >= 0 else 0.0

    def _first_to_reach(self, right: Sequence[str], depth: int) -> Iterator[float]:
        """For each child, the probability that it is the first whose nesting is `depth`."""
        for index, child in enumerate(right):
            yield (
                math.prod(self._at_most(symbol, depth - 1) for symbol in right[:index])
                * self._exactly(child, depth)
                * math.prod(self._at_most(symbol, depth) for symbol in right[index + 1 :])
            )

    def _state(self, symbol: str, depth: int, *, exactly: bool) -> _State:
        words = (symbol,) if is_word(symbol) else lexicon().get(symbol, ())
        key = (symbol, 0, True) if words else (symbol, depth, exactly)
        if key not in self._states:
            self._states[key] = _State(*key, words)
        return self._states[key]

    def _expand(self, state: _State) -> None:
        """Fill in the productions of a state and their weights."""
        level = state.depth - _nests(state.symbol)
        weights = []
        for rule in self._by_left[state.symbol]:
            at_most = [self._state(symbol, level, exactly=False) for symbol in rule.right]
            if not state.exactly:
                chances = [math.prod(self._at_most(symbol, level) for symbol in rule.right)]
                choices = [at_most]
            else:
                chances = list(self._first_to_reach(rule.right, level))
                choices = [
                    [self._state(symbol, level - 1, exactly=False) for symbol in rule.right[:index]]
                    + [self._state(rule.right[index], level, exactly=True)]
                    + at_most[index + 1 :]
                    for index in range(len(rule.right))
                ]
            for chance, children in zip(chances, choices, strict=True):
                if chance > 0:
                    weights.append(rule.probability * chance)
                    state.productions.append(tuple(reversed(children)))
        state.cumulative = list(itertools.accumulate(weights))

    def _sample(self, root: _State, source: random.Random) -> Tree:
        """Expand states from left to right; a bracket is written when its last word is."""
        draw = source.random
        words: list[str] = []
        spans: list[tuple[int, int]] = []
        labels: list[str] = []
        agenda: list[_State | tuple[int, str]] = [root]
        while agenda:
            item = agenda.pop()
            if isinstance(item, tuple):
                start, label = item
                span = (start, len(words))
                if spans and spans[-1] == span:
                    labels[-1] = label
                elif span[1] - start > 1:
                    spans.append(span)
                    labels.append(label)
            elif item.words:
                words.append(item.words[int(draw() * len(item.words))])
            else:
                if not item.productions:
                    self._expand(item)
                if item.label is not None:
                    agenda.append((len(words), item.label))
                if len(item.productions) == 1:
                    agenda.extend(item.productions[0])
                else:
                    agenda.extend(item.productions[_choose(item.cumulative, draw())])
        return Tree(tuple(words), tuple(spans), tuple(labels))

    @cached_property
    def _continuations(self) -> dict[_Key, dict[str, list[tuple[_Key, float]]]]:
        """For what has been found of a rule and the child that follows: what is found then."""
        table: dict[_Key, dict[str, list[tuple[_Key, float]]]] = {}
        for rule in self.rules:
            for length in range(2, len(rule.right) + 1):
                *first, last = rule.right[:length]
                found: _Key = tuple(first) if len(first) > 1 else first[0]
                targets = table.setdefault(found, {}).setdefault(last, [])
                if length == len(rule.right):
                    targets.append((rule.left, rule.probability))
                elif (rule.right[:length], 1.0) not in targets:
                    targets.append((rule.right[:length], 1.0))
        return table

    @cached_property
    def _parents(self) -> dict[str, list[tuple[str, float]]]:
        """The unary rules by their child, words below preterminals among them."""
        table: dict[str, list[tuple[str, float]]] = defaultdict(list)
        for rule in self.rules:
            if len(rule.right) == 1:
                table[rule.right[0]].append((rule.left, rule.probability))
        for preterminal, words in lexicon().items():
            for word in words:
                table[word].append((preterminal, 1 / len(words)))
        return table

    def _complete(self, cell: _Cell, symbol: str, depth: int, mass: float) -> None:
        """Add a symbol to a cell, and with it all that unary chains make of it."""
        agenda = [(symbol, depth, mass)]
        while agenda:
            symbol, depth, mass = agenda.pop()
            depth += _nests(symbol)
            masses = cell.setdefault(symbol, {})
            masses[depth] = masses.get(depth, 0.0) + mass
            agenda.extend((left, depth, mass * p) for left, p in self._parents.get(symbol, ()))

    def _combine(self, cell: _Cell, left_cell: _Cell, right_cell: _Cell) -> None:
        for found, left_masses in left_cell.items():
            for child, targets in self._continuations.get(found, {}).items():
                if child not in right_cell:
                    continue
                pairs = itertools.product(left_masses.items(), right_cell[child].items())
                for (left_depth, left_mass), (right_depth, right_mass) in pairs:
                    depth = max(left_depth, right_depth)
                    for target, probability in targets:
                        mass = left_mass * right_mass * probability
                        if isinstance(target, str):
                            self._complete(cell, target, depth, mass)
                        else:
                            masses = cell.setdefault(target, {})
                            masses[depth] = masses.get(depth, 0.0) + mass


@cache
def grammar(options: GrammarOptions | None = None) -> Grammar:
    """The grammar with the given odds, built once."""
    return Grammar(options)


def generate(
    count: int,
    *,
    seed: int,
    max_nesting: int = 2,
    min_nesting: int = 0,
    unique: bool = False,
    options: GrammarOptions | None = None,
) -> Iterator[Tree]:
    """Labelled trees of `count` sentences of the built-in grammar: see `Grammar.generate`.

    >>> tree = next(generate(1, seed=22, min_nesting=1, max_nesting=1))
    >>> " ".join(tree.words)
    'the king this pilot usually sees swims .'
    >>> [" ".join(tree.words[start:end]) for start, end in tree.spans[:4]]
    ['the king', 'this pilot', 'usually sees', 'this pilot usually sees']
    >>> tree.labels
    ('NP', 'NP', 'VP', 'SBAR', 'NP', 'S')
    """
    return grammar(options).generate(
        count, seed=seed, max_nesting=max_nesting, min_nesting=min_nesting, unique=unique
    )
