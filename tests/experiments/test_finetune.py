"""Fine-tuning end to end on small slices, frozen weights, adapters, and cached parses."""

from __future__ import annotations

import json
import operator
import os
import signal
from dataclasses import asdict, replace
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification
from transformers.trainer_utils import EvalLoopOutput

from pushdown_lm.corpora.glue import TASKS, load_examples
from pushdown_lm.errors import Interrupted, PushdownError
from pushdown_lm.experiments import finetune as finetune_module
from pushdown_lm.experiments.finetune import (
    PRESETS,
    FinetuneOptions,
    finetune_all,
    prepare,
    split_off,
)
from pushdown_lm.experiments.prompt_trainer import (
    PromptCollator,
    PromptTrainer,
    count_prompt_targets,
    prompt_losses,
)
from pushdown_lm.experiments.prompts import FinetuneError, Prompt, PromptEncoder
from pushdown_lm.model.layers import decoder_blocks
from pushdown_lm.search import parse_cache
from pushdown_lm.search.beam import search
from pushdown_lm.search.parse_cache import ParseCache
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from pushdown_lm.training import lora
from pushdown_lm.training.checkpoint import load_model
from pushdown_lm.training.freezing import (
    FreezingError,
    freeze,
    trainable_parameters,
)
from pushdown_lm.training.lora import add_lora, merge_lora
from pushdown_lm.training.trainer import TrainingError
from pushdown_lm.trees.oracle import tree_from_attachments
from tests.command_line import launch_pushdown, run_pushdown
from tests.models import BOS, EOS, pushdown_model, random_model
from tests.tiny_glue import PLACES, save_model, save_tasks
from tests.tiny_training import at_step

FAST = FinetuneOptions(epochs=1, batch_size=4, lr=1e-3, beam=3, max_train=8, max_eval=6)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tasks(tmp_path_factory.mktemp("glue"))


@pytest.fixture(scope="module")
def pushdown(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "pushdown", pushdown_layers=[1, 2])


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_model(tmp_path_factory.mktemp("models") / "base" / "model", pushdown_layers=[])


# ------------------------------------------------------------------ the command


SMALL = ("--batch-size", 4, "--epochs", 1, "--max-train", 8, "--max-eval", 8, "--beam", 2)


def test_all_tasks_by_command(
    data: Path,
    pushdown: Path,
    base: Path,
    tmp_path: Path,
) -> None:
    command = ("finetune", "all", "--model", base, "--model", pushdown, "--data", data)
    command += ("--out", tmp_path, "--seeds", 2, *SMALL)
    done = run_pushdown(*command)
    assert done.exit_code == 0
    header, *rows, constant = [line.split("\t") for line in done.output.splitlines()]
    assert header == [
        "model",
        "kind",
        "RTE accuracy",
        "SST-5 accuracy",
        "MRPC f1",
        "MRPC accuracy",
        "STS-B spearman",
        "STS-B pearson",
    ]
    assert [row[:2] for row in rows] == [["base", "base"], ["pushdown", "pushdown"]]
    assert all(" ± " in cell for row in rows for cell in row[2:])
    assert constant == ["most frequent class", "", "62.5", "37.5", "0.0", "62.5", "", ""]
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    assert [result["split"] for result in results[::2]] == ["dev", "dev", "test", "dev"]
    assert all(len(result["runs"]) == 2 for result in results)
    assert (tmp_path / "parses.jsonl").is_file()


@pytest.mark.parametrize("task", PLACES)
def test_real_slices_by_command(
    shared_data: Path,
    pushdown: Path,
    task: str,
    tmp_path: Path,
) -> None:
    small = ("--max-train", 2, "--max-eval", 2, "--beam", 1, "--epochs", 1, "--batch-size", 4)
    command = ("finetune", task, "--model", pushdown, "--data", shared_data / "glue")
    done = run_pushdown(*command, "--out", tmp_path, "--seeds", 1, *small)
    assert done.exit_code == 0
    header, row, *_ = (line.split("\t") for line in done.output.splitlines())
    assert len(header) == len(row) == 2 + len(TASKS[task].metrics)
    assert all(-100 <= float(cell) <= 100 for cell in row[2:])


