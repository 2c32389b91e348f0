"""One model reading one sentence: its records are what search finds."""

from __future__ import annotations

import csv
import io
import json
import math

import pytest

from pushdown_lm import viz
from pushdown_lm.errors import PushdownError
from pushdown_lm.explorer.parsed_reading import ParsedReading
from pushdown_lm.explorer.reading import Record
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from pushdown_lm.trees.oracle import attachments_from_tree, tree_from_attachments
from pushdown_lm.trees.picture import describe

TEXT = "the dog hasn't barked."


@pytest.fixture(scope="module")
def reading(bpe: PushdownScorer) -> ParsedReading:
    reading = ParsedReading(bpe, TEXT, beam=20, threshold=None)
    list(reading.read())
    return reading


@pytest.fixture(scope="module")
def records(bpe: PushdownScorer) -> list[Record]:
    return list(ParsedReading(bpe, TEXT, beam=20, threshold=None).read())


def test_the_records_are_a_sentence_its_steps_and_a_result(records: list[Record]) -> None:
    sentence, *steps, result = records
    assert [record["kind"] for record in (sentence, result)] == ["sentence", "result"]
    assert {step["kind"] for step in steps} == {"step"}
    assert [step["position"] for step in steps] == list(range(1, len(sentence["tokens"]) + 2))
    assert [step["token"] for step in steps[:-1]] == sentence["tokens"]
    json.dumps(records, allow_nan=False)


def test_surprisals_and_parses_are_those_of_the_scorer(
    bpe: PushdownScorer, records: list[Record]
) -> None:
    bpe.beam = 20
    analysis = bpe.analyse([TEXT])[0]
    steps, result = records[1:-1], records[-1]
    found = [step["surprisal"] for step in steps]
    assert found == pytest.approx([token.surprisal for token in analysis.tokens], abs=1e-5)
    assert result["log2_prob"] == pytest.approx(analysis.log_prob / math.log(2), abs=1e-5)
    words = [(word["word"], pytest.approx(word["surprisal"])) for word in result["words"]]
    assert words == analysis.words
    trees = analysis.trees()
    assert steps[-1]["num_parses"] == len(trees)
    assert [parse["brackets"] for parse in steps[-1]["parses"]] == [
        describe(scored.tree) for scored in trees[:8]
    ]


def test_the_pieces_of_a_word_are_marked(reading: ParsedReading) -> None:
    plain = [token.removeprefix("·") for token in reading.tokens]
    assert "".join(plain) == TEXT.replace(" ", "")
    starts = [not token.startswith("·") for token in reading.tokens]
    assert sum(starts) == len(reading.encoded.leaves)


def test_a_step_says_what_is_on_the_stack(reading: ParsedReading) -> None:
    for position in range(1, len(reading.tokens) + 1):
        record = reading.step_record(position)
        ends = [end for _, end in record["stack"]]
        assert ends[-1] == position
        assert [start for start, _ in record["stack"]] == [0, *ends[:-1]]
        assert record["attachment"] == reading.history(position, 0)[-1]


def test_the_final_parse_is_followed_back(reading: ParsedReading, records: list[Record]) -> None:
    final = reading.history(len(reading.steps), 0)
    for step, rank in zip(reading.steps[:-1], records[-1]["best_ranks"], strict=False):
        part = final[: step.position]
        assert (part in step.histories) == (rank is not None)
        assert rank is None or step.histories[rank - 1] == part
    continues = [record["continues"] for record in records[1:-1]]
    expected = [
        reading.history(position, 0)[: position - 1] == reading.history(position - 1, 0)
        for position in range(2, len(reading.tokens) + 1)
    ]
    assert continues[: len(expected) + 1] == [True, *expected]


def test_pictures_are_those_of_viz(reading: ParsedReading) -> None:
    final = reading.history(len(reading.steps), 0)
    tree = tree_from_attachments([0, *final, 0], reading.tokens)
    picture = reading.picture(len(reading.steps), whole_tape=True)
    bits = [reading.surprisal(position) for position in range(1, len(reading.tokens) + 1)]
    entropies = [step.entropy / math.log(2) for step in reading.steps[:-1]]
    if list(final) == attachments_from_tree(tree)[1:-1]:
        assert picture == viz.parse(tree, bits, entropies)
    assert reading.attention is not None
    words = ["<s>", *reading.tokens]
    weights = reading.attention.weights
    assert reading.attention_picture(3, None, None) == viz.attention(words, weights, marked=3)
    assert reading.attention_picture(3, 1, 0) == viz.attention(words, weights[1, 0], marked=3)
    assert reading.attention_picture(0, 2, None) == viz.attention(words, weights[2].mean(0), 0)


def test_what_is_not_there_is_an_error(bpe: PushdownScorer, reading: ParsedReading) -> None:
    for call, message in (
        (lambda: reading.picture(99), r"step: expected 1 to \d+, got 99"),
        (lambda: reading.picture(1, 5), "rank: expected 0 to 0, got 5"),
        (lambda: reading.attention_picture(1, 7, 0), "layer: expected 0 to 2, got 7"),
        (lambda: reading.attention_picture(1, 0, -1), "head: expected 0 to 1, got -1"),
        (lambda: reading.attention_picture(99, None, None), "marked: expected a position"),
    ):
        with pytest.raises(PushdownError, match=message):
            call()
    unread = ParsedReading(bpe, TEXT, beam=2, threshold=None)
    with pytest.raises(PushdownError, match="read to its end"):
        unread.to_tsv()


def test_files(reading: ParsedReading, records: list[Record]) -> None:
    rows = list(csv.DictReader(io.StringIO(reading.to_tsv()), delimiter="\t"))
    assert [row["token"] for row in rows] == [*reading.tokens, "</s>"]
    bits = [float(row["surprisal"]) for row in rows]
    assert sum(bits) == pytest.approx(-records[-1]["log2_prob"], abs=1e-4)
    assert rows[-1]["best_parse"] == records[-2]["parses"][0]["brackets"]
    whole = json.loads(json.dumps(reading.to_json(), allow_nan=False))
    assert whole["sentence"]["text"] == TEXT
    assert len(whole["steps"]) == len(rows)
    assert "<svg" not in json.dumps(whole)
    assert list(reading.records())[1:-1] == records[1:-1]
