"""Beam search against enumeration and against the reference search."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Sequence

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from pushdown_lm.model.modeling import PushdownForCausalLM, attention_modules
from pushdown_lm.search.beam import SearchError, SearchResult, log_joint, posteriors, search
from pushdown_lm.trees import Tree, merge_pieces
from pushdown_lm.trees.oracle import tree_from_attachments
from tests.models import EOS, VOCABULARY, random_model
from tests.reference_search import (
    exact_log_prefixes,
    legal_histories,
    log_joints,
    reference_search,
)

MODELS = {
    "gpt2": {},
    "upper layers": {"pushdown_layers": [1, 2]},
    "one layer": {"pushdown_layers": [1]},
    "base": {"pushdown_layers": []},
    "llama": {"decoder": "llama", "pushdown_layers": [1, 2]},
    "windows and soft caps": {"decoder": "gemma2", "pushdown_layers": [1]},
    "distances": {"num_distances": 3},
    "open distances": {"num_distances": 3, "distance_counts": "open_tokens"},
    "tape on values": {"decoder": "llama", "num_distances": 3, "tape_on_values": True},
    "open tokens": {"legality": "open_tokens", "num_depths": 2},
    "multi-task": {"pushdown_layers": [], "head_sees_tape": False},
    "appendix": {"attachment_head": "appendix", "num_distances": 2},
    "published": {"decoder": "relative", "attachment_head": "published"},
    "bilinear": {"attachment_head": "bilinear"},
    "next token in context": {"pushdown_layers": [1, 2], "head_input": "lower_layers"},
    "in context, llama": {
        "decoder": "llama",
        "pushdown_layers": [2],
        "head_input": "lower_layers",
        "num_distances": 3,
    },
    "one boundary token": {"bos_token_id": EOS},
}
SENTENCE = [2, 5, 3, 6, 4, 5]
CATALAN = [1, 1, 2, 5, 14, 42, 132]
MOTZKIN = [1, 1, 2, 4, 9, 21, 51]
HISTORIES = {"constituents": CATALAN, "open_tokens": MOTZKIN}
"""How many histories a sentence has, by its length."""


@pytest.fixture(scope="module", params=MODELS)
def model(request: pytest.FixtureRequest) -> PushdownForCausalLM:
    return random_model(seed=3, **MODELS[request.param])


@pytest.fixture(scope="module")
def gpt2() -> PushdownForCausalLM:
    return random_model(seed=4)


def sentences(max_size: int = 7) -> st.SearchStrategy[list[int]]:
    return st.lists(st.integers(2, VOCABULARY - 1), min_size=1, max_size=max_size)


def exact_trees(model: PushdownForCausalLM, sentence: Sequence[int]) -> dict[Tree, float]:
    """log p(x, tree) of every binary tree, summed over the histories that close to it."""
    words = tuple(map(str, sentence))
    histories = legal_histories(model, len(sentence))
    scores: dict[Tree, list[float]] = defaultdict(list)
    joints = log_joints(model, [*sentence, EOS], histories).tolist()
    for history, joint in zip(histories, joints, strict=True):
        tree = tree_from_attachments([0, *history, 0], words)
        scores[Tree(words, tuple(tree.spans))].append(joint)
    return {
        tree: float(torch.tensor(joint, dtype=torch.float64).logsumexp(0))
        for tree, joint in scores.items()
    }


# ------------------------------------------------------------------ exactness


@pytest.mark.parametrize("length", range(1, 7))
def test_a_beam_that_holds_everything_is_exact(model: PushdownForCausalLM, length: int) -> None:
    sentence = SENTENCE[:length]
    result = search(model, [sentence], beam=CATALAN[length])[0]
    histories = legal_histories(model, length)
    count = HISTORIES[model.config.legality][length]
    assert len(histories) == len(result.log_joints) == count
    exact = log_joints(model, [*sentence, EOS], histories)
    assert result.log_prob == pytest.approx(float(exact.logsumexp(0)), abs=1e-11)
    assert result.log_prefixes == pytest.approx(exact_log_prefixes(model, sentence), abs=1e-11)
    found = dict(zip(map(tuple, result.histories.tolist()), result.log_joints, strict=True))
    by_history = dict(zip(map(tuple, histories), exact.tolist(), strict=True))
    assert found == pytest.approx(by_history, abs=1e-11)
    assert list(result.log_joints) == sorted(result.log_joints, reverse=True)
    assert (result.log_dropped, result.log_prob_bound, result.lost_nats) == (-math.inf, 0.0, 0.0)


@pytest.mark.parametrize("length", [1, 2, 4, 6])
def test_best_tree_and_all_others_are_in_their_exact_order(
    model: PushdownForCausalLM, length: int
) -> None:
    sentence = SENTENCE[:length]
    found = search(model, [sentence], beam=CATALAN[length])[0].trees(list(map(str, sentence)))
    exact = exact_trees(model, sentence)
    if model.config.legality == "constituents":
        assert len(exact) == CATALAN[length - 1]
    assert [scored.tree for scored in found] == sorted(exact, key=lambda tree: -exact[tree])
    assert {scored.tree: scored.log_prob for scored in found} == pytest.approx(exact, abs=1e-11)


@pytest.mark.parametrize("length", [2, 5, 6])
def test_posteriors_are_exact(gpt2: PushdownForCausalLM, length: int) -> None:
    sentence = SENTENCE[:length]
    beam = search(gpt2, [sentence], beam=CATALAN[length])[0]
    exact = exact_trees(gpt2, sentence)
    total = math.fsum(map(math.exp, exact.values()))
    expected: dict[tuple[int, int], float] = Counter()
    for tree, log_prob in exact.items():
        for span in tree.spans:
            expected[span] += math.exp(log_prob) / total
    found = posteriors(beam.trees(list(map(str, sentence))))
    assert found == pytest.approx(expected, abs=1e-11)
    assert found[0, length] == pytest.approx(1.0)
    assert math.fsum(found.values()) == pytest.approx(length - 1)


def test_posteriors_over_words_sum_over_trees_that_agree_on_them(
    gpt2: PushdownForCausalLM,
) -> None:
    counts, words = [1, 2, 1, 2], ["a", "b", "c", "d"]
    found = search(gpt2, [SENTENCE], beam=132)[0].trees(words, counts)
    exact: dict[Tree, float] = defaultdict(float)
    for tree, log_prob in exact_trees(gpt2, SENTENCE).items():
        merged = merge_pieces(tree, counts, words)
        exact[Tree(tuple(words), merged.spans)] += math.exp(log_prob)
    assert len(found) == len(exact) == CATALAN[3]
    for scored in found:
        assert math.exp(scored.log_prob) == pytest.approx(exact[scored.tree], rel=1e-9)
    assert math.fsum(posteriors(found).values()) == pytest.approx(len(words) - 1)


# ------------------------------------------------------------------ narrow beams


def same_as_reference(
    model: PushdownForCausalLM, sentence: Sequence[int], beam: int, threshold: float | None
) -> SearchResult:
    found = search(model, [sentence], beam=beam, threshold=threshold)[0]
    limit = math.inf if threshold is None else threshold
    expected = reference_search(model, sentence, beam, limit)
    assert found.log_prefixes == pytest.approx(expected.log_prefixes, abs=1e-11)
    assert found.histories.tolist() == [entry.history for entry in expected.entries]
    scores = [entry.score for entry in expected.entries]
    assert list(found.log_joints) == pytest.approx(scores, abs=1e-11)
    assert math.exp(found.log_dropped) == pytest.approx(expected.dropped, rel=1e-9)
    return found


@pytest.mark.parametrize(("beam", "threshold"), [(1, None), (4, None), (9, 1.5), (200, 2.0)])
def test_equals_the_reference_search(
    model: PushdownForCausalLM, beam: int, threshold: float | None
) -> None:
    found = same_as_reference(model, [*SENTENCE, 3], beam, threshold)
    assert len(found.log_joints) <= beam


@settings(max_examples=20)
@given(sentences(), st.integers(1, 12), st.none() | st.floats(0.0, 4.0))
def test_equals_the_reference_search_on_any_sentence(
    gpt2: PushdownForCausalLM, sentence: list[int], beam: int, threshold: float | None
) -> None:
    same_as_reference(gpt2, sentence, beam, threshold)


def test_beam_of_one_is_greedy(gpt2: PushdownForCausalLM) -> None:
    """The history of beam 1 is what the model chooses when it reads by itself."""
    result = search(gpt2, [SENTENCE], beam=1)[0]
    with torch.inference_mode():
        output = gpt2(torch.tensor([[0, *SENTENCE, EOS]]))
        stack = output.past_key_values.stack
        replayed = gpt2(
            torch.tensor([[0, *SENTENCE, EOS]]),
            attachments=torch.tensor([[0, *result.histories[0].tolist(), 0]]),
        )
    torch.testing.assert_close(output.logits, replayed.logits)
    assert result.num_cells == len(SENTENCE) + 1
    assert len(stack) == len(SENTENCE) + 2


@pytest.mark.parametrize("scale", [0.2, 0.5])
@pytest.mark.parametrize("seed", range(3))
def test_the_bound_holds(seed: int, scale: float) -> None:
    model = random_model(seed, scale=scale)
    exact = exact_log_prefixes(model, SENTENCE)[-1]
    for beam, threshold in [(1, None), (3, None), (20, None), (132, 0.5), (132, 2.0), (10, 1.0)]:
        found = search(model, [SENTENCE], beam=beam, threshold=threshold)[0]
        left_out = math.exp(exact) - math.exp(found.log_prob)
        assert 0 < left_out <= math.exp(found.log_dropped)
        assert found.log_prob < exact <= found.log_prob + found.log_prob_bound
        assert found.lost_nats > 0


@given(sentences(), st.integers(1, 20), st.none() | st.floats(0.0, 4.0))
def test_surprisals_add_up_and_histories_are_distinct(
    gpt2: PushdownForCausalLM, sentence: list[int], beam: int, threshold: float | None
) -> None:
    result = search(gpt2, [sentence], beam=beam, threshold=threshold)[0]
    assert math.fsum(result.surprisals) == pytest.approx(-result.log_prob)
    assert len(result.surprisals) == len(sentence) + 1
    assert all(surprisal > 0 for surprisal in result.surprisals)
    assert len(set(map(tuple, result.histories.tolist()))) == len(result.log_joints) <= beam
    assert len(sentence) + 1 <= result.num_cells


@pytest.mark.parametrize("length", [1, 4])
def test_log_joint_is_that_of_the_history(model: PushdownForCausalLM, length: int) -> None:
    result = search(model, [SENTENCE[:length]], beam=20)[0]
    for history, expected in zip(result.histories.tolist(), result.log_joints, strict=True):
        found = log_joint(model, SENTENCE[:length], [0, *history, 0])
        assert found == pytest.approx(expected, abs=1e-11)


# ------------------------------------------------------------------ batches and the decoder


def test_a_batch_of_mixed_lengths_equals_one_by_one(model: PushdownForCausalLM) -> None:
    batch = [SENTENCE[:3], SENTENCE, [4], SENTENCE[1:5], [6, 6], SENTENCE]
    for threshold in (None, 1.0):
        together = search(model, batch, beam=7, threshold=threshold)
        budget = search(model, batch, beam=7, threshold=threshold, batch_cells=100)
        for sentence, result, in_parts in zip(batch, together, budget, strict=True):
            alone = search(model, [sentence], beam=7, threshold=threshold)[0]
            for found in (result, in_parts):
                assert found.log_prefixes == pytest.approx(alone.log_prefixes, abs=1e-11)
                assert found.histories.tolist() == alone.histories.tolist()
                assert found.log_dropped == pytest.approx(alone.log_dropped, abs=1e-9)
                assert found.num_cells == alone.num_cells


def test_layers_below_the_first_pushdown_layer_run_once_a_sentence() -> None:
    model = random_model(pushdown_layers=[1, 2])
    rows: dict[int, list[int]] = {0: [], 1: [], 2: []}
    hooks = [
        module.register_forward_hook(
            lambda _module, _inputs, output, layer=layer: rows[layer].append(len(output[0]))
        )
        for layer, module in attention_modules(model.decoder).items()
    ]
    result = search(model, [SENTENCE], beam=5)[0]
    for hook in hooks:
        hook.remove()
    assert rows[0] == [1]
    assert rows[1] == rows[2] == [1, 1, 2, 5, 5, 5, 5]
    assert result.num_cells == sum(rows[1])


def test_the_model_is_as_before_after_a_search() -> None:
    model = random_model(pushdown_layers=[1, 2]).train()
    ids, attachments = torch.tensor([[0, 2, 3, 1]]), torch.tensor([[0, 1, 1, 0]])
    with torch.no_grad():
        before = model.eval()(ids, attachments=attachments).logits
        model.train()
        search(model, [SENTENCE], beam=3)
        assert model.training
        after = model.eval()(ids, attachments=attachments).logits
    assert torch.equal(before, after)


def test_float32_agrees_with_float64() -> None:
    exact = search(random_model(seed=4), [SENTENCE], beam=132)[0]
    found = search(random_model(seed=4).float(), [SENTENCE], beam=132)[0]
    assert found.log_prefixes == pytest.approx(exact.log_prefixes, abs=1e-4)


# ------------------------------------------------------------------ what cannot be searched


@pytest.mark.parametrize(
    ("sentence", "options", "message"),
    [
        ([], {}, "sentence 2: expected a sentence of at least one token, got an empty one"),
        ([2] * 12, {}, "sentence 2: expected at most 11 tokens .* got 12"),
        ([2], {"beam": 0}, "beam: expected 1 to 1,000,000,000 entries, got 0"),
        ([2], {"threshold": -1.0}, "threshold: expected 0 nats or more, got -1.0"),
        ([2], {"threshold": math.nan}, "threshold: expected 0 nats or more, got nan"),
    ],
)
def test_bad_input_is_named(
    gpt2: PushdownForCausalLM, sentence: list[int], options: dict[str, float], message: str
) -> None:
    with pytest.raises(SearchError, match=message):
        search(gpt2, [[2, 3], sentence], **options)


def test_the_longest_sentence_that_the_positions_allow(gpt2: PushdownForCausalLM) -> None:
    assert len(search(gpt2, [[2] * 11], beam=2)[0].surprisals) == 12


def test_a_model_without_head_is_refused() -> None:
    with pytest.raises(SearchError, match="expected a model with an attachment head"):
        search(random_model(attachment_head=None), [[2]])


def test_broken_weights_are_refused() -> None:
    model = random_model()
    with torch.no_grad():
        model.get_input_embeddings().weight[3, 0] = math.nan
    with pytest.raises(SearchError, match="NaN or infinity"):
        search(model, [[2, 3]])