def test_bad_input_is_one_line_and_exit_code_2(
    data: Path,
    pushdown: Path,
    base: Path,
    tmp_path: Path,
) -> None:
    def attempt(task: str, model: Path, folder: Path, *more: object) -> str:
        command = ("finetune", task, "--model", model, "--data", folder, "--out", tmp_path / "out")
        done = run_pushdown(*command, *SMALL, *more)
        assert done.exit_code == 2
        return done.error.strip().splitlines()[-1]

    assert "expected one of rte, sst5" in attempt("cola", pushdown, data)
    assert "expected train.tsv of RTE" in attempt("rte", pushdown, tmp_path)
    assert "expected a Pushdown model" in attempt("rte", tmp_path, data)
    assert "goes by the pushdown layers" in attempt("rte", base, data, "--freeze", "lower")
    assert "freeze: expected none" in attempt("rte", base, data, "--freeze", "some")
    assert "choose one" in attempt("rte", base, data, "--freeze", "lower:1", "--lora-rank", 2)


# ------------------------------------------------------------------ prompts and losses


@pytest.fixture(scope="module")
def scorer(pushdown: Path) -> PushdownScorer:
    return PushdownScorer.from_pretrained(pushdown, allow_unknown=True)


def test_a_prompt_is_a_window_of_parsed_sentences(
    scorer: PushdownScorer, data: Path, tmp_path: Path
) -> None:
    task = TASKS["rte"]
    example = load_examples(task, data, "train")[1]
    encoder = PromptEncoder(scorer, task)
    cache = ParseCache(tmp_path / "parses.jsonl", scorer.model, beam=3)
    (prompt,) = encoder.encode([example], cache)
    texts = [*task.sentences(example), "Label: not entailment"]
    config = scorer.model.config
    expected = [
        [config.bos_token_id, *scorer.encode(text).ids, config.eos_token_id] for text in texts
    ]
    assert prompt.input_ids == list(chain.from_iterable(expected))
    answer = scorer._backend.decode(prompt.input_ids[prompt.answer : -1])
    assert answer.strip() == "not entailment"
    start = 0
    for ids in expected:
        own = [r - start for r in prompt.attachments[start : start + len(ids)]]
        tree_from_attachments(own, ["x"] * (len(ids) - 2))  # legal, or an error
        start += len(ids)
    label = range(prompt.answer, len(prompt.input_ids) - 1)
    assert [prompt.attachments[position] for position in label] == list(label)
    best = search(scorer.model, [expected[0][1:-1]], beam=3)[0].histories[0].tolist()
    assert list(prompt.attachments[1 : len(expected[0]) - 1]) == best


@pytest.mark.parametrize("task", ["rte", "sst5"])
def test_predictions_do_not_see_the_label(
    scorer: PushdownScorer, data: Path, tmp_path: Path, task: str
) -> None:
    examples = load_examples(TASKS[task], data, "train")
    encoder = PromptEncoder(scorer, TASKS[task])
    cache = ParseCache(tmp_path / "parses.jsonl", scorer.model, beam=2)
    logits = []
    for label in (0, 1):
        told = [replace(example, label=label) for example in examples]
        prompts = encoder.encode(told, cache)
        rows = []
        for prompt in prompts:
            ids, parse = (torch.tensor([x]) for x in (prompt.input_ids, prompt.attachments))
            rows.append(scorer.model(ids, parse).logits[0, prompt.answer - 1])
        logits.append(torch.stack(rows))
    torch.testing.assert_close(*logits, rtol=0, atol=1e-5)


