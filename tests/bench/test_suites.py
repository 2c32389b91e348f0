"""The bench of the SG suites, on two of them and a tiny model."""

from __future__ import annotations

from pushdown_lm.bench import suites as bench
from pushdown_lm.data.tokenization import train_word_vocabulary
from pushdown_lm.evals.formula import Formula
from pushdown_lm.evals.sg import Condition, Item, Suite
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from tests.models import random_model

WORDS = ["The", "dog", "dogs", "bark", "barks", "now", "."]


def build_suite(name: str, ending: str) -> Suite:
    items = [
        Item(
            number,
            {
                verb: Condition.from_regions({1: f"The {noun}", 2: verb, 3: ending})
                for verb in ("bark", "barks")
            },
        )
        for number, noun in enumerate(["dog", "dogs", "dog dogs"], start=1)
    ]
    return Suite(name, (Formula.parse("(2;%bark%) < (2;%barks%)"),), tuple(items))


SUITES = [build_suite("first", "now"), build_suite("second", "")]


def test_throughput_and_decisions() -> None:
    tokenizer = train_word_vocabulary([WORDS])
    model = random_model(vocabulary=len(tokenizer)).float()
    scorer = PushdownScorer(model, tokenizer, beam=20, threshold=0.0)
    figures = bench.throughput(scorer, SUITES[:1], SUITES)
    assert (figures["sentences"], figures["whole_set_sentences"]) == (6, 12)
    assert figures["whole_set_minutes"] >= 0
    assert bench.decisions(scorer, SUITES)["items"] == 6
    assert scorer.threshold == 0.0
    scorer.threshold = 1e9
    assert bench.decisions(scorer, SUITES)["changed_decisions"] == 0


def test_the_random_model_knows_all_words() -> None:
    scorer = bench.random_scorer(SUITES)
    config = scorer.model.config
    assert (config.decoder.num_hidden_layers, config.decoder.hidden_size) == (6, 256)
    assert (config.bos_token_id, config.eos_token_id) == (
        scorer.tokenizer.bos_token_id,
        scorer.tokenizer.eos_token_id,
    )
    scorer.beam = 2
    longest = SUITES[0].items[2].conditions["bark"].sentence
    assert len(scorer.surprisals([f"{longest} ."])[0]) == 7
