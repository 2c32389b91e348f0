"""The distractor analysis: nouns, queries, averages and plots."""

from __future__ import annotations

import io
import json
from itertools import permutations
from pathlib import Path

import pytest
import torch
from matplotlib.image import imread
from rich.console import Console
from transformers import GPT2LMHeadModel, PreTrainedTokenizerFast

from pushdown_lm.data.tokenization import detokenize, train_bpe, train_word_vocabulary
from pushdown_lm.errors import PushdownError
from pushdown_lm.evals.attention import (
    NOUNS,
    REGIONS,
    AgreementPrefix,
    agreement_prefixes,
    attention_table,
    evaluate_attention,
    write_plots,
)
from pushdown_lm.evals.sg import Condition, Item, Suite, load_suites
from pushdown_lm.search.loading import BaseLMScorer
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from pushdown_lm.search.read_attention import ReadAttention
from pushdown_lm.search.scorer import CausalLMScorer
from pushdown_lm.trees.oracle import stack_tape
from tests.models import random_model

REGIONS_OF_SUITES = {
    "number_src": ["The", "{head}", "that", "saw", "the", "{other}", "{verb}", "well"],
    "number_orc": ["The", "{head}", "that", "the", "{other}", "saw", "{verb}", "well"],
    "number_prep": ["The", "{head}", "next to", "the", "{other}", "{verb}", "well"],
}
WORDS = ["The", "the", "baker", "bakers", "pilots", "pilot", "that", "saw", "next", "to", "."]


def build_suite(name: str) -> Suite:
    items = []
    for number, (head, other) in enumerate([("baker", "pilots"), ("bakers", "pilot")], start=1):
        conditions = {}
        for verb in ("sings", "sing"):
            parts = [
                part.format(head=head, other=other, verb=verb) for part in REGIONS_OF_SUITES[name]
            ]
            conditions[verb] = Condition.from_regions(dict(enumerate(parts, start=1)))
        items.append(Item(number, conditions))
    return Suite(name, (), tuple(items))


SUITES = [build_suite(name) for name in REGIONS_OF_SUITES]


@pytest.fixture(scope="module")
def pushdown() -> PushdownScorer:
    tokenizer = train_bpe([detokenize(WORDS)] * 3, vocab_size=275)
    model = random_model(seed=1, scale=0.4, vocabulary=len(tokenizer), positions=60)
    return PushdownScorer(model.float(), tokenizer, name="pushdown", beam=10)


@pytest.fixture(scope="module")
def base(pushdown: PushdownScorer) -> BaseLMScorer:
    tokenizer = pushdown.tokenizer
    model = random_model(scale=0.4, vocabulary=len(tokenizer), positions=60, pushdown_layers=[])
    return BaseLMScorer(PushdownScorer(model.float(), tokenizer, name="base"))


def test_nouns_are_found_and_the_verb_is_cut_off() -> None:
    assert agreement_prefixes(SUITES[0], REGIONS["number_src"]) == [
        AgreementPrefix("The baker that saw the pilots", (4, 9), (23, 29)),
        AgreementPrefix("The bakers that saw the pilot", (4, 10), (24, 29)),
    ]
    for suite in SUITES:
        for prefix in agreement_prefixes(suite, REGIONS[suite.name]):
            assert prefix.text[slice(*prefix.head)].startswith("baker")
            assert prefix.text[slice(*prefix.distractor)].startswith("pilot")


def test_nouns_of_the_real_suites(shared_data: Path) -> None:
    """Head and distractor differ in number: just one of them ends in s."""
    for suite in load_suites(shared_data / "sg_suites", tuple(REGIONS)):
        prefixes = agreement_prefixes(suite, REGIONS[suite.name])
        assert len(prefixes) == 2 * len(suite.items) == 38
        for prefix in prefixes:
            head, other = (prefix.text[slice(*span)] for span in (prefix.head, prefix.distractor))
            assert head.endswith("s") != other.endswith("s"), (head, other)


