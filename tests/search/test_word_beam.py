"""Word-synchronous search against enumeration, and what its beams do."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch

from pushdown_lm.model.bracket_modeling import BracketForCausalLM
from pushdown_lm.search.beam import SearchError
from pushdown_lm.search.word_beam import BracketResult, WordBeam, word_search
from pushdown_lm.trees import Tree
from pushdown_lm.trees.linearization import CLOSE, TOKEN, tree_from_actions
from tests.models import bracket_model
from tests.reference_brackets import BOS, EOS

KINDS = ("plm", "plm-mask", "tg")
WIDE = 10**6
SENTENCES = [[2, 3], [4], [3, 2, 4]]


def all_actions(num_tokens: int, num_labels: int, limit: int) -> Iterator[list[int]]:
    """Every bracketing with at most ``limit`` brackets between two tokens, and after the last."""

    def extend(actions: list[int], depth: int, run: int) -> Iterator[list[int]]:
        read = actions.count(TOKEN)
        if actions and depth == 0:
            if read == num_tokens:
                yield actions
            return
        if depth and read < num_tokens:
            yield from extend([*actions, TOKEN], depth, 0)
        if run == limit:
            return
        if read < num_tokens:
            for label in range(1, num_labels + 1):
                yield from extend([*actions, label], depth + 1, run + 1)
        if depth and actions[-1] <= 0:
            yield from extend([*actions, CLOSE], depth - 1, run + 1)

    return extend([], 0, 0)


@torch.no_grad()
def log_probs(model: BracketForCausalLM, tokens: list[int], actions: list[int]) -> list[float]:
    """The log-probabilities of the symbols after BOS, in one pass; a closer of TG counts once."""
    table = model.config.nonterminals
    symbols = table.linearize([BOS, *tokens, EOS], [TOKEN, *actions, TOKEN])
    batch = torch.tensor([symbols])
    predicted = model(batch).logits[0].log_softmax(-1)
    values, skip = [], False
    for now, symbol in enumerate(symbols[1:]):
        if skip:
            skip = False
            continue
        values.append(float(predicted[now, symbol]))
        skip = table.typed and symbol >= table.first_closer
    return values


@pytest.mark.parametrize("kind", KINDS)
def test_wide_beams_are_exact(kind: str) -> None:
    model = bracket_model(kind, seed=1)
    beam = WordBeam(WIDE, WIDE, WIDE, max_actions=2)
    results = word_search(model, SENTENCES, beam=beam, batch_entries=4 * WIDE)
    for tokens, result in zip(SENTENCES, results, strict=True):
        wanted = {
            tuple(actions): math.fsum(log_probs(model, tokens, actions))
            for actions in all_actions(len(tokens), 2, 2)
        }
        found = {
            tuple(result.actions(entry)): log_joint
            for entry, log_joint in enumerate(result.log_joints)
        }
        assert found == pytest.approx(wanted)
        assert result.log_prob == pytest.approx(
            float(torch.tensor(list(wanted.values())).double().logsumexp(0))
        )
        assert list(result.log_joints) == sorted(result.log_joints, reverse=True)
        assert result.log_prob <= result.log_prob + result.log_prob_bound
        assert math.fsum(result.surprisals) == pytest.approx(-result.log_prob)


@pytest.mark.parametrize("kind", KINDS)
def test_prefix_probabilities(kind: str) -> None:
    """Z_1 by hand: one or two openers, then the token."""
    model = bracket_model(kind, seed=2)
    [result] = word_search(model, [[3, 2]], beam=WordBeam(WIDE, WIDE, WIDE, max_actions=2))
    opened = [(1,), (2,), (1, 1), (1, 2), (2, 1), (2, 2)]
    prefixes = [
        math.fsum(values[: len(openers) + 1])
        for openers in opened
        for values in [log_probs(model, [3], [*openers, TOKEN, *[CLOSE] * len(openers)])]
    ]
    wanted = torch.tensor(prefixes, dtype=torch.float64).logsumexp(0)
    assert result.log_prefixes[0] == pytest.approx(float(wanted))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("threshold", [None, 3.0])
def test_narrow_beams_keep_true_probabilities(kind: str, threshold: float | None) -> None:
    model = bracket_model(kind, seed=3, decoder="qwen3")
    beam = WordBeam(6, 3, 2, max_actions=2)
    [exact] = word_search(model, [[3, 2, 4]], beam=WordBeam(WIDE, WIDE, WIDE, max_actions=2))
    together = word_search(model, SENTENCES, beam=beam, threshold=threshold, batch_entries=100)
    alone = [word_search(model, [s], beam=beam, threshold=threshold)[0] for s in SENTENCES]
    for tokens, result, single in zip(SENTENCES, together, alone, strict=True):
        for entry, log_joint in enumerate(result.log_joints):
            values = log_probs(model, tokens, result.actions(entry))
            assert log_joint == pytest.approx(math.fsum(values))
        assert result.log_prefixes == pytest.approx(single.log_prefixes)
        entries = range(len(result.log_joints))
        assert list(map(result.actions, entries)) == list(map(single.actions, entries))
        assert result.lost_nats > 0
    last = together[-1]
    assert last.log_prob <= exact.log_prob <= last.log_prob + last.log_prob_bound
    assert exact.log_dropped > -math.inf  # longer runs of brackets


def test_fast_track_and_cuts() -> None:
    """A beam of one entry without room for words beside brackets still reads them."""
    model = bracket_model("plm", seed=4)
    [narrow] = word_search(model, [[2, 3, 4]], beam=WordBeam(1, 1, 1))
    assert len(narrow.log_joints) <= 2
    [wider] = word_search(model, [[2, 3, 4]], beam=WordBeam(50, 10, 5))
    assert wider.log_prob > narrow.log_prob
    assert WordBeam.of(100) == WordBeam(100, 10, 5)
    assert WordBeam.of(5) == WordBeam(5, 1, 1)


def test_a_threshold_of_nothing_finds_a_parse() -> None:
    model = bracket_model("tg", seed=5)
    results = word_search(model, SENTENCES, beam=WordBeam(20, 4, 2), threshold=0.0)
    assert all(math.isfinite(result.log_prob) for result in results)


def test_labeled_trees_over_words() -> None:
    result = BracketResult(
        log_prefixes=(-1.0, -2.0, -3.0, -4.0),
        histories=torch.tensor([[1, 2, 0, 0, -1, 0, -1, -2], [1, 0, 2, 0, 0, -1, -1, -2]]),
        log_joints=(-5.0, -6.0),
        log_open_joints=(-5.0, -6.0),
        hidden=torch.empty(2, 0),
        log_dropped=-math.inf,
        lost_nats=0.0,
        num_cells=0,
        labels=("S", "NP"),
    )
    first, second = result.trees(["the", "dog", "barks"])
    assert first.tree == Tree(("the", "dog", "barks"), ((0, 2), (0, 3)), ("NP", "S"))
    assert (first.log_prob, second.log_prob) == (-5.0, -6.0)
    [merged] = result.trees(["dogs", "bark"], [2, 1])[:1]
    assert merged.tree == Tree(("dogs", "bark"), ((0, 2),), ("S",))
    assert merged.log_prob == pytest.approx(math.log(math.exp(-5) + math.exp(-6)))


def test_bad_input() -> None:
    model = bracket_model("plm")
    with pytest.raises(SearchError, match="beam: expected 1 to 1,000,000,000 words, got 0"):
        WordBeam(10, 0, 1)
    with pytest.raises(SearchError, match="threshold: expected 0 nats or more, got -1"):
        word_search(model, [[2]], threshold=-1)
    with pytest.raises(SearchError, match="sentence 1: expected a sentence of at least one token"):
        word_search(model, [[]])
    with pytest.raises(SearchError, match="of at most 0 brackets between two words, found none"):
        word_search(model, [[2]], beam=WordBeam(max_actions=0))
    model.config.decoder.max_position_embeddings = 5
    with pytest.raises(SearchError, match="bracketings of at most 5 symbols, found longer ones"):
        word_search(model, [[2, 3, 4]])


@pytest.mark.parametrize("kind", KINDS)
def test_broken_weights(kind: str) -> None:
    model = bracket_model(kind)
    torch.nn.init.constant_(next(model.parameters()), math.nan)
    with pytest.raises(SearchError):
        word_search(model, [[2, 3]])


def test_all_actions_are_trees() -> None:
    found = list(all_actions(2, 1, 2))
    assert [1, 0, 0, -1] in found
    assert [1, 1, 0, -1, 0, -1] in found
    for actions in found:
        assert len(tree_from_actions(actions, ["S"]).words) == 2
