"""A plain language model reading: its surprisals are those of its scorer, and it has no parses."""

from __future__ import annotations

import csv
import io
import json
import math
from pathlib import Path

import pytest
import torch

from pushdown_lm import viz
from pushdown_lm.errors import PushdownError
from pushdown_lm.explorer.plain_reading import PlainReading
from pushdown_lm.search.loading import load_scorer
from pushdown_lm.search.pushdown_scorer import PushdownScorer

TEXT = "the dog that she has seen is here ."


@pytest.fixture(scope="module")
def reading(base_folder: Path) -> PlainReading:
    reading = PlainReading(PushdownScorer.from_pretrained(base_folder), TEXT)
    list(reading.read())
    return reading


def test_surprisals_are_those_of_the_scorer(reading: PlainReading, base_folder: Path) -> None:
    records = list(reading.records())
    found = [record["surprisal"] for record in records[1:-1]]
    expected = load_scorer(base_folder).surprisals([TEXT])[0]
    assert found == pytest.approx([token.surprisal for token in expected], abs=1e-4)
    assert records[-1]["log2_prob"] == pytest.approx(-sum(found))
    words = [word["word"] for word in records[-1]["words"]]
    assert words == [*TEXT.split(), "</s>"]
    assert [word["surprisal"] for word in records[-1]["words"]] == pytest.approx(found)


def test_expectations_are_those_of_the_model(reading: PlainReading) -> None:
    model = reading.scorer.model
    with torch.inference_mode():
        ids = torch.tensor([[model.config.bos_id, *reading.encoded.ids]])
        predictions = model(ids).logits[0].softmax(-1)
    for step, prediction in zip(reading.steps, predictions, strict=True):
        entropy = torch.special.entr(prediction).sum()
        assert step.entropy == pytest.approx(float(entropy), abs=1e-4)
        assert step.expected[0][0] == int(prediction.argmax())
        assert step.expected[0][1] == pytest.approx(float(prediction.max()), abs=1e-5)


def test_there_are_no_parses(reading: PlainReading) -> None:
    whole = json.loads(json.dumps(reading.to_json(), allow_nan=False))
    for step in whole["steps"]:
        assert not {"parses", "stack", "attachment", "dropped", "continues"} & set(step)
    rows = list(csv.DictReader(io.StringIO(reading.to_tsv()), delimiter="\t"))
    assert [row["token"] for row in rows] == [*TEXT.split(), "</s>"]
    assert {row["attachment"] + row["best_parse"] for row in rows} == {""}
    with pytest.raises(PushdownError, match="a plain language model has no stack tape"):
        reading.tape_picture(1)


def test_pictures(reading: PlainReading) -> None:
    bits = [reading.surprisal(position) for position in range(1, len(reading.steps))]
    entropies = [step.entropy / math.log(2) for step in reading.steps[:-1]]
    assert reading.picture(len(reading.steps)) == viz.surprisals(TEXT.split(), bits, entropies)
    assert reading.picture(2) == viz.surprisals(TEXT.split(), bits[:2], entropies[:2], num_read=2)
    with pytest.raises(PushdownError, match="step: expected 1 to 10, got 11"):
        reading.picture(11)


def test_attention_is_that_of_the_model(reading: PlainReading) -> None:
    assert reading.attention is not None
    model = reading.scorer.model
    with torch.inference_mode():
        ids = torch.tensor([[model.config.bos_id, *reading.encoded.ids]])
        weights = torch.cat(model(ids, output_attentions=True).attentions)
    torch.testing.assert_close(reading.attention.weights, weights)
