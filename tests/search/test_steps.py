"""Search token by token: against enumeration, and against the search of batches."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.search.beam import SearchError, SearchResult, search
from pushdown_lm.search.steps import Step, plain_steps, search_steps
from tests.models import EOS, VOCABULARY, random_model
from tests.reference_search import legal_histories, log_joints

SENTENCE = [2, 5, 3, 6, 4]
EVERYTHING = 10_000
MODELS = {
    "gpt2": {},
    "in context": {"pushdown_layers": [1, 2], "head_input": "lower_layers"},
    "base": {"pushdown_layers": []},
}


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> PushdownForCausalLM:
    return random_model(seed=3, **MODELS[request.param])


def run(
    model: PushdownForCausalLM, sentence: list[int], **options: object
) -> tuple[list[Step], SearchResult]:
    steps = search_steps(model, sentence, **options)  # type: ignore[arg-type]
    seen = []
    while True:
        try:
            seen.append(next(steps))
        except StopIteration as end:
            return seen, end.value


def exact_prediction(model: PushdownForCausalLM, prefix: list[int]) -> torch.Tensor:
    """p(x_t | x_<t) of every token, by enumeration of the parses of x_<t."""
    histories = legal_histories(model, len(prefix))
    joints = [
        log_joints(model, [*prefix, token], histories).logsumexp(0) for token in range(VOCABULARY)
    ]
    return torch.stack(joints).softmax(0)


def test_expectations_are_exact(model: PushdownForCausalLM) -> None:
    steps, _ = run(model, SENTENCE, beam=EVERYTHING, shown=VOCABULARY)
    for number, step in enumerate(steps):
        exact = exact_prediction(model, SENTENCE[:number])
        entropy = -float((exact * exact.log()).nan_to_num().sum())
        assert step.entropy == pytest.approx(entropy, abs=1e-9)
        found = torch.zeros_like(exact)
        for token, probability in step.expected:
            found[token] = probability
        torch.testing.assert_close(found, exact, atol=1e-9, rtol=0)
        assert list(step.expected) == sorted(step.expected, key=lambda pair: -pair[1])


def test_shares_of_partial_parses_are_exact(model: PushdownForCausalLM) -> None:
    steps, _ = run(model, SENTENCE, beam=EVERYTHING, shown=EVERYTHING)
    for step in steps[:-1]:
        prefix = SENTENCE[: step.position]
        histories = legal_histories(model, len(prefix))
        with_attachment = log_joints(model, [*prefix, EOS], histories) - _log_end(
            model, prefix, histories
        )
        exact = with_attachment.softmax(0).tolist()
        by_history = dict(zip(map(tuple, histories), exact, strict=True))
        assert dict(zip(step.histories, step.shares, strict=True)) == pytest.approx(by_history)
        assert step.num_entries == len(histories)
        assert (step.num_dropped, step.dropped_share, step.dropped) == (0, 0.0, ())


def _log_end(
    model: PushdownForCausalLM, prefix: list[int], histories: list[list[int]]
) -> torch.Tensor:
    """log p(EOS | x_<=t, r_<=t) of each history."""
    ids = torch.tensor([[0, *prefix]] * len(histories))
    attachments = torch.tensor([[0, *history] for history in histories])
    with torch.no_grad():
        return model(ids, attachments=attachments).logits[:, -1].log_softmax(-1)[:, EOS]


@given(
    sentence=st.lists(st.integers(2, VOCABULARY - 1), min_size=1, max_size=7),
    beam=st.integers(1, 12),
    threshold=st.none() | st.floats(0, 5),
)
def test_the_result_is_that_of_batches(
    sentence: list[int], beam: int, threshold: float | None
) -> None:
    model = random_model(seed=3)
    steps, result = run(model, sentence, beam=beam, threshold=threshold, shown=beam)
    expected = search(model, [sentence], beam=beam, threshold=threshold)[0]
    assert result.log_prefixes == expected.log_prefixes
    assert result.log_joints == expected.log_joints
    assert result.histories.equal(expected.histories)
    assert [step.log_prefix for step in steps] == list(expected.log_prefixes)
    assert [step.position for step in steps] == list(range(1, len(sentence) + 2))
    assert steps[-1].histories == tuple(map(tuple, expected.histories.tolist()))
    lost = -sum(math.log1p(-min(step.dropped_share, 1.0)) for step in steps)
    assert lost == pytest.approx(expected.lost_nats, abs=1e-9)
    for step in steps:
        assert sum(step.shares) == pytest.approx(1.0)
        assert not set(step.histories) & set(step.dropped)


def test_what_is_dropped_is_told(model: PushdownForCausalLM) -> None:
    steps, _ = run(model, SENTENCE, beam=2, shown=EVERYTHING)
    step = steps[2]
    assert step.num_entries == len(step.histories) == 2
    assert step.num_dropped == len(step.dropped) > 0
    assert sum(step.dropped_shares) == pytest.approx(step.dropped_share)
    assert list(step.dropped_shares) == sorted(step.dropped_shares, reverse=True)
    assert min(step.shares) * (1 - step.dropped_share) >= max(step.dropped_shares) - 1e-12


def test_a_search_that_is_left_gives_the_model_back() -> None:
    model = random_model(seed=3, pushdown_layers=[1, 2])
    before = search(model, [SENTENCE], beam=3)[0].log_prob
    steps = search_steps(model, SENTENCE, beam=3)
    next(steps)
    steps.close()
    assert search(model, [SENTENCE], beam=3)[0].log_prob == before


def test_broken_weights_are_an_error() -> None:
    model = random_model(seed=3)
    with torch.no_grad():
        model.get_input_embeddings().weight[5] = torch.nan
    with pytest.raises(SearchError, match="the model's weights are broken"):
        run(model, SENTENCE)


def test_a_plain_model_is_what_search_sums_to() -> None:
    """Where no layer sees the parse, all parses of a model with a head sum to the model without."""
    parser = random_model(seed=3, pushdown_layers=[])
    plain = random_model(pushdown_layers=[], attachment_head=None)
    plain.decoder.load_state_dict(parser.decoder.state_dict())
    searched, _ = run(parser, SENTENCE, beam=EVERYTHING, shown=4)
    for step, expected in zip(plain_steps(plain, SENTENCE, shown=4), searched, strict=True):
        assert step.position == expected.position
        assert step.log_prefix == pytest.approx(expected.log_prefix)
        assert step.entropy == pytest.approx(expected.entropy)
        assert [token for token, _ in step.expected] == [token for token, _ in expected.expected]
        assert step.histories == step.dropped == ()


def test_a_model_that_parses_is_not_plain() -> None:
    with pytest.raises(SearchError, match="expected a model without pushdown layers"):
        plain_steps(random_model(), SENTENCE)