def test_loss_is_that_of_the_model_where_both_parts_weigh_alike(
    scorer: PushdownScorer, data: Path
) -> None:
    """With one prompt the two means are a split of the model's own mean over all tokens."""
    encoder = PromptEncoder(scorer, TASKS["rte"])
    (prompt,) = encoder.encode(load_examples(TASKS["rte"], data, "train", 1), None)
    model = scorer.model
    ids, parse = torch.tensor([prompt.input_ids]), torch.tensor([prompt.attachments])
    whole = model(ids, parse, labels=ids).lm_loss.item()
    answers = len(prompt.input_ids) - prompt.answer
    roots = sum(token == model.config.bos_token_id for token in prompt.input_ids)
    rest = len(prompt.input_ids) - roots - answers
    batch = PromptCollator(model.config.pad_token_id)([asdict(prompt)])
    assert count_prompt_targets(model, batch).tolist() == [answers, rest]
    mean = prompt_losses(model, batch, model).sum().item() / (answers + rest)
    assert mean == pytest.approx(whole, rel=1e-5)


def test_labels_that_begin_alike(scorer: PushdownScorer) -> None:
    task = replace(TASKS["rte"], labels=("good", "good dog"))
    with pytest.raises(FinetuneError, match="begins each of the labels good, good dog"):
        PromptEncoder(scorer, task)


def test_training_fits_what_it_is_trained_on(pushdown: Path, data: Path, tmp_path: Path) -> None:
    options = replace(FAST, epochs=60, lr=5e-3, lm_weight=0.1, max_eval=8)
    (result,) = finetune_all(
        [TASKS["sst5"]], [pushdown], data, tmp_path, options, seeds=1, save=True
    )
    assert result.runs[0].metrics["accuracy"] == 1.0
    load_model(tmp_path / "sst5" / "pushdown" / "seed-0" / "model")


def test_finished_runs_are_kept(pushdown: Path, tmp_path: Path) -> None:
    (tmp_path / "glue").mkdir()
    data = save_tasks(tmp_path / "glue")

    def run(options: FinetuneOptions, seeds: int) -> list[finetune_module.Run]:
        tasks, out = [TASKS["stsb"]], tmp_path / "out"
        return finetune_all(tasks, [pushdown], data, out, options, seeds=seeds)[0].runs

    (first,) = run(FAST, 1)
    again, second = run(FAST, 2)
    assert again == first
    assert second.metrics != first.metrics

    (other,) = run(replace(FAST, lr=1e-2), 1)
    assert other.metrics != first.metrics

    assert run(FAST, 1)[0].metrics == first.metrics
    file = data / "stsb" / "STSB_train.csv"
    file.write_text(file.read_text().replace("\t0.0\t", "\t5.0\t"))
    assert run(FAST, 1)[0].metrics != first.metrics


def test_regression_model_is_saved_whole(pushdown: Path, data: Path, tmp_path: Path) -> None:
    finetune_all([TASKS["stsb"]], [pushdown], data, tmp_path, FAST, seeds=1, save=True)
    folder = tmp_path / "stsb" / "pushdown" / "seed-0" / "model"
    model = AutoModelForSequenceClassification.from_pretrained(folder)
    assert model.config.num_labels == 1
    assert not model.score.weight.eq(0).all()


@pytest.mark.parametrize(
    "change",
    [{"freeze": "lower:1"}, {"gradient_checkpointing": True}, {"precision": "bf16"}],
    ids=["freeze", "checkpointing", "bf16"],
)
def test_cheap_training(
    pushdown: Path, scorer: PushdownScorer, data: Path, tmp_path: Path, change: dict[str, object]
) -> None:
    options = replace(FAST, **change)  # type: ignore[arg-type]
    prepared = prepare(pushdown, TASKS["rte"], data, tmp_path / "parses.jsonl", options)
    run = finetune_module.finetune(pushdown, TASKS["rte"], prepared, options, tmp_path / "run")
    assert run.steps == 2
    head = sum(parameter.numel() for parameter in scorer.model.head.parameters())
    assert (run.trainable_parameters < run.parameters - head) == ("freeze" in change)
    assert run.peak_memory_megabytes > 0


