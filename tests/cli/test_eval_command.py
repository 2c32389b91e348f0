"""`pushdown eval` as a person runs it, in one process and in two."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from pushdown_lm.data.tokenization import detokenize, train_bpe, train_word_vocabulary
from pushdown_lm.evals import evaluation
from pushdown_lm.evals.blimp import evaluate_blimp, load_blimp
from pushdown_lm.evals.sg import evaluate_sg, load_suites
from pushdown_lm.search.defaults import DEFAULT_THRESHOLD
from pushdown_lm.search.loading import BaseLMScorer, load_scorer
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from pushdown_lm.search.scorer import CausalLMScorer
from pushdown_lm.trees import parse_tree, to_brackets
from tests.command_line import launch_pushdown, run_pushdown
from tests.evals.conftest import build_tokenizer
from tests.evals.test_attention import REGIONS_OF_SUITES
from tests.models import plain_model, random_model

SUITES = {
    "number_src": ["The {head}", "that saw", "the {other}", "{verb}", "well"],
    "number_orc": ["The {head}", "that", "the {other} saw", "{verb}", "well"],
}
TREES = ["(S (NP The baker) (VP sings (ADV well)) .)", "(S (NP The pilots) (VP sing) .)"]
LINES = ["The baker that saw the pilots sings well.", "The pilots sing.", "The pilots sing."]
WORDS = [
    *("The", "the", "baker", "bakers", "pilot", "pilots"),
    *("that", "saw", "sings", "sing", "well", "."),
]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    for name, template in SUITES.items():
        (folder / "suites").mkdir(exist_ok=True)
        (folder / "suites" / f"{name}.json").write_text(json.dumps(suite(template)))
    (folder / "blimp").mkdir()
    for paradigm in ("first", "second"):
        pairs = [
            {
                "sentence_good": f"The {noun} {good}.",
                "sentence_bad": f"The {noun} {bad}.",
                "UID": paradigm,
                "linguistics_term": "agreement",
                "field": "morphology",
            }
            for noun, good, bad in [("baker", "sings", "sing"), ("pilots", "sing", "sings")]
        ]
        lines = "\n".join(map(json.dumps, pairs))
        (folder / "blimp" / f"{paradigm}.jsonl").write_text(lines)
    (folder / "gold.trees").write_text("\n".join(TREES))
    (folder / "lines.txt").write_text("\n".join([*LINES, ""]))
    return folder


def suite(template: list[str]) -> dict[str, Any]:
    def condition(name: str, head: str, other: str, verb: str) -> dict[str, Any]:
        parts = [part.format(head=head, other=other, verb=verb) for part in template]
        regions = [{"region_number": n, "content": part} for n, part in enumerate(parts, start=1)]
        return {"condition_name": name, "regions": regions}

    items = [
        {
            "item_number": number,
            "conditions": [
                condition("match", head, other, right),
                condition("mismatch", head, other, wrong),
            ],
        }
        for number, (head, other, right, wrong) in enumerate(
            [("baker", "pilots", "sings", "sing"), ("bakers", "pilot", "sing", "sings")], start=1
        )
    ]
    formula = {"type": "formula", "formula": "(4;%match%) < (4;%mismatch%)"}
    return {"meta": {"metric": "sum"}, "predictions": [formula], "items": items}


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A Pushdown-LM, a Base-LM and a plain language model, and one of a closed vocabulary."""
    folders = {}
    bpe = train_bpe([detokenize(WORDS)] * 3, vocab_size=290)
    words = train_word_vocabulary([[word for word in WORDS if word != "saw"]])
    kinds = {"pushdown": (bpe, None), "base": (bpe, []), "closed": (words, None)}
    for name, (tokenizer, layers) in kinds.items():
        folders[name] = tmp_path_factory.mktemp(name) / "model"
        model = random_model(
            scale=0.3, vocabulary=len(tokenizer), positions=40, pushdown_layers=layers
        )
        model.float().save_pretrained(folders[name])
        tokenizer.save_pretrained(folders[name])
    folders["plain"] = tmp_path_factory.mktemp("plain")
    tokenizer = build_tokenizer()
    plain_model(len(tokenizer)).save_pretrained(folders["plain"])
    tokenizer.save_pretrained(folders["plain"])
    return folders


