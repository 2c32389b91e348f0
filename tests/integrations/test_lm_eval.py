"""The LM evaluation harness on local BLiMP-like data, through its evaluator and its command."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

lm_eval = pytest.importorskip(
    "lm_eval", reason="lm-eval is not installed (pip install pushdown-lm[lm-eval])"
)

from lm_eval.api.instance import Instance  # noqa: E402
from lm_eval.api.registry import get_model  # noqa: E402

from pushdown_lm.data.tokenization import train_word_vocabulary  # noqa: E402
from pushdown_lm.errors import PushdownError  # noqa: E402
from pushdown_lm.integrations.lm_eval import PushdownHarnessLM, _join  # noqa: E402
from pushdown_lm.search.loading import load_scorer  # noqa: E402
from pushdown_lm.search.scorer import Token  # noqa: E402
from tests.integrations.conftest import WORDS  # noqa: E402
from tests.models import random_model  # noqa: E402

PAIRS = [
    (f"The {noun} {good} loudly.", f"The {noun} {bad} loudly.")
    for noun, good, bad in [("dog", "barks", "bark"), ("dogs", "bark", "barks")]
    for noun in (noun, f"{noun} that she knows", f"{noun} the dogs bark")
]
TASK = """
task: local_pairs
dataset_path: json
dataset_kwargs:
  data_files: {validation: "%s"}
