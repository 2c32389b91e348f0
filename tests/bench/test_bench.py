"""The benches run and report what they say, at tiny sizes."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from pathlib import Path

import pytest
import torch

from pushdown_lm.bench import adapt as bench_adapt
from pushdown_lm.bench import explore as bench_explore
from pushdown_lm.bench import kernels, measure
from pushdown_lm.bench import search as bench_search
from pushdown_lm.bench import train as bench_train
from pushdown_lm.bench import trees as bench_trees
from pushdown_lm.errors import PushdownError
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from pushdown_lm.training.run import run_recipe
from pushdown_lm.trees.oracle import tree_from_attachments
from tests.tiny_training import tiny_data, tiny_recipe


def test_contenders_take_turns() -> None:
    turns: list[str] = []
    seconds = measure.interleave(
        {"a": lambda: turns.append("a"), "b": lambda: turns.append("b")}, repeats=2
    )
    assert turns == ["a", "b"] * 3
    assert set(seconds) == {"a", "b"}


def test_peak_memory_is_that_of_a_fresh_process() -> None:
    ballast = bytearray(400 << 20)  # ours must not count
    nothing = measure.peak_memory("pushdown_lm.bench.train", "gpt2-small-t512", "nothing")
    del ballast
    assert 50 < nothing < 900


def test_train_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    contenders = ("plain", "pushdown", "reference")
    case = bench_train.Case(1, 8, 2, 11, batch=2, length=12, contenders=contenders)
    monkeypatch.setitem(bench_train.CASES, "tiny", case)
    seconds = {"plain": 2.0, "pushdown": 3.0, "reference": 12.0}

    def interleave(steps: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
        for name, take in steps.items():  # the steps are real, only the clock is not
            assert name in contenders
            take()
        return seconds

    monkeypatch.setattr(bench_train, "interleave", interleave)
    memory = {"plain": 20.0, "pushdown": 22.0, "reference": 70.0, "nothing": 10.0}
    monkeypatch.setattr(bench_train, "peak_memory", lambda _module, _case, who: memory[who])
    (result,) = bench_train.run(["tiny"], repeats=1)
    assert result["bench"] == "train"
    assert result["case"] == "tiny"
    assert result["time_ratio"] == 1.5
    assert result["memory_ratio"] == 1.2
    assert result["reference_to_pushdown_time_ratio"] == 4.0
    assert result["reference_to_pushdown_memory_ratio"] == 5.0
    with pytest.raises(PushdownError, match="no bench case 'huge'"):
        list(bench_train.run(["huge"], repeats=1))


def test_kernels_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "TOKENS", 32)
    monkeypatch.setattr(kernels, "VOCABULARIES", (50,))
    monkeypatch.setattr(kernels, "LENGTHS", (8,))
    ran = []

    def run_once(contenders: Mapping[str, Callable[[], object]], repeats: int) -> dict[str, float]:
        for contender in contenders.values():
            contender()
        ran.append((sorted(contenders), repeats))
        return {"ours": 0.002, "torch": 0.005}

    monkeypatch.setattr(kernels, "interleave", run_once)
    loss, attention = kernels.run(repeats=3)
    assert ran == 2 * [(["ours", "torch"], 3)]
    assert (loss["case"], attention["case"]) == ("loss, 50 entries", "attention, 8 positions")
    assert (loss["speedup"], loss["milliseconds"], loss["torch_milliseconds"]) == (2.5, 2.0, 5.0)


def test_adapt_bench(monkeypatch: pytest.MonkeyPatch) -> None:
    case = bench_adapt.Case(3, 16, 24, 4, 2, 11, pushdown_layers=1, batch=2, length=12)
    monkeypatch.setitem(bench_adapt.CASES, "tiny", case)
    seconds = {"whole": 12.0, "full": 4.0, "cached": 3.0, "lower_layers": 1.0}

    def interleave(steps: dict[str, Callable[[], None]], repeats: int) -> dict[str, float]:
        assert steps.keys() == seconds.keys()
        for take in steps.values():  # the steps are real, only the clock is not
            take()
        return seconds

    monkeypatch.setattr(bench_adapt, "interleave", interleave)
    (result,) = bench_adapt.run(["tiny"], repeats=1)
    assert result["cached_to_whole"] == 4.0
    assert result["cached_to_full"] == 1.33
    assert result["lower_layers_tokens_per_second"] == 24.0
    with pytest.raises(PushdownError, match="no bench case 'huge'"):
        list(bench_adapt.run(["huge"], repeats=1))


def test_trees_bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = itertools.count(0.0, 0.5)  # seconds: every round takes half of one
    monkeypatch.setattr(bench_trees, "process_time", lambda: next(clock))
    path = tmp_path / "two.trees"
    path.write_text("(S (NP the dog) barks)\n(S it sleeps)\n", encoding="utf-8")
    reading, tapes = bench_trees.run([path])
    assert reading["trees"] == 2
    assert reading["words"] == 5
    assert reading["trees_per_second"] == 4
    assert reading["words_per_second"] == 10
    assert tapes["milliseconds_per_sentence"] == 7.8125  # 64 sentences


def test_search_of_a_trained_model(tmp_path: Path) -> None:
    run_recipe(tiny_recipe(), tiny_data(tmp_path / "data"), tmp_path / "run")
    model = str(tmp_path / "run" / "model")
    (result,) = bench_search.run_model(model, 4, 2.0, repeats=1, sentences=3, words=(1, 40))
    assert result["sentences"] == 3
    assert result["sentences_per_second"] > 0
    scorer = PushdownScorer.from_pretrained(model, beam=4, threshold=2.0)
    texts = bench_search.sampled_sentences(scorer, 3, (1, 40))
    found = [analysis.result for analysis in scorer.analyse(texts)]
    assert result["largest_lost_nats"] == round(max(one.lost_nats for one in found), 4)
    assert result["cells_per_sentence"] == round(sum(one.num_cells for one in found) / 3)
    with pytest.raises(PushdownError, match="expected 3 sentences of 1000 to 1001 words"):
        bench_search.sampled_sentences(scorer, 3, (1000, 1001))


def test_random_attachments_are_legal() -> None:
    torch.manual_seed(0)
    for length in (2, 3, 50):
        attachments = bench_train.random_attachments(length).tolist()
        tree_from_attachments(attachments, ["word"] * (length - 2))


def test_report(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [{"bench": "x", "case": "small", "time_ratio": 1.5}, {"bench": "x", "case": "large"}]
    measure.report(rows, as_json=True)
    assert [json.loads(line) for line in capsys.readouterr().out.splitlines()] == rows
    measure.report(rows, as_json=False)
    shown = capsys.readouterr().out
    assert "small" in shown
    assert "time ratio" in shown
    assert "1.5" in shown


def test_explore_bench() -> None:
    found = bench_explore.run(None, requests=2, beam=3, threshold=5.0)
    alone, at_once = found
    assert alone["words"] == 20
    assert 0 < alone["first_parse_seconds"] <= alone["whole_parse_seconds"]
    assert at_once["case"] == "2 at once"
    assert 0 < at_once["answer_seconds_longest"] <= at_once["wait_seconds_longest"]
    assert 0 < at_once["page_seconds_median"] <= at_once["page_seconds_longest"]
    assert len({bench_explore.sentence(number) for number in range(50)}) == 50