def test_weights_of_a_noun_are_summed_over_its_tokens() -> None:
    """ "The baker" as BOS The Ġba ker: the noun's tokens are at 2 and 3, the last row reads."""
    weights = torch.zeros(1, 1, 4, 4)
    weights[0, 0, -1] = torch.tensor([0.1, 0.2, 0.3, 0.4])
    for offsets in [((0, 3), (3, 6), (6, 9)), ((0, 3), (4, 6), (6, 9))]:
        read = ReadAttention(("<s>", "The", "Ġba", "ker"), offsets, weights)
        assert read.on((4, 9)).item() == pytest.approx(0.7)
        assert read.on((0, 3)).item() == pytest.approx(0.2)


def test_by_hand(base: BaseLMScorer, model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast):
    """The averages are over heads, then sentences, then layers."""
    plain = CausalLMScorer(model, tokenizer, name="plain")
    for scorer in (base, plain):
        report = evaluate_attention(scorer, SUITES)
        for suite in SUITES:
            result = report.suites[suite.name]
            rows = {noun: torch.zeros(len(result.by_layer[noun])) for noun in NOUNS}
            prefixes = agreement_prefixes(suite, REGIONS[suite.name])
            for prefix in prefixes:
                read = scorer.read_attention(prefix.text)
                ends = [end for _, end in read.offsets]
                spans = {"head": prefix.head, "distractor": prefix.distractor}
                for noun, (start, end) in spans.items():
                    for position, token_end in enumerate(ends, start=1):
                        if start < token_end <= end:
                            rows[noun] += read.weights[:, :, -1, position].mean(1) / len(prefixes)
            for noun in NOUNS:
                assert result.by_layer[noun] == pytest.approx(rows[noun].tolist(), abs=1e-6)
                assert result.mean(noun) == pytest.approx(rows[noun].mean().item(), abs=1e-6)


def test_heat_map_by_hand(base: BaseLMScorer) -> None:
    """The mean over all sentences of a suite, region by region, each found by its words."""
    for suite in SUITES:
        result = evaluate_attention(base, [suite]).suites[suite.name]
        prefixes = agreement_prefixes(suite, REGIONS[suite.name])
        size = len(prefixes[0].regions) + 1
        expected = torch.zeros(size, size, dtype=torch.float64)
        for prefix in prefixes:
            read = base.read_attention(prefix.text)
            region: list[int | None] = [0]
            for start, end in read.offsets:
                spans = enumerate((span for _, span in prefix.regions), start=1)
                region.append(next((n for n, (a, b) in spans if start < b and a < end), None))
            weights = read.weights.double().mean((0, 1))
            for query, row in enumerate(region):
                for key, column in enumerate(region):
                    if row is None or column is None:  # a space on its own
                        continue
                    share = weights[query, key] / region.count(row)
                    expected[row, column] += share / len(prefixes)
        torch.testing.assert_close(result.heat_map, expected)
        assert (result.heat_map.sum(-1) < 1 + 1e-5).all()
        assert len(result.regions) == size
        assert any(label.endswith("(distractor)") for label in result.regions)


def test_a_base_model_scores_what_search_sums_to(base: BaseLMScorer) -> None:
    """Tokens that can never follow have no mass in either."""
    sentences = ["The", "saw"]
    searched = [result.result.log_prob for result in base.parser.analyse(sentences)]
    assert base.log_probs(sentences) == pytest.approx(searched, abs=1e-4)


