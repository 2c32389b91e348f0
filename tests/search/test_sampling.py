"""Sampling against the model's own distribution, and Transformers' `generate`."""

from __future__ import annotations

import math
from collections import Counter

import pytest
import torch
from scipy import stats

from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.search.beam import SearchError, search
from pushdown_lm.search.sampling import Sample, logits_processors, sample
from pushdown_lm.trees.oracle import tree_from_attachments
from tests.models import BOS, EOS, random_model
from tests.reference_search import all_histories, log_joints

VOCABULARY = 4


@pytest.fixture(
    scope="module", params=[{}, {"pushdown_layers": [1, 2], "head_input": "lower_layers"}]
)
def model(request: pytest.FixtureRequest) -> PushdownForCausalLM:
    """Over two words, with probabilities that are neither flat nor extreme."""
    return random_model(seed=5, scale=0.25, vocabulary=VOCABULARY, **request.param)


def expected_frequencies(
    model: PushdownForCausalLM, max_tokens: int, prompt: tuple[int, ...] = ()
) -> dict[tuple[tuple[int, ...], tuple[int, ...], bool], float]:
    """p(x, r) of every string and history that sampling can give."""
    expected = {}
    strings: list[tuple[int, ...]] = [prompt]
    while strings:
        tokens = strings.pop()
        histories = list(all_histories(len(tokens)))
        if len(tokens) < max_tokens:
            scores = log_joints(model, [*tokens, EOS], histories)
            for history, score in zip(histories, scores.tolist(), strict=True):
                expected[tokens, tuple(history), True] = math.exp(score)
            strings += [(*tokens, token) for token in range(2, VOCABULARY)]
        else:
            following = torch.stack(
                [log_joints(model, [*tokens, token], histories) for token in range(1, VOCABULARY)]
            ).logsumexp(0)
            for history, score in zip(histories, following.tolist(), strict=True):
                expected[tokens, tuple(history), False] = math.exp(score)
    return expected


def chi_square(samples: list[Sample], expected: dict[tuple, float]) -> float:
    """p-value of the samples; outcomes too rare for the test are pooled."""
    counts = Counter((tuple(s.tokens), tuple(s.history), s.finished) for s in samples)
    assert counts.keys() <= expected.keys()
    total = sum(expected.values())
    observed, means = [0.0], [0.0]
    for outcome, probability in expected.items():
        mean = probability / total * len(samples)
        if mean < 5:
            observed[0] += counts[outcome]
            means[0] += mean
        else:
            observed.append(counts[outcome])
            means.append(mean)
    pooled = slice(None if means[0] else 1, None)
    return float(stats.chisquare(observed[pooled], means[pooled]).pvalue)


def test_frequencies_match_the_model(model: PushdownForCausalLM) -> None:
    samples = sample(model, [()] * 4000, max_tokens=3, seed=1)
    expected = expected_frequencies(model, max_tokens=3)
    assert sum(expected.values()) == pytest.approx(1.0)
    assert chi_square(samples, expected) > 0.01


def test_continuations_of_a_prompt_match_the_posterior(model: PushdownForCausalLM) -> None:
    """The prompt's parse is drawn given the whole prompt, not word by word."""
    samples = sample(model, [(2, 3, 2)] * 4000, max_tokens=4, seed=1)
    expected = expected_frequencies(model, 4, prompt=(2, 3, 2))
    assert chi_square(samples, expected) > 0.01


def test_equal_seeds_give_equal_samples(model: PushdownForCausalLM) -> None:
    first = sample(model, [()] * 20, max_tokens=8, seed=3)
    assert first == sample(model, [()] * 20, max_tokens=8, seed=3)
    assert first != sample(model, [()] * 20, max_tokens=8, seed=4)


def test_prompts_of_mixed_lengths_share_a_batch(model: PushdownForCausalLM) -> None:
    prompts = [(), (2,), (3, 3, 2, 3), (2, 3)]
    for result, prompt in zip(sample(model, prompts, max_tokens=9), prompts, strict=True):
        assert tuple(result.tokens[: len(prompt)]) == prompt
        assert len(result.tokens) == len(result.history) <= 9
        assert result.finished or len(result.tokens) == 9
        assert not {BOS, EOS} & set(result.tokens)
        tree_from_attachments([0, *result.history, 0], [str(token) for token in result.tokens])