output_type: multiple_choice
validation_split: validation
doc_to_text: ""
doc_to_target: 0
doc_to_choice: "{{[sentence_good, sentence_bad]}}"
num_fewshot: 0
metric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]
metadata: {version: 1.0}
"""


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("task")
    lines = [json.dumps({"sentence_good": good, "sentence_bad": bad}) for good, bad in PAIRS]
    (folder / "pairs.jsonl").write_text("\n".join(lines))
    (folder / "local_pairs.yaml").write_text(TASK % (folder / "pairs.jsonl"))
    return folder


def request(kind: str, *arguments: Any) -> Instance:
    return Instance(request_type=kind, doc={}, arguments=arguments, idx=0)


def nats(tokens: list[Token]) -> float:
    return -math.log(2) * math.fsum(token.surprisal for token in tokens)


def test_registered() -> None:
    assert get_model("pushdown") is PushdownHarnessLM


def test_texts_are_joined_where_the_space_is() -> None:
    assert _join("The dog ", "barks") == ("The dog barks", 7)
    assert _join("The dog", " barks") == ("The dog barks", 7)
    assert _join("", " The dog") == ("The dog", 0)


@pytest.mark.parametrize("name", ["pushdown", "base"])
@pytest.mark.parametrize("score_eos", [False, True])
def test_log_likelihoods(folders: dict[str, Path], name: str, score_eos: bool) -> None:
    scorer = load_scorer(folders[name], beam=50)
    model = PushdownHarnessLM(str(folders[name]), beam=50, score_eos=score_eos)
    text, last = "The dog that she knows barks", None if score_eos else -1
    tokens = scorer.surprisals([text])[0]
    start = next(number for number, token in enumerate(tokens) if token.end > len("The dog that"))
    found = model.loglikelihood(
        [
            request("loglikelihood", "The dog that", " she knows barks"),
            request("loglikelihood", "The dog that ", "she knows barks"),
            request("loglikelihood", "", f" {text}"),
        ]
    )
    expected = [nats(tokens[start:last])] * 2 + [nats(tokens[:last])]
    assert [value for value, _ in found] == pytest.approx(expected, abs=1e-4)
    rolling = model.loglikelihood_rolling([request("loglikelihood_rolling", text)])
    assert rolling == pytest.approx([nats(tokens[:last])], abs=1e-4)


def test_long_texts_are_read_in_parts(folders: dict[str, Path]) -> None:
    model = PushdownHarnessLM(str(folders["base"]))
    text = "The dog that she knows barks loudly. " * 4
    parts = model._parts(text.strip())
    assert len(parts) > 1
    assert " ".join(parts) == text.strip()
    value = model.loglikelihood_rolling([request("loglikelihood_rolling", text)])[0]
    scored = load_scorer(folders["base"]).surprisals(parts)
    assert value == pytest.approx(math.fsum(nats(tokens[:-1]) for tokens in scored), abs=1e-4)


@pytest.mark.parametrize("layers", [None, []], ids=["pushdown", "base"])
def test_greedy_continuations(tmp_path: Path, layers: list[int] | None) -> None:
    """A beam of one chooses parses as generation does, so just the word it generates is greedy."""
    tokenizer = train_word_vocabulary([WORDS])
    model = random_model(seed=3, vocabulary=len(tokenizer), positions=24, pushdown_layers=layers)
    with torch.no_grad():
        model.get_input_embeddings().weight[: len(tokenizer) - len(WORDS)] = 0.0
    model.float().save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    harness = PushdownHarnessLM(str(tmp_path), beam=1)
    for context in ("The dog", "The dogs that she", "the dog barks loudly ."):
        [word] = harness.generate_until([request("generate_until", context, {"max_gen_toks": 1})])
        assert word in WORDS
        found = harness.loglikelihood(
            [request("loglikelihood", context, f" {other}") for other in WORDS]
        )
        assert [greedy for _, greedy in found] == [word == other for other in WORDS]


def test_generation_stops(folders: dict[str, Path]) -> None:
    harness = PushdownHarnessLM(str(folders["pushdown"]))
    whole = harness.generate_until([request("generate_until", "The dog", {"max_gen_toks": 8})])[0]
    end = whole[len(whole) // 2]
    options = {"max_gen_toks": 8, "until": ["\n\n", end]}
    cut = harness.generate_until([request("generate_until", "The dog", options)])
    assert cut == [whole[: whole.index(end)]]


@pytest.mark.parametrize("name", ["pushdown", "base"])
def test_a_task_of_local_pairs(folders: dict[str, Path], task: Path, name: str) -> None:
    from lm_eval.tasks import TaskManager

    results = lm_eval.simple_evaluate(
        model="pushdown",
        model_args={"pretrained": str(folders[name]), "beam": 50},
        tasks=["local_pairs"],
        task_manager=TaskManager(include_path=str(task), include_defaults=False),
        bootstrap_iters=0,
    )
    scorer = load_scorer(folders[name], beam=50)
    scores = [[nats(tokens[:-1]) for tokens in scorer.surprisals(pair)] for pair in PAIRS]
    accuracy = sum(good > bad for good, bad in scores) / len(PAIRS)
    assert results["results"]["local_pairs"]["acc,none"] == pytest.approx(accuracy)
    assert results["n-samples"]["local_pairs"]["effective"] == len(PAIRS)


@pytest.mark.slow
def test_the_command(folders: dict[str, Path], task: Path, tmp_path: Path) -> None:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pushdown_lm.integrations.lm_eval", "--model", "pushdown"),
            *("--model_args", f"pretrained={folders['pushdown']},beam=20"),
            *("--tasks", "local_pairs", "--include_path", str(task)),
        ],
        env={**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"},
        capture_output=True,
        text=True,
        timeout=180,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    assert "local_pairs" in done.stdout


def test_other_models_and_arguments_are_errors(folders: dict[str, Path]) -> None:
    with pytest.raises(PushdownError, match="others run with --model hf"):
        PushdownHarnessLM(str(folders["plain"]))
    with pytest.raises(PushdownError, match="expected other model_args than bean"):
        PushdownHarnessLM(str(folders["base"]), bean=3)


def test_a_model_that_reads_brackets(folders: dict[str, Path]) -> None:
    harness = PushdownHarnessLM(str(folders["plm"]), beam=20)
    text = "The dogs bark."
    request = Instance("loglikelihood", {}, ("", text), 0)
    [(log_prob, is_greedy)] = harness.loglikelihood([request])
    tokens = harness.scorer.surprisals([text])[0][:-1]
    wanted = -math.log(2) * math.fsum(token.surprisal for token in tokens)
    assert log_prob == pytest.approx(wanted)
    assert not is_greedy
    with pytest.raises(PushdownError, match="expected a model that generates text"):
        harness.generate_until([Instance("generate_until", {}, ("The", {}), 0)])