@dataclass
class Eval:
    """Runs the command in this process."""

    folder: Path

    def __call__(self, *arguments: object) -> tuple[dict[str, Any], str]:
        """The report and what was printed."""
        out = self.folder / "report.json"
        code, printed, _ = self.run(*arguments, "--out", out)
        assert code == 0
        return json.loads(out.read_text()), printed

    def run(self, *arguments: object) -> tuple[int, str, str]:
        done = run_pushdown("eval", *arguments)
        return done.exit_code, done.output, done.error


@pytest.fixture
def evaluate(tmp_path: Path) -> Eval:
    return Eval(tmp_path)


SG = ("--suite-set", "all", "--beam", 20)


def test_each_folder_has_its_scorer(models: dict[str, Path]) -> None:
    assert isinstance(load_scorer(models["pushdown"]), PushdownScorer)
    assert isinstance(load_scorer(models["base"]), BaseLMScorer)
    assert type(load_scorer(models["plain"])) is CausalLMScorer


@pytest.mark.parametrize("name", ["pushdown", "base", "closed"])
def test_parses_and_surprisals_of_one_search(models: dict[str, Path], name: str) -> None:
    scorer = load_scorer(models[name], beam=20)
    known, unknown = ("The", "pilots", "sing", "."), ("The", "pilots", "saw", ".")
    readings = scorer.parse_and_score([known, unknown])
    assert [reading.tree for reading in readings] == scorer.parse([known, unknown])
    assert (readings[1].tokens is None) == (name == "closed")
    for words, (tree, tokens) in zip([known, unknown], readings, strict=True):
        assert (tree is None) == (tokens is None)
        if tokens is not None:
            bits = [token.surprisal for token in scorer.surprisals([words])[0]]
            assert [token.surprisal for token in tokens] == pytest.approx(bits, abs=1e-4)


def test_base_lm_is_exact(models: dict[str, Path]) -> None:
    """One pass gives what a beam that drops nothing gives; a narrow beam gives less."""
    base = load_scorer(models["base"], beam=2)
    assert isinstance(base, BaseLMScorer)
    whole = PushdownScorer(base.parser.model, base.parser.tokenizer, beam=5000)
    sentences = ["The pilots sing.", ("The", "pilots", "sing", ".")]
    exact = whole.analyse(sentences)
    assert all(analysis.result.log_dropped == -math.inf for analysis in exact)
    log_probs = base.log_probs(sentences)
    assert log_probs == pytest.approx([analysis.log_prob for analysis in exact], abs=1e-4)
    assert base.parser.log_probs(sentences)[0] < log_probs[0] - 1e-3
    for ours, theirs in zip(base.surprisals(sentences[:1])[0], exact[0].tokens, strict=True):
        assert (ours.text, ours.start, ours.end) == (theirs.text, theirs.start, theirs.end)
        assert ours.surprisal == pytest.approx(theirs.surprisal, abs=1e-4)


@pytest.mark.parametrize("name", ["pushdown", "base", "plain"])
def test_sg(evaluate: Eval, models: dict[str, Path], data: Path, name: str) -> None:
    report, printed = evaluate("sg", "--model", models[name], "--data", data / "suites", *SG)
    suites = load_suites(data / "suites", sorted(SUITES))
    scorer = load_scorer(models[name], beam=20, threshold=DEFAULT_THRESHOLD)
    expected = evaluate_sg(scorer, suites).to_json()
    assert {key: report[key] for key in expected} == expected
    assert report["items"] == 4
    assert report["options"] == {
        "data": str(data / "suites"),
        "suite_set": "all",
        "punctuation": '" ." added',
        "running_text": False,
        "limit": None,
    }
    for stated in ("model:", "tokenizer:", "beam:", "items: 4", "ties:", "failures:", "suite set:"):
        assert stated in printed


