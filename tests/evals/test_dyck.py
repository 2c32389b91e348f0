"""Answers to Dyck prefixes, against enumeration of all parses and against plain search."""

from __future__ import annotations

from itertools import islice

import numpy as np
import pytest
import torch
from scipy.stats import binomtest

from pushdown_lm.corpora.dyck import Dyck, Prefix
from pushdown_lm.evals.dyck import Answer, evaluate_dyck, wilson_interval
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.search.beam import SearchError, search
from tests.models import BOS, pushdown_model
from tests.reference_search import all_histories

LANGUAGE = Dyck(num_types=3, max_nesting=3, min_length=4, max_length=10)
IDS = np.array([4, 5, 6, 7, 8, 9])


def prefixes(count: int, seed: int = 0) -> list[Prefix]:
    """All that precedes the last bracket of short strings."""
    strings = islice(LANGUAGE.strings(seed), count)
    return [Prefix(s[:-1], a[:-1], int(s[-1]), 0) for s, a in strings]


def model_of(kind: str = "nope", seed: int = 0, **options: object) -> PushdownForCausalLM:
    return pushdown_model(kind, seed=seed, layers=2, num_depths=4, num_distances=3, **options)


@torch.no_grad()
def closing_probabilities(
    model: PushdownForCausalLM, tokens: list[int], parses: list[list[int]]
) -> tuple[torch.Tensor, torch.Tensor]:
    """p(prefix, r) and p(closing bracket | prefix, r) of every parse r, one at a time."""
    joints, nexts = [], []
    ids = torch.tensor([[BOS, *tokens]])
    for parse in parses:
        output = model(ids, attachments=torch.tensor([[0, *parse]]))
        log_probs = output.logits[0].log_softmax(-1)
        joint = log_probs[:-1].gather(-1, ids[0, 1:, None]).sum()
        for row, target in enumerate(output.attachment_targets[0].tolist()):
            if target >= 0:
                joint += output.attachment_logits[0, row].log_softmax(-1)[target]
        joints.append(joint.exp())
        nexts.append(log_probs[-1, IDS[3:]].exp())
    return torch.stack(joints), torch.stack(nexts)


@pytest.mark.parametrize("answer", ["mixture", "best"])
@pytest.mark.parametrize("legality", ["constituents", "open_tokens"])
def test_own_parses_as_enumerated(legality: str, answer: Answer) -> None:
    model = model_of(seed=1, legality=legality)
    asked = [prefix for prefix in prefixes(40) if len(prefix.symbols) <= 5]
    scores = evaluate_dyck(model, asked, IDS, beam=10_000, threshold=torch.inf, answer=answer)
    for number, prefix in enumerate(asked):
        parses = list(all_histories(len(prefix.symbols), legality))
        joints, nexts = closing_probabilities(model, IDS[prefix.symbols].tolist(), parses)
        mixture = (joints[:, None] * nexts).sum(0)
        answers = mixture if answer == "mixture" else nexts[int(joints.argmax())]
        assert scores.correct[number] == (int(answers.argmax()) == prefix.answer - 3)
        best = np.array(parses[int(joints.argmax())])
        right = (best == prefix.attachments)[1:].sum()
        assert scores.right_attachments[number] == right
        assert scores.first_wrong_nesting[number] == nesting_at_first_error(prefix, best)
    assert 0 < scores.accuracy < 1
    assert len(set(scores.first_wrong_nesting.tolist())) > 2


def nesting_at_first_error(prefix: Prefix, parse: np.ndarray) -> int:
    nesting = 0
    for symbol, gold, found in zip(prefix.symbols, prefix.attachments, parse, strict=True):
        if gold != found:
            return nesting
        nesting += 1 if symbol < LANGUAGE.num_types else -1
    return -1


@pytest.mark.parametrize("kind", ["nope", "llama", "gpt2"])
def test_what_is_not_searched_is_what_search_would_find(kind: str) -> None:
    model = model_of(kind, seed=3)
    asked, threshold = prefixes(80), 0.05
    scores = evaluate_dyck(model, asked, IDS, beam=4, threshold=threshold)
    assert 0 < scores.searched.sum() < len(asked)
    found = search(
        model, [IDS[prefix.symbols].tolist() for prefix in asked], beam=4, threshold=threshold
    )
    for number, (prefix, result) in enumerate(zip(asked, found, strict=True)):
        parses = result.histories.tolist()
        _, nexts = closing_probabilities(model, IDS[prefix.symbols].tolist(), parses)
        weights = torch.tensor(result.log_open_joints).exp()
        mixture = (weights[:, None] * nexts).sum(0)
        assert scores.correct[number] == (int(mixture.argmax()) == prefix.answer - 3)
        is_gold = parses == [prefix.attachments.tolist()]
        if not scores.searched[number]:
            assert is_gold
        right = (np.array(parses[0]) == prefix.attachments)[1:].sum()
        assert scores.right_attachments[number] == right


def test_gold_parses() -> None:
    model, asked = model_of(seed=5), prefixes(40)
    scores = evaluate_dyck(model, asked, IDS, beam=2)
    for prefix, correct in zip(asked, scores.correct_with_gold, strict=True):
        gold = [prefix.attachments.tolist()]
        _, nexts = closing_probabilities(model, IDS[prefix.symbols].tolist(), gold)
        assert correct == (int(nexts[0].argmax()) == prefix.answer - 3)
    assert scores.num_attachments.tolist() == [len(prefix.symbols) - 1 for prefix in asked]


def test_without_pushdown_layers_the_parse_changes_nothing() -> None:
    model, asked = model_of(seed=2, pushdown_layers=[]), prefixes(40)
    scores = evaluate_dyck(model, asked, IDS)
    assert scores.correct.tolist() == scores.correct_with_gold.tolist()
    assert scores.searched.any()
    assert scores.attachment_accuracy < 1
    assert scores.whole_parses < 1


def test_small_batches_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    model, asked = model_of(seed=1), prefixes(30)
    whole = evaluate_dyck(model, asked, IDS, beam=3)
    monkeypatch.setattr("pushdown_lm.evals.dyck.PAIRS", 1)
    done: list[float] = []
    single = evaluate_dyck(
        model,
        asked,
        IDS,
        beam=3,
        search_cells=1,
        advance=lambda count=1, note="": done.append(count),
    )
    assert single.correct.tolist() == whole.correct.tolist()
    assert single.right_attachments.tolist() == whole.right_attachments.tolist()
    assert sum(done) == len(asked)


def test_a_model_without_head_cannot_parse() -> None:
    with pytest.raises(SearchError, match="expected a model with an attachment head"):
        evaluate_dyck(model_of(attachment_head=None), prefixes(1), IDS)


@pytest.mark.parametrize(("right", "trials"), [(0, 7), (3, 7), (7, 7), (480, 500), (500, 500)])
def test_wilson_interval(right: int, trials: int) -> None:
    expected = binomtest(right, trials).proportion_ci(method="wilson")
    assert wilson_interval(right, trials) == pytest.approx((expected.low, expected.high), abs=1e-6)


def test_wilson_interval_of_nothing() -> None:
    with pytest.raises(ValueError, match="got 3 of 2"):
        wilson_interval(3, 2)