@pytest.mark.parametrize(
    "change", [{"gradient_accumulation": 2}, {"cache_lower": True}], ids=["parts", "lower"]
)
def test_cheap_training_has_the_losses_of_the_whole_one(
    pushdown: Path, data: Path, tmp_path: Path, change: dict[str, object]
) -> None:
    options = replace(FAST, freeze="lower:1", patience=2, held_out=0.25, epochs=2)
    logs = []
    for name, chosen in {"whole": options, "cheap": replace(options, **change)}.items():  # type: ignore[arg-type]
        prepared = prepare(pushdown, TASKS["rte"], data, tmp_path / "parses.jsonl", chosen)
        finetune_module.finetune(pushdown, TASKS["rte"], prepared, chosen, tmp_path / name)
        log = (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        logs.append([json.loads(line) for line in log])
    assert (tmp_path / "lower").is_dir() == ("cache_lower" in change)
    for whole, cheap in zip(*logs, strict=True):
        assert whole.pop("kind") == cheap.pop("kind")
        assert cheap == pytest.approx(whole, rel=5e-3)


def test_lower_layers_that_are_not_frozen_cannot_be_kept(
    pushdown: Path, data: Path, tmp_path: Path
) -> None:
    options = replace(FAST, cache_lower=True)
    with pytest.raises(PushdownError, match="cache_lower: expected frozen"):
        finetune_all([TASKS["rte"]], [pushdown], data, tmp_path / "out", options, seeds=1)
    assert not list((tmp_path / "out").glob("**/*.npy"))


# ------------------------------------------------------------------ cached parses


def test_parses_are_found_once(
    scorer: PushdownScorer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "parses.jsonl"
    sentences = [(5, 6, 7), (8, 9), (5, 6, 7)]
    cache = ParseCache(path, scorer.model, beam=2)
    found = cache.parse(sentences)
    best = search(scorer.model, [(5, 6, 7)], beam=2)[0].histories[0].tolist()
    assert found[0] == found[2] == [0, *best, 0]
    assert len(path.read_text().splitlines()) == len(cache) == 2

    def fail(*_: object, **__: object) -> None:
        raise AssertionError("searched again")

    with path.open("a") as file:
        file.write('{"model": "cut sho')
    monkeypatch.setattr(parse_cache, "search_batches", fail)
    again = ParseCache(path, scorer.model, beam=2)
    assert again.parse(sentences) == found
    assert len(ParseCache(path, scorer.model, beam=3)) == 0
    other = random_model(seed=9, vocabulary=520, positions=64)
    assert len(ParseCache(path, other, beam=2)) == 0


def test_a_file_that_is_no_cache(scorer: PushdownScorer, tmp_path: Path) -> None:
    (tmp_path / "parses.jsonl").write_text("hello\n")
    with pytest.raises(PushdownError, match=r"parses\.jsonl:1: expected a parse"):
        ParseCache(tmp_path / "parses.jsonl", scorer.model, beam=2)


def test_base_model_is_not_parsed(base: Path, data: Path, tmp_path: Path) -> None:
    prepared = prepare(base, TASKS["rte"], data, tmp_path / "parses.jsonl", FAST)
    assert not (tmp_path / "parses.jsonl").exists()
    assert len(prepared.train) == 8


# ------------------------------------------------------------------ frozen weights, adapters

IDS = torch.tensor([[BOS, 4, 5, 6, 7, EOS]])
ATTACHMENTS = torch.tensor([[0, 1, 1, 3, 2, 0]])


def trained_names(choice: str) -> set[str]:
    model = pushdown_model("llama", pushdown_layers=[1, 2])
    freeze(model, choice)
    return {name for name, parameter in model.named_parameters() if parameter.requires_grad}


def test_freeze() -> None:
    everything = trained_names("none")
    assert {name for name, _ in pushdown_model("llama").named_parameters()} >= everything
    added = trained_names("all-but-pushdown")
    assert all(name.startswith("head.") or ".self_attn." in name for name in added)
    assert not any(".layers.0." in name for name in added)
    assert any("layers.1.self_attn.tape_embedding" in name for name in added)
    upper = trained_names("lower")
    assert upper == trained_names("lower:1")
    left_out = everything - upper
    assert all(".layers.0." in name or "embed_tokens" in name for name in left_out)
    assert any("embed_tokens" in name for name in left_out)


def test_freeze_of_what_is_not_there() -> None:
    model = pushdown_model(pushdown_layers=[])
    for choice in ("lower", "all-but-pushdown"):
        with pytest.raises(FreezingError, match="goes by the pushdown layers"):
            freeze(model, choice)
    with pytest.raises(FreezingError, match="lower:4 of a decoder with 3 layers"):
        freeze(model, "lower:4")
    freeze(model, "lower:3")
    assert not any(
        p.requires_grad for layer in decoder_blocks(model.decoder) for p in layer.parameters()
    )


def test_frozen_weights_do_not_move(pushdown: Path) -> None:
    model, _ = load_model_without_manifest(pushdown)
    freeze(model, "all-but-pushdown")
    before = {name: parameter.clone() for name, parameter in model.named_parameters()}
    optimizer = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=1.0)
    model(IDS, ATTACHMENTS, labels=IDS).loss.backward()
    optimizer.step()
    moved = {name for name, p in model.named_parameters() if not torch.equal(p, before[name])}
    assert moved
    assert all(name.startswith("head.") or ".self_attn." in name for name in moved)


def load_model_without_manifest(folder: Path):  # type: ignore[no-untyped-def]
    scorer = PushdownScorer.from_pretrained(folder)
    return scorer.model, scorer.tokenizer


@pytest.mark.parametrize("kind", ["gpt2", "llama", "qwen3"])
def test_merged_adapters_compute_the_same(kind: str) -> None:
    pytest.importorskip("peft", reason="peft is not installed")
    model = pushdown_model(kind, pushdown_layers=[1, 2])
    names = set(model.state_dict())
    plain = model(IDS, ATTACHMENTS).logits
    whole = trainable_parameters(model).trained
    add_lora(model, rank=2)
    assert trainable_parameters(model).trained < whole
    torch.testing.assert_close(model(IDS, ATTACHMENTS).logits, plain)
    for name, parameter in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(parameter)
    adapted = model(IDS, ATTACHMENTS).logits
    assert not torch.allclose(adapted, plain)
    merge_lora(model)
    assert set(model.state_dict()) == names
    torch.testing.assert_close(model(IDS, ATTACHMENTS).logits, adapted)


def test_adapters_that_fit_nothing() -> None:
    pytest.importorskip("peft", reason="peft is not installed")
    with pytest.raises(FreezingError, match=r"lora\.targets: \['q_projection'\]"):
        add_lora(pushdown_model(), targets=["q_projection"])


def test_adapters_without_the_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lora, "find_spec", lambda name: None)
    with pytest.raises(FreezingError, match=r"pip install 'pushdown-lm\[peft\]'"):
        add_lora(pushdown_model())