def test_sg_options_change_what_is_scored(
    evaluate: Eval, models: dict[str, Path], data: Path
) -> None:
    command = ("sg", "--model", models["plain"], "--data", data / "suites", *SG)
    running, _ = evaluate(*command, "--running-text")
    assert running["running_text"] is True
    report, _ = evaluate(*command, "--no-trailing-period", "--limit", 1)
    assert (report["trailing_period"], report["items"]) == (False, 2)


def test_the_sets_of_the_papers_want_all_their_suites(
    evaluate: Eval, models: dict[str, Path], data: Path
) -> None:
    code, _, error = evaluate.run("sg", "--model", models["plain"], "--data", data / "suites")
    assert code == 2
    assert "number_prep.json" in error


def test_a_cache_spares_all_scoring_and_changes_nothing(
    evaluate: Eval,
    models: dict[str, Path],
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    cache = tmp_path / "scores.jsonl"
    command = ("sg", "--model", models["pushdown"], "--data", data / "suites", *SG)
    plain, _ = evaluate(*command)
    first, _ = evaluate(*command, "--cache", cache)
    remembered = cache.read_text()
    monkeypatch.setattr(PushdownScorer, "surprisals", None)
    again, _ = evaluate(*command, "--cache", cache)
    assert plain == first == again
    assert cache.read_text() == remembered
    assert len(remembered.splitlines()) == 8


def test_ctrl_c_says_where_the_scores_are(
    evaluate: Eval,
    models: dict[str, Path],
    data: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    command = ("sg", "--model", models["pushdown"], "--data", data / "suites", *SG)
    whole, _ = evaluate(*command)
    (tmp_path / "report.json").unlink()
    (tmp_path / "report.scores.jsonl").unlink()
    monkeypatch.setattr(evaluation, "CHUNK", 3)
    score = PushdownScorer.surprisals
    seen: list[int] = []

    def interrupted(self: PushdownScorer, sentences: Sequence[Any]) -> list[Any]:
        seen.append(len(sentences))
        if len(seen) == 3:
            raise KeyboardInterrupt
        return score(self, sentences)

    monkeypatch.setattr(PushdownScorer, "surprisals", interrupted)
    code, _, error = evaluate.run(*command, "--out", tmp_path / "report.json")
    assert code == 130
    assert error.splitlines()[-2:] == [
        f"pushdown: scores so far are in {tmp_path / 'report.scores.jsonl'}; "
        "the same command resumes there",
        "pushdown: interrupted",
    ]
    assert not (tmp_path / "report.json").exists()
    again, _ = evaluate(*command)
    assert again == whole
    assert seen == [3, 3, 2, 2]  # only the last two are scored again


def test_two_processes_share_the_sentences(
    evaluate: Eval, models: dict[str, Path], data: Path, tmp_path: Path
) -> None:
    command = ("sg", "--model", models["pushdown"], "--data", data / "suites", *SG)
    alone, _ = evaluate(*command, "--cache", tmp_path / "alone.jsonl")
    files = ("--out", tmp_path / "two.json", "--cache", tmp_path / "two.jsonl")
    assert launch_pushdown(2, "eval", *command, *files).count("mean over suites") == 1
    assert json.loads((tmp_path / "two.json").read_text()) == alone
    one, two = (
        {record["sentence"]: record["value"] for record in read_records(tmp_path / name)}
        for name in ("alone.jsonl", "two.jsonl")
    )
    assert list(one) == list(two)
    for sentence, tokens in one.items():
        assert [t[:3] for t in two[sentence]] == [t[:3] for t in tokens]
        assert [t[3] for t in two[sentence]] == pytest.approx([t[3] for t in tokens], abs=1e-4)


def read_records(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.parametrize("punctuation", ["attached", "separated"])
def test_blimp(evaluate: Eval, models: dict[str, Path], data: Path, punctuation: str) -> None:
    command = ("blimp", "--model", models["pushdown"], "--data", data / "blimp", "--beam", 20)
    report, _ = evaluate(*command, "--punctuation", punctuation)
    expected = evaluate_blimp(
        load_scorer(models["pushdown"], beam=20),
        load_blimp(data / "blimp"),
        separate_punctuation=punctuation == "separated",
    )
    assert report["paradigms"] == expected.to_json()["paradigms"]
    assert report["items"] == 4
    assert evaluate(*command, "--limit", 1)[0]["items"] == 2


def test_parsing(evaluate: Eval, models: dict[str, Path], data: Path) -> None:
    command = ("parsing", "--model", models["pushdown"], "--data", data / "gold.trees")
    report, _ = evaluate(*command, "--beam", 20, "--punctuation", "deleted")
    assert (report["items"], report["failures"], report["gold_is_binary"]) == (2, 0, True)
    assert "." in report["deleted_words"]
    assert 0 < report["model"]["f1"] <= 1
    assert not evaluate(*command, "--no-binarize-gold")[0]["gold_is_binary"]


def test_a_plain_lm_does_not_parse(evaluate: Eval, models: dict[str, Path], data: Path) -> None:
    code, _, error = evaluate.run(
        "parsing", "--model", models["plain"], "--data", data / "gold.trees"
    )
    assert code == 2
    assert "expected a model that parses" in error


def test_perplexity_of_text(evaluate: Eval, models: dict[str, Path], data: Path) -> None:
    report, _ = evaluate("perplexity", "--model", models["plain"], "--data", data / "lines.txt")
    log_prob = math.fsum(load_scorer(models["plain"]).log_probs(LINES))
    assert (report["items"], report["words"]) == (3, 8 + 3 + 3 + 3)
    assert report["log_prob"] == pytest.approx(log_prob)


def test_perplexity_of_trees(evaluate: Eval, models: dict[str, Path], data: Path) -> None:
    """Base and Pushdown read the same tokens; without Pushdown Layers the tree tells nothing."""
    command = ("perplexity", "--data", data / "gold.trees", "--trees", "--beam", 300)
    pushdown, printed = evaluate(*command, "--model", models["pushdown"])
    base, _ = evaluate(*command, "--model", models["base"])
    plain, _ = evaluate(*command, "--model", models["plain"])
    assert pushdown["tokens"] == base["tokens"]
    assert pushdown["words"] == base["words"] == plain["words"] == 5 + 1 + 4 + 1
    assert list(plain["perplexities"]) == ["marginal"]
    figures = {name: row["log_prob"] for name, row in base["perplexities"].items()}
    assert figures["marginal"] == pytest.approx(figures["conditional"], abs=1e-4)
    assert figures["joint"] < figures["marginal"]

    scorer = load_scorer(models["pushdown"], beam=300)
    trees = [parse_tree(line) for line in TREES]
    joint = math.fsum(scorer.log_joint(tree) for tree in trees)
    marginal = math.fsum(scorer.log_probs([tree.words for tree in trees]))
    figures = {name: row["log_prob"] for name, row in pushdown["perplexities"].items()}
    assert figures["joint"] == pytest.approx(joint, abs=1e-4)
    assert figures["marginal"] == pytest.approx(marginal, abs=1e-4)
    assert figures["joint"] < figures["conditional"]
    perplexity = math.exp(-joint / pushdown["tokens"])
    assert pushdown["perplexities"]["joint"]["token_perplexity"] == pytest.approx(perplexity)
    assert "conditional: x, each token given the gold tree so far" in printed


def test_scores_of_trees_in_batches_of_unequal_length(models: dict[str, Path]) -> None:
    scorer = load_scorer(models["pushdown"])
    assert isinstance(scorer, PushdownScorer)
    trees = [parse_tree(line) for line in [*TREES, "(X The baker)", "(X well)"]]
    for tree, parts in zip(trees, scorer.score_trees(trees), strict=True):
        assert sum(parts) == pytest.approx(scorer.log_joint(tree), abs=1e-4), to_brackets(tree)


def test_attention(evaluate: Eval, models: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "agreement"
    folder.mkdir()
    for name, template in REGIONS_OF_SUITES.items():
        (folder / f"{name}.json").write_text(json.dumps(suite(template)))
    report, printed = evaluate(
        *("attention", "--model", models["base"], "--model", models["pushdown"]),
        *("--data", folder, "--plots", tmp_path / "plots", "--beam", 5, "--limit", 1),
    )
    base, pushdown = report["models"].values()
    assert base["scorer"]["model"] == str(models["base"])
    assert base["items"] == pushdown["items"] == 3
    assert 0 < pushdown["suites"]["number_orc"]["distractor"]["mean"] < 1
    assert list(report["models"]) == [models[name].parent.name for name in ("base", "pushdown")]
    assert {path.name for path in (tmp_path / "plots").iterdir()} == {
        *("attention.png", "attention_by_layer.png"),
        *(f"attention_{name}.png" for name in REGIONS_OF_SUITES),
    }
    assert str(tmp_path / "plots" / "attention.png") in printed


def test_a_failing_model_does_not_lose_the_others(
    evaluate: Eval, models: dict[str, Path], tmp_path: Path
) -> None:
    folder, out = tmp_path / "agreement", tmp_path / "report.json"
    folder.mkdir()
    for name, template in REGIONS_OF_SUITES.items():
        (folder / f"{name}.json").write_text(json.dumps(suite(template)))
    command = ["--data", folder, "--beam", 2, "--limit", 1, "--out", out]
    closed = ["attention", "--model", models["closed"]]
    code, _, error = evaluate.run(*closed, *command)
    assert code == 2
    assert "number_src.json: expected words of the vocabulary" in error
    assert "--keep-going leaves such sentences out" in error
    code, _, error = evaluate.run(*closed, "--model", models["base"], *command)
    assert code == 1
    assert "found" in error
    assert list(json.loads(out.read_text())["models"]) == [models["base"].parent.name]


class TestClosedVocabulary:
    def test_unknown_words_are_an_error_or_allowed(
        self, evaluate: Eval, models: dict[str, Path], data: Path
    ) -> None:
        command = ("sg", "--model", models["closed"], "--data", data / "suites", *SG)
        code, _, error = evaluate.run(*command)
        assert code == 2
        assert "found 'saw'" in error
        assert evaluate(*command, "--allow-unknown")[0]["scorer"]["allow_unknown"]

    def test_trees_with_unknown_words_are_left_out(
        self, evaluate: Eval, models: dict[str, Path], tmp_path: Path
    ) -> None:
        gold = tmp_path / "gold.trees"
        gold.write_text("\n".join([*TREES, "(S The (NP baker saw))"]))
        command = ("--model", models["closed"], "--data", gold, "--beam", 20)
        for suite in (("parsing",), ("perplexity", "--trees")):
            code, _, error = evaluate.run(*suite, *command)
            assert code == 2
            assert "--keep-going leaves such sentences out" in error
            out = tmp_path / "report.json"
            code, _, error = evaluate.run(*suite, *command, "--keep-going", "--out", out)
            assert (code, "closed vocabulary" in error) == (1, True)
            assert json.loads(out.read_text())["items"] == 2


def test_no_model(evaluate: Eval, models: dict[str, Path], data: Path) -> None:
    folder = models["pushdown"].parent
    code, _, error = evaluate.run("sg", "--model", folder, "--data", data / "suites", *SG)
    assert code == 2
    assert f"found no config.json; did you mean {folder / 'model'}?" in error
