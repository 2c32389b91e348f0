"""The sentence-level experiment at a tiny size."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from pushdown_lm.cli.app import app
from pushdown_lm.corpora.grammar import generate
from pushdown_lm.data.build import DataOptions, build_data
from pushdown_lm.errors import PushdownError
from pushdown_lm.evals.parsing import evaluate_parsing
from pushdown_lm.evals.tree_perplexity import evaluate_tree_perplexity
from pushdown_lm.experiments.english import (
    ORDER,
    EnglishOptions,
    ablation_table,
    comparison,
    markdown,
    reproduce_english,
    share_table,
)
from pushdown_lm.experiments.experiment import ReproductionError
from pushdown_lm.experiments.sentence_tests import TestData
from pushdown_lm.search.loading import load_scorer
from pushdown_lm.training.recipe import ABLATIONS, SHARES, recipe_names
from pushdown_lm.trees import binarize, read_trees, to_brackets
from tests.tiny_training import TINY, tiny_data

BASE = "model: {pushdown_layers: none, attachment_head: null}"
PAIRS = [("the dog sleeps .", "the dog sleep ."), ("the dogs sleep .", "the dogs sleeps .")]


def save_recipes(folder: Path) -> None:
    (folder / "base.yaml").write_text(f"title: Base-LM\ninherits: {TINY}\n{BASE}\n")
    (folder / "pushdown.yaml").write_text(f"title: Pushdown-LM\ninherits: {TINY}\n")


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, EnglishOptions]:
    """A folder with the results of both models, and the options that they were made with."""
    folder = tmp_path_factory.mktemp("sentences")
    save_recipes(folder)
    tiny_data(folder / "data", labels=True)
    (folder / "test.trees").write_text("\n".join(map(to_brackets, generate(6, seed=5))))
    (folder / "blimp").mkdir()
    lines = [
        {
            "sentence_good": good,
            "sentence_bad": bad,
            "field": "morphology",
            "linguistics_term": "agreement",
            "UID": "agreement",
            "pairID": str(number),
        }
        for number, (good, bad) in enumerate(PAIRS)
    ]
    (folder / "blimp" / "agreement.jsonl").write_text("\n".join(map(json.dumps, lines)))
    options = EnglishOptions(
        data=str(folder / "data"),
        tests=TestData(
            trees={"test": str(folder / "test.trees")},
            blimp=str(folder / "blimp"),
            beam=4,
            threshold=6.0,
        ),
    )
    models = [str(folder / "base.yaml"), str(folder / "pushdown.yaml")]
    reproduce_english(folder / "out", folder / "runs", models, [0], options, "pushdown x")
    return folder, options


def results(folder: Path) -> dict[str, Any]:
    return json.loads((folder / "out" / "results.json").read_text())


def test_results_are_those_of_the_trained_models(finished: tuple[Path, EnglishOptions]) -> None:
    folder, _ = finished
    of_seed = results(folder)["seeds"]["0"]
    assert list(of_seed) == ["base", "pushdown"]
    for model, found in of_seed.items():
        tests = {"parsing test", "perplexity test", "blimp"}
        assert set(found) == {"recipe", "training", "curve", *tests}
        assert found["blimp"]["items"] == len(PAIRS)
        scorer = load_scorer(folder / "runs" / "seed0" / model / "model", beam=4, threshold=6.0)
        if model == "base":  # a plain language model has no parses
            assert "model" not in found["parsing test"]
            continue
        gold = [binarize(tree) for tree in read_trees(folder / "test.trees")]
        assert found["parsing test"]["model"] == evaluate_parsing(scorer, gold).model.to_json()
    config = json.loads((folder / "runs/seed0/base/model/config.json").read_text())
    assert config["pushdown_layers"] == []


def test_ablations_have_a_line_for_each_model(finished: tuple[Path, EnglishOptions]) -> None:
    found = results(finished[0])
    titles, _, base, pushdown = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in ablation_table(found).splitlines()
    )
    assert titles[:3] == ["", "token perplexity, test", "parsing F1, test"]
    assert titles[3] == "validation perplexity after training"
    assert titles[4].startswith("attachment accuracy")
    assert [base[0], pushdown[0]] == list(found["titles"].values())
    of_seed = found["seeds"]["0"]
    perplexity = of_seed["base"]["training"]["perplexity"]
    assert base[2:] == ["", f"{perplexity:.2f}", ""]
    assert pushdown[2] == f"{100 * of_seed['pushdown']['parsing test']['model']['f1']:.1f}"


def test_shares_have_a_line_for_each_model(finished: tuple[Path, EnglishOptions]) -> None:
    header, _, *lines = share_table(results(finished[0])).splitlines()
    titles = [cell.strip() for cell in header.strip("|").split("|")]
    assert titles[:3] == ["", "training tokens", "BLiMP, accuracy, %"]
    assert not any("second" in title for title in titles)
    assert len(lines) == 2


def test_models_that_come_with_the_library_have_their_place() -> None:
    names = [Path(name).name for kind in (ABLATIONS, SHARES) for name in recipe_names(kind)]
    assert names
    assert set(names) <= set(ORDER)


def test_finished_parts_are_kept(finished: tuple[Path, EnglishOptions]) -> None:
    folder, options = finished
    before = {path: path.stat().st_mtime_ns for path in folder.glob("runs/**/*") if path.is_file()}
    reproduce_english(
        folder / "out", folder / "runs", [str(folder / "base.yaml")], [0], options, "pushdown x"
    )
    assert before == {
        path: path.stat().st_mtime_ns for path in folder.glob("runs/**/*") if path.is_file()
    }
    assert list(results(folder)["seeds"]["0"]) == ["base", "pushdown"]
    with pytest.raises(ReproductionError, match="was trained with other settings"):
        reproduce_english(
            folder / "out",
            folder / "runs",
            [str(folder / "base.yaml")],
            [0],
            replace(options, overrides=("training.lr=1",)),
        )


def test_models_whose_runs_are_elsewhere_stay(
    finished: tuple[Path, EnglishOptions], tmp_path: Path
) -> None:
    folder, options = finished
    shutil.copytree(folder / "out", tmp_path / "out")
    shutil.copytree(folder / "runs" / "seed0" / "base", tmp_path / "runs" / "seed0" / "base")
    models = [str(folder / "base.yaml")]
    found = reproduce_english(tmp_path / "out", tmp_path / "runs", models, [0], options)
    assert found["seeds"] == results(folder)["seeds"]
    assert found["titles"] == results(folder)["titles"]
    other = replace(options, tests=replace(options.tests, limit=1))
    found = reproduce_english(tmp_path / "out", tmp_path / "runs", models, [0], other)
    assert set(found["seeds"]["0"]["pushdown"]) == {"recipe", "training", "curve"}


def test_wider_search(finished: tuple[Path, EnglishOptions]) -> None:
    folder, options = finished
    wider = replace(options, tests=replace(options.tests, check_beam=True, blimp=None))
    models = [str(folder / "base.yaml"), str(folder / "pushdown.yaml")]
    found = reproduce_english(folder / "wider", folder / "runs", models, [0], wider)
    test = "perplexity test, wider search"
    assert set(found["seeds"]["0"]["base"][test]) == {"settings"}  # exact anyway
    report = found["seeds"]["0"]["pushdown"][test]
    assert (report["settings"]["beam"], report["settings"]["threshold"]) == (8, 8.0)
    gold = [binarize(tree) for tree in read_trees(folder / "test.trees")]
    scorer = load_scorer(folder / "runs/seed0/pushdown/model", beam=8, threshold=8.0)
    expected = evaluate_tree_perplexity(scorer, gold).to_json()["perplexities"]
    assert report["perplexities"] == expected


def test_report(finished: tuple[Path, EnglishOptions]) -> None:
    folder, _ = finished
    found = results(folder)
    page = (folder / "out" / "table.md").read_text()
    assert page == markdown(found)
    f1 = found["seeds"]["0"]["pushdown"]["parsing test"]["model"]["f1"]
    assert f"| parsing F1, test |  | {100 * f1:.1f} |" in page
    assert "SG" not in page
    assert "## BLiMP fields" in page
    assert "    pushdown x" in page
    found["seeds"]["1"] = found["seeds"]["0"]
    same = f"{100 * f1:.1f}"
    assert f"| parsing F1, test |  | {same} [{same} to {same}] |" in comparison(found)


def test_what_was_tested_before_stays(finished: tuple[Path, EnglishOptions]) -> None:
    folder, options = finished
    before = {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/*/tests/*")}
    models = [str(folder / "base.yaml")]
    for tests in (replace(options.tests, blimp=None), options.tests):
        given = replace(options, tests=tests)
        reproduce_english(folder / "out", folder / "runs", models, [0], given, "pushdown x")
        assert ("blimp" in results(folder)["seeds"]["0"]["base"]) == (tests.blimp is not None)
    assert before == {path: path.stat().st_mtime_ns for path in folder.glob("runs/*/*/tests/*")}


def test_models_that_read_brackets(finished: tuple[Path, EnglishOptions], tmp_path: Path) -> None:
    _, options = finished
    decoder = "{type: llama, intermediate_size: 32, num_key_value_heads: 2}"
    (tmp_path / "tg.yaml").write_text(
        f"title: TG\ninherits: {TINY}\nmodel: {{kind: tg, decoder: {decoder}}}\n"
    )
    models = [str(tmp_path / "tg.yaml")]
    found = reproduce_english(tmp_path / "out", tmp_path / "runs", models, [0], options)
    model = found["seeds"]["0"]["tg"]
    assert model["blimp"]["scorer"]["beam"] == "4/1/1"
    assert model["blimp"]["sentences_per_second"] > 0
    assert set(model["perplexity test"]["perplexities"]) == {"marginal"}
    assert "perplexity" not in model["training"]
    page = (tmp_path / "out" / "table.md").read_text()
    for line in (
        "BLiMP, accuracy, %",
        "word perplexity, test",
        "parsing F1, test",
        "validation perplexity of words and brackets",
        "training tokens per second",
        "training memory, MB",
        "sentences scored per second, BLiMP",
    ):
        assert re.search(rf"\| {re.escape(line)} \| [\d.,]+ \|", page), line


def test_suites_of_syntaxgym(shared_data: Path, tmp_path: Path) -> None:
    build_data(
        {"train": list(generate(60, seed=1))}, tmp_path / "data", DataOptions(tokenizer="bpe:300")
    )
    options = EnglishOptions(
        data=str(tmp_path / "data"),
        tests=TestData(sg=str(shared_data / "sg_suites"), beam=2, limit=1),
    )
    save_recipes(tmp_path)
    found = reproduce_english(
        tmp_path / "out",
        tmp_path / "runs",
        [str(tmp_path / "pushdown.yaml")],
        [0],
        options,
        "pushdown x",
    )
    model = found["seeds"]["0"]["pushdown"]
    assert (model["sg"]["items"], model["sg"]["failures"]) == (31, 0)
    assert 0 < model["attention"]["distractor"] < 1
    page = (tmp_path / "out" / "table.md").read_text()
    assert f"| SG suites (31), accuracy, % | {100 * model['sg']['accuracy']:.1f} |" in page
    assert "## SG circuits" in page


@pytest.mark.parametrize("source", ["trees", "sg", "blimp"])
def test_missing_test_data_is_told_before_training(
    source: str, finished: tuple[Path, EnglishOptions], tmp_path: Path
) -> None:
    nowhere = str(tmp_path / "nowhere")
    wrong: Any = {source: {"test": nowhere} if source == "trees" else nowhere}
    options = replace(finished[1], tests=replace(finished[1].tests, **wrong))
    models = [str(finished[0] / "base.yaml")]
    with pytest.raises((PushdownError, OSError), match="nowhere"):
        reproduce_english(tmp_path / "out", tmp_path / "runs", models, [0], options)
    assert not (tmp_path / "runs").exists()


def test_unknown_model(tmp_path: Path) -> None:
    command = ["reproduce", "english", "--data", str(tmp_path), "--models", "basis"]
    outcome = CliRunner().invoke(app, command)
    assert isinstance(outcome.exception, PushdownError)
    assert "no recipe 'basis'" in str(outcome.exception)


def test_names_of_trees(tmp_path: Path) -> None:
    command = ["reproduce", "english", "--data", str(tmp_path), "--trees", "test.trees"]
    outcome = CliRunner().invoke(app, command)
    assert "expected --trees NAME=FILE, got 'test.trees'" in str(outcome.exception)


def test_installed_models_are_tested_without_training(
    finished: tuple[Path, EnglishOptions], tmp_path: Path
) -> None:
    folder, options = finished
    tests = replace(options.tests, trees={}, limit=1)
    installed = EnglishOptions(data="", tests=tests, installed=True)
    found = reproduce_english(tmp_path / "out", tmp_path / "runs", ["english"], [0], installed)
    assert found["titles"] == {"english": "Pushdown-LM (ours)"}
    model = found["seeds"]["0"]["english"]
    assert model["training"]["tokens"] == 15_564_800
    assert model["blimp"]["items"] == 1
    assert model["blimp"]["scorer"]["model"] == "english"
    assert model["blimp"]["scorer"]["tokenizer"] == "english (8000 entries)"
    assert not list(tmp_path.glob("runs/**/*.safetensors"))
    assert "15,564,800" in markdown(found)
    shutil.rmtree(tmp_path / "runs")  # what the results have is not tested again
    again = reproduce_english(tmp_path / "out", tmp_path / "runs", ["english"], [0], installed)
    assert again["seeds"] == found["seeds"]
    assert not list(tmp_path.glob("runs/**/blimp.json"))
    with pytest.raises(ReproductionError, match="trained with seed 0, expected 1"):
        reproduce_english(tmp_path / "out", tmp_path / "runs", ["english"], [1], installed)
    command = ["reproduce", "english", "--models", "english", "--blimp", str(folder / "blimp")]
    refused = CliRunner().invoke(app, command)
    assert "--installed needs none" in str(refused.exception)