class TestReading:
    def test_a_plain_model_reads_as_with_eager_attention(
        self, model: GPT2LMHeadModel, tokenizer: PreTrainedTokenizerFast
    ) -> None:
        scorer = CausalLMScorer(model, tokenizer)
        before = model.config._attn_implementation
        read = scorer.read_attention("The dog is happy")
        assert model.config._attn_implementation == before
        rows = read.weights.sum(-1)
        assert torch.allclose(rows, torch.ones_like(rows), atol=1e-5)
        assert read.weights.shape == (2, 2, len(read.tokens), len(read.tokens))
        assert len(read.offsets) == len(read.tokens) - 1

    def test_a_base_model_does_not_look_at_the_parse(self, base: BaseLMScorer) -> None:
        text = "The baker that saw"
        read = base.read_attention(text)
        assert torch.allclose(read.weights, base.parser.attention(text).weights, atol=1e-5)

    def test_a_pushdown_model_reads_with_its_best_parse_so_far(
        self, pushdown: PushdownScorer
    ) -> None:
        """The best history leaves EOS out of account, unlike that of a finished sentence."""
        differ = 0
        for words in permutations(("The", "that", "saw", "pilots")):
            text = " ".join(words)
            result = pushdown.analyse([text])[0].result
            best = max(range(len(result.log_open_joints)), key=result.log_open_joints.__getitem__)
            history = [0, *result.histories[best].tolist()]
            ids = [pushdown.model.config.bos_token_id, *pushdown.encode(text).ids]
            with torch.inference_mode():
                output = pushdown.model(
                    torch.tensor([ids]), attachments=torch.tensor([history]), output_attentions=True
                )
            read = pushdown.read_attention(text)
            assert torch.equal(read.weights, torch.cat(output.attentions))
            finished = pushdown.attention(text)
            if not torch.equal(stack_tape(torch.tensor(history)), finished.tape):
                differ += 1
                assert not torch.allclose(read.weights, finished.weights, atol=1e-4)
        assert differ


def test_report_table_and_plots(
    pushdown: PushdownScorer, base: BaseLMScorer, tmp_path: Path
) -> None:
    steps: list[tuple[int, int]] = []
    reports = {
        scorer.name: evaluate_attention(
            scorer, SUITES, progress=lambda done, total: steps.append((done, total))
        )
        for scorer in (base, pushdown)
    }
    assert steps == [(done, 6) for done in range(1, 7)] * 2
    content = json.loads(json.dumps(reports["pushdown"].to_json()))
    assert (content["items"], content["failures"]) == (6, 0)
    assert content["scorer"]["beam"] == 10
    assert len(content["suites"]["number_orc"]["head"]["by_layer"]) == 3
    means = [content["suites"][suite.name]["distractor"]["mean"] for suite in SUITES]
    assert content["distractor"] == pytest.approx(sum(means) / 3)

    console = Console(width=120, record=True, file=io.StringIO())
    console.print(attention_table(reports))
    assert f"{reports['base'].mean('head'):.4f}" in console.export_text()
    paths = write_plots(tmp_path / "plots", reports)
    assert [path.name for path in paths] == [
        "attention.png",
        "attention_by_layer.png",
        *(f"attention_{suite.name}.png" for suite in SUITES),
    ]
    for path in paths:
        assert imread(path).std() > 0.05


def test_unknown_words_are_left_out_and_counted() -> None:
    tokenizer = train_word_vocabulary([[word for word in WORDS if word != "bakers"]])
    model = random_model(vocabulary=len(tokenizer), positions=20).float()
    report = evaluate_attention(PushdownScorer(model, tokenizer, beam=5), SUITES[:1])
    assert report.suites["number_src"].sentences == 1
    assert report.to_json()["failures"] == 1


def test_other_suites_and_empty_regions_are_errors(base: BaseLMScorer) -> None:
    with pytest.raises(PushdownError, match=r"expected one of the suites number_src.* got 'mvrr'"):
        evaluate_attention(base, [Suite("mvrr", (), ())])
    empty = Condition.from_regions({2: "baker", 5: "", 6: "sings"})
    suite = Suite("number_prep", (), (Item(3, {"match": empty}),))
    with pytest.raises(PushdownError, match=r"item 3, condition 'match': .* region 5, got none"):
        evaluate_attention(base, [suite])