def test_finetuning_with_adapters(pushdown: Path, data: Path, tmp_path: Path) -> None:
    pytest.importorskip("peft", reason="peft is not installed")

    options = replace(FAST, lora_rank=2)
    (result,) = finetune_all(
        [TASKS["rte"]], [pushdown], data, tmp_path, options, seeds=1, save=True
    )
    assert result.runs[0].trainable_parameters < result.runs[0].parameters
    model, _ = load_model(tmp_path / "rte" / "pushdown" / "seed-0" / "model")
    assert not any("lora" in name for name in model.state_dict())


# ------------------------------------------------------------------ presets and early stopping


def test_presets() -> None:
    paper, quick = PRESETS["paper"], PRESETS["quick"]
    assert (paper.batch_size, paper.lr, paper.schedule) == (256, 3e-5, "constant")
    assert paper.patience is not None
    assert quick == FinetuneOptions()
    with pytest.raises(FinetuneError, match="patience: expected more than 0, got 0"):
        replace(FAST, patience=0)


def test_the_paper_s_prompts(data: Path, pushdown: Path, tmp_path: Path) -> None:
    command = ("finetune", "stsb", "--model", pushdown, "--data", data, "--out", tmp_path)
    assert run_pushdown(*command, "--preset", "paper", "--seeds", 1, *SMALL).exit_code == 0
    options = json.loads((tmp_path / "results.json").read_text())["options"]
    assert (options["batch_size"], options["lr"], options["schedule"]) == (4, 3e-5, "constant")
    assert options["patience"] == PRESETS["paper"].patience