def test_processors_narrow_the_choice(model: PushdownForCausalLM) -> None:
    greedy = logits_processors(top_k=1)
    results = sample(model, [(2,)] * 50, max_tokens=2, processors=greedy)
    by_history: dict[tuple[int, ...], set[tuple[int, ...]]] = {}
    for result in results:
        by_history.setdefault(tuple(result.history[:1]), set()).add(tuple(result.tokens))
    assert all(len(continuations) == 1 for continuations in by_history.values())
    hot = logits_processors(temperature=100.0)
    lengths = [len(s.tokens) for s in sample(model, [()] * 3000, max_tokens=1, processors=hot)]
    assert lengths.count(0) / len(lengths) == pytest.approx(1 / 3, abs=0.04)
    assert sample(model, [()], max_tokens=3, processors=logits_processors(top_p=1e-6))


@pytest.mark.parametrize("options", [{"temperature": -1.0}, {"top_k": 0}, {"top_p": 1.5}])
def test_bad_settings_are_named(model: PushdownForCausalLM, options: dict[str, float]) -> None:
    with pytest.raises(SearchError, match=next(iter(options))):
        logits_processors(**options)


def test_open_joints_leave_eos_out(model: PushdownForCausalLM) -> None:
    result = search(model, [[2, 3]], beam=10)[0]
    following = [log_joints(model, [2, 3, token], result.histories.tolist()) for token in range(4)]
    expected = torch.stack(following).logsumexp(0)
    assert list(result.log_open_joints) == pytest.approx(expected.tolist())


# ------------------------------------------------------------------ Transformers' generate


@pytest.fixture(
    scope="module",
    params=["gpt2", "llama", "published", "upper layers", "base", "one boundary token"],
)
def generator(request: pytest.FixtureRequest) -> PushdownForCausalLM:
    options = {
        "gpt2": {},
        "llama": {"decoder": "llama"},
        "published": {"decoder": "relative", "attachment_head": "published"},
        "upper layers": {"pushdown_layers": [1]},
        "base": {"pushdown_layers": []},
        "one boundary token": {"bos_token_id": EOS},
    }[request.param]
    return random_model(seed=2, scale=0.4, **options)


GENERATION = {
    "greedy": {"do_sample": False},
    "sampled": {"do_sample": True, "top_k": 0},
    "beam": {"do_sample": False, "num_beams": 3},
    "sampled beam": {"do_sample": True, "num_beams": 3},
}


@pytest.mark.parametrize("kind", GENERATION)
def test_generate_with_cache_equals_generate_without(
    generator: PushdownForCausalLM, kind: str
) -> None:
    root = generator.config.bos_token_id
    prompt = torch.tensor([[root, 2, 5, 3], [root, 4, 4, 6]])
    results = []
    for use_cache in (True, False):
        torch.manual_seed(0)
        results.append(
            generator.generate(
                prompt,
                attention_mask=torch.ones_like(prompt),
                max_new_tokens=6,
                use_cache=use_cache,
                **GENERATION[kind],
            )
        )
    assert torch.equal(*results)
    assert results[0].shape[1] > prompt.shape[1]


@pytest.mark.parametrize("kind", ["greedy", "beam"])
def test_generate_from_a_batch_padded_on_the_left(
    generator: PushdownForCausalLM, kind: str
) -> None:
    root, options = generator.config.bos_token_id, {"max_new_tokens": 5, **GENERATION[kind]}
    prompts = [[root, 2], [root, 5, 3, 6, 2], [root, 4, 4]]
    width = max(map(len, prompts))
    batch = torch.tensor([[EOS] * (width - len(prompt)) + prompt for prompt in prompts])
    mask = torch.tensor([[0] * (width - len(prompt)) + [1] * len(prompt) for prompt in prompts])
    together = generator.generate(batch, attention_mask=mask, **options)
    for prompt, row in zip(prompts, together, strict=True):
        alone = generator.generate(
            torch.tensor([prompt]), attention_mask=torch.ones(1, len(prompt)), **options
        )[0]
        continuation = row[width : width + len(alone) - len(prompt)]
        assert continuation.tolist() == alone[len(prompt) :].tolist()


def test_greedy_generation_follows_the_best_token_and_attachment(
    generator: PushdownForCausalLM,
) -> None:
    root = generator.config.bos_token_id
    found = generator.generate(
        torch.tensor([[root, 2]]),
        attention_mask=torch.ones(1, 2),
        max_new_tokens=4,
        do_sample=False,
    )[0].tolist()
    expected = [root, 2]
    with torch.inference_mode():
        while len(expected) < len(found):
            logits = generator(torch.tensor([expected])).logits
            expected.append(int(logits[0, -1].argmax()))
    assert found == expected