def test_held_out_prompts_are_not_trained_on() -> None:
    prompts = [Prompt([number], [0], 0, 0.0) for number in range(20)]
    train, held_out = split_off(prompts, replace(FAST, patience=1), seed=3)
    assert (len(train), len(held_out)) == (18, 2)
    key = operator.attrgetter("input_ids")
    assert sorted([*train, *held_out], key=key) == prompts
    assert split_off(prompts, FAST, seed=3) == (prompts, [])
    with pytest.raises(FinetuneError, match="holds out 1 of 1 training examples"):
        split_off(prompts[:1], replace(FAST, patience=1), seed=3)


def test_early_stopping_keeps_the_best_epoch(
    data: Path, pushdown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The held-out loss goes down, up, up: the weights are those after the first epoch."""
    options = replace(FAST, epochs=9, patience=2, held_out=0.5)
    losses, seen = iter([2.0, 3.0, 2.5, 1.0]), list[torch.Tensor]()

    def loss(self: PromptTrainer, *_: object, **__: object) -> EvalLoopOutput:
        seen.append(next(self.bare_model.parameters()).detach().clone())
        metrics = {"eval_answer_loss": next(losses)}
        return EvalLoopOutput(None, None, metrics, 4)  # type: ignore[arg-type]

    monkeypatch.setattr(PromptTrainer, "evaluation_loop", loss)
    prepared = prepare(pushdown, TASKS["stsb"], data, tmp_path / "parses.jsonl", options)
    run = tmp_path / "run"
    found = finetune_module.finetune(pushdown, TASKS["stsb"], prepared, options, run, save=True)
    assert (found.steps, len(seen)) == (3, 3)
    model = AutoModelForSequenceClassification.from_pretrained(run / "model")
    weights = next(model.parameters())
    assert torch.equal(weights, seen[0])
    assert not torch.equal(weights, seen[2])


def test_held_out_loss_is_the_mean_over_all_answers(
    data: Path, pushdown: Path, tmp_path: Path
) -> None:
    options = replace(FAST, patience=1, held_out=0.6, batch_size=2)
    prepared = prepare(pushdown, TASKS["rte"], data, tmp_path / "parses.jsonl", options)
    finetune_module.finetune(pushdown, TASKS["rte"], prepared, options, tmp_path / "run", save=True)
    records = map(json.loads, (tmp_path / "run" / "metrics.jsonl").read_text().splitlines())
    measured = [record for record in records if record["kind"] == "eval"][-1]
    model, _ = load_model(tmp_path / "run" / "model")
    _, held_out = split_off(prepared.train, options, 0)
    batch = PromptCollator(model.config.pad_token_id)([asdict(prompt) for prompt in held_out])
    with torch.no_grad():
        means = prompt_losses(model.eval(), batch, model) / count_prompt_targets(model, batch)
    assert [measured["answer_loss"], measured["lm_loss"]] == pytest.approx(means.tolist(), rel=1e-4)


# ------------------------------------------------------------------ interruptions and failures


def test_an_interrupted_run_continues_number_for_number(
    data: Path, pushdown: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = replace(FAST, epochs=3, patience=3, held_out=0.25)

    def run(out: str) -> list[finetune_module.Run]:
        tasks = [TASKS["mrpc"]]
        return finetune_all(tasks, [pushdown], data, tmp_path / out, options, seeds=1, save=True)[
            0
        ].runs

    (whole,) = run("whole")
    with monkeypatch.context() as patch:
        at_step(3, lambda: os.kill(os.getpid(), signal.SIGINT), patch)
        with pytest.raises(Interrupted, match="checkpoint-3; the same command continues"):
            run("interrupted")
    (resumed,) = run("interrupted")
    assert (resumed.metrics, resumed.steps) == (whole.metrics, whole.steps)
    folders = [tmp_path / out / "mrpc" / "pushdown" / "seed-0" for out in ("whole", "interrupted")]
    for name in ("metrics.jsonl", "model/model.safetensors"):
        one, other = ((folder / name).read_bytes() for folder in folders)
        assert one == other
    assert not list(folders[1].glob("checkpoint-*"))


def test_a_failing_model_does_not_lose_the_others(
    data: Path, pushdown: Path, base: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = PromptTrainer.train_from

    def fail(self: PromptTrainer, *arguments: Any) -> None:
        if self.bare_model.config.pushdown_layers:
            raise TrainingError("step 1: the loss is not finite")
        whole(self, *arguments)

    monkeypatch.setattr(PromptTrainer, "train_from", fail)
    done = run_pushdown(
        "finetune", "rte", "--model", pushdown, "--model", base, "--data", data,
        "--out", tmp_path, "--seeds", 1, *SMALL,
    )  # fmt: skip
    assert done.exit_code == 1
    assert "pushdown: RTE, pushdown: step 1: the loss is not finite" in done.error
    assert [line.split("\t")[0] for line in done.output.splitlines()[1:2]] == ["base"]
    results = json.loads((tmp_path / "results.json").read_text())["results"]
    assert [result["model"] for result in results] == ["base"]


@pytest.mark.parametrize("wrong", ["second model", "second task", "layers", "output", "split"])
def test_what_is_wrong_is_found_before_the_work(
    wrong: str, data: Path, pushdown: Path, base: Path, tmp_path: Path
) -> None:
    (tmp_path / "file").write_text("")
    tasks = ["rte", "cola"] if wrong == "second task" else ["rte"]
    models = [pushdown, tmp_path if wrong == "second model" else base]
    out = tmp_path / ("file" if wrong == "output" else "out")
    more = {"layers": ["--freeze", "lower:9"], "split": ["--split", "test"]}.get(wrong, [])
    message = {
        "second model": "expected a Pushdown model",
        "second task": "expected one of rte, sst5",
        "layers": "lower:9 of a decoder with",
        "output": "expected a folder",
        "split": "RTE has no test split; it has train, dev",
    }[wrong]
    named = [part for model in models for part in ("--model", model)]
    done = run_pushdown("finetune", *tasks, *named, "--data", data, "--out", out, *more, *SMALL)
    assert (done.exit_code, message in done.error) == (2, True), done.error
    assert not (tmp_path / "out" / "parses.jsonl").exists()


def test_two_processes_finetune_as_one(data: Path, pushdown: Path, tmp_path: Path) -> None:
    command = ["finetune", "rte", "--model", pushdown, "--data", data, "--seeds", 1, "--save"]
    options = ["--batch-size", 4, "--epochs", 1, "--max-train", 8, "--max-eval", 7, "--beam", 2]
    assert run_pushdown(*command, *options, "--out", tmp_path / "one").exit_code == 0
    launch_pushdown(2, *command, *options, "--out", tmp_path / "two")
    one, two = (
        load_model(tmp_path / out / "rte" / "pushdown" / "seed-0" / "model")[0].state_dict()
        for out in ("one", "two")
    )
    for name, weight in one.items():
        torch.testing.assert_close(weight, two[name], atol=1e-6, rtol=1e-5)
    results = [
        json.loads((tmp_path / out / "results.json").read_text())["results"][0]["runs"][0]
        for out in ("one", "two")
    ]
    assert results[0]["metrics"] == results[1]["metrics"]
