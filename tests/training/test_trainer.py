"""Training: losses, evaluation, exact resumption, faults."""

from __future__ import annotations

import math
import os
import resource
import signal
import subprocess
import sys
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, AutoTokenizer

from pushdown_lm.corpora.dyck import Dyck
from pushdown_lm.data.batching import Collator, RandomBatches, Share
from pushdown_lm.data.dataset import Data
from pushdown_lm.errors import Interrupted
from pushdown_lm.files import FolderError, verify_manifest
from pushdown_lm.training.arguments import training_arguments
from pushdown_lm.training.checkpoint import checkpoints, load_model
from pushdown_lm.training.monitor import MetricsLog
from pushdown_lm.training.recipe import RecipeError
from pushdown_lm.training.run import run_recipe
from pushdown_lm.training.trainer import (
    PushdownTrainer,
    TrainingError,
)
from pushdown_lm.trees.oracle import attachments_from_tree
from tests import strategies
from tests.command_line import launch_pushdown
from tests.models import BOS, EOS, pushdown_model
from tests.tiny_training import at_step, read_log, tiny_data, tiny_recipe


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return tiny_data(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def trained(data: Data, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of 24 steps, over more than one epoch, with two evaluations."""
    run = tmp_path_factory.mktemp("trained") / "run"
    run_recipe(long_recipe(), data, run)
    return run


def long_recipe() -> Any:
    return tiny_recipe("training.eval_every=8", "training.keep=3", "training.log_every=5", steps=24)


def weights(run: Path) -> dict[str, torch.Tensor]:
    return load_file(run / "model" / "model.safetensors")


# ------------------------------------------------------------------ batches and losses


def test_random_batches_are_a_new_permutation_every_epoch() -> None:
    batches = RandomBatches([1] * 10, 4, seed=3)
    first = list(batches)
    assert [len(batch) for batch in first] == [4, 4, 2]
    assert sorted(index for batch in first for index in batch) == list(range(10))
    assert first == list(batches)
    batches.set_epoch(1)
    assert first != list(batches)
    assert len(batches) == 3


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=30),
    size=st.integers(1, 4),
    per_step=st.integers(1, 4),
)
def test_batches_of_a_step_share_out_its_examples_by_length(
    lengths: list[int], size: int, per_step: int
) -> None:
    parts = list(RandomBatches(lengths, size, seed=1, per_step=per_step))
    wholes = list(RandomBatches(lengths, size * per_step, seed=1))
    assert len(parts) == len(RandomBatches(lengths, size, seed=1, per_step=per_step))
    for number, whole in enumerate(wholes):
        step = [index for part in parts[number * per_step :][:per_step] for index in part]
        assert sorted(step) == sorted(whole)
        if per_step > 1:
            assert [lengths[index] for index in step] == sorted(lengths[i] for i in whole)


@given(count=st.integers(1, 9), world=st.integers(1, 4))
def test_shares_cover_the_batches_in_rounds(count: int, world: int) -> None:
    batches = [[index] for index in range(count)]
    shares = [list(Share(batches, rank, world)) for rank in range(world)]
    assert {len(share) for share in shares} == {math.ceil(count / world)}
    in_order = [batch for turn in zip(*shares, strict=True) for batch in turn]
    assert in_order[:count] == batches
    assert in_order[count:] == (batches * world)[: len(in_order) - count]


@given(trees=st.lists(strategies.binary_trees(max_words=6), min_size=1, max_size=4))
@pytest.mark.parametrize("shared", [False, True])
def test_targets_are_those_of_the_model(trees: list[Any], shared: bool, data: Data) -> None:
    recipe = tiny_recipe()
    model = cached_model(data, recipe)
    bos, eos = 0, 0 if shared else 1
    model.config.bos_token_id, model.config.eos_token_id = bos, eos
    model.forbidden.end = eos
    model.forbidden.ids = {bos, 2} - {eos}
    examples = [
        {
            "input_ids": [bos, *(5 + len(word) for word in tree.words), eos],
            "attachments": attachments_from_tree(tree),
        }
        for tree in trees
    ]
    batch = Collator(2)(examples)
    with torch.no_grad():
        outputs = model(**batch, num_items_in_batch=1, num_attachments_in_batch=1)
        means = model(**batch)
    tokens, attachments = model.count_targets(**batch).tolist()
    assert tokens == sum(len(tree.words) + 1 for tree in trees)
    assert attachments == (outputs.attachment_targets != -100).sum()
    torch.testing.assert_close(outputs.lm_loss / tokens, means.lm_loss)


def test_open_tokens_are_counted_by_the_parse() -> None:
    """A word is decided where a bracket is open: not the first, nor one after all are closed."""
    language = Dyck(num_types=2, max_nesting=3, max_length=20)
    strings = list(islice(language.strings(0), 6))
    model = pushdown_model("gpt2", legality=Dyck.legality, num_depths=2)
    examples = [
        {
            "input_ids": [BOS, *(string.symbols + 2).tolist(), EOS],
            "attachments": [0, *string.attachments.tolist(), 0],
        }
        for string in strings
    ]
    batch = Collator(EOS)(examples)
    nesting = [np.cumsum(np.where(string.symbols < 2, 1, -1))[:-1] for string in strings]
    targets = model(**batch).attachment_targets
    assert model.count_targets(**batch)[1] == (targets != -100).sum()
    assert (targets != -100).sum() == sum((open_brackets > 0).sum() for open_brackets in nesting)


_models: dict[str, Any] = {}


def cached_model(data: Data, recipe: Any) -> Any:
    if "model" not in _models:
        _models["model"] = recipe.build_model(data.tokenizer).eval()
    return _models["model"]


EXACT = (  # plain gradient descent, nearly: Adam's steps are signs where gradients are rounding
    "training.epsilon=1",
    "training.lr=0.5",
    "training.dropout=0",
    "training.clip=0",
    "training.batch_size=16",
)


def test_accumulated_parts_give_the_gradient_of_the_joined_batch(
    data: Data, tmp_path: Path
) -> None:
    for parts in (1, 4):
        recipe = tiny_recipe(*EXACT, f"training.gradient_accumulation={parts}", steps=4)
        run_recipe(recipe, data, tmp_path / str(parts))
    assert_same_training(tmp_path / "1", tmp_path / "4")


def assert_same_training(one: Path, other: Path) -> None:
    """Equal losses, evaluations and weights, but for rounding."""
    for ours, theirs in zip(read_log(one), read_log(other), strict=True):
        assert ours.pop("kind") == theirs.pop("kind")
        assert ours == pytest.approx(theirs, rel=1e-5)
    for name, tensor in weights(one).items():
        torch.testing.assert_close(tensor, weights(other)[name], atol=1e-6, rtol=1e-5)


def test_two_processes_train_as_one_with_the_joined_batch(data: Data, tmp_path: Path) -> None:
    recipe = tiny_recipe(*EXACT, "training.eval_every=2", steps=4)
    run_recipe(recipe, data, tmp_path / "one")
    recipe_file = tmp_path / "recipe.yaml"
    recipe_file.write_text(recipe.to_yaml())
    launch_pushdown(2, "train", recipe_file, "--data", data.folder, "--out", tmp_path / "two")
    assert [record["step"] for record in read_log(tmp_path / "two", "train")] == [1, 2, 3, 4]
    assert [record["step"] for record in read_log(tmp_path / "two", "eval")] == [2, 4]
    assert_same_training(tmp_path / "one", tmp_path / "two")
    verify_manifest(tmp_path / "two" / "checkpoint-4")
    assert (tmp_path / "two" / "checkpoint-4" / "random-1.safetensors").exists()


def test_batch_that_processes_cannot_share(data: Data, tmp_path: Path) -> None:
    recipe = tiny_recipe("training.batch_size=10", "training.gradient_accumulation=4")
    with pytest.raises(RecipeError, match=r"training\.batch_size: expected a multiple of 4"):
        run_recipe(recipe, data, tmp_path / "run")


def test_gradient_checkpointing_changes_no_loss(data: Data, tmp_path: Path) -> None:
    for flag in ("false", "true"):
        recipe = tiny_recipe(*EXACT, f"training.gradient_checkpointing={flag}", steps=3)
        run_recipe(recipe, data, tmp_path / flag)
    assert_same_training(tmp_path / "false", tmp_path / "true")


@pytest.mark.parametrize("precision", ["float32", "bf16"])
def test_outputs_stay_in_the_precision_of_the_products(
    data: Data, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, precision: str
) -> None:
    """A copy of the logits in float32 would cost more than many layers."""
    seen = set[torch.dtype]()
    run_model = PushdownTrainer._run_model

    def watched(self: Any, *args: Any) -> Any:
        output = run_model(self, *args)
        seen.add(output.logits.dtype)
        assert output.lm_loss.dtype == torch.float32
        return output

    monkeypatch.setattr(PushdownTrainer, "_run_model", watched)
    recipe = tiny_recipe(f"training.precision={precision}", "training.eval_every=1", steps=1)
    run_recipe(recipe, data, tmp_path / "run")
    assert seen == {torch.bfloat16 if precision == "bf16" else torch.float32}


# ------------------------------------------------------------------ evaluation


def test_evaluation_is_in_sums_over_all_targets(data: Data, tmp_path: Path) -> None:
    recipe = tiny_recipe("model.attachment_loss_weight=0.5")
    model = recipe.build_model(data.tokenizer)
    trainer = PushdownTrainer(model, recipe, data, tmp_path)
    metrics = trainer.evaluate()
    tokens = attachments = correct = 0
    lm_loss = attachment_loss = 0.0
    for example in data.valid:  # type: ignore[union-attr]
        with torch.no_grad():
            outputs = model(**Collator(2)([example]))
        decided = outputs.attachment_targets != -100
        tokens += len(example["input_ids"]) - 1
        attachments += int(decided.sum())
        lm_loss += outputs.lm_loss.item() * (len(example["input_ids"]) - 1)
        attachment_loss += outputs.attachment_loss.item() * int(decided.sum())
        right = outputs.attachment_logits.argmax(-1) == outputs.attachment_targets
        correct += int(right[decided].sum())
    assert metrics["eval_lm_loss"] == pytest.approx(lm_loss / tokens, rel=1e-5)
    assert metrics["eval_perplexity"] == pytest.approx(math.exp(lm_loss / tokens), rel=1e-5)
    assert metrics["eval_attachment_loss"] == pytest.approx(attachment_loss / attachments, rel=1e-5)
    assert metrics["eval_attachment_accuracy"] == pytest.approx(correct / attachments)
    expected = lm_loss / tokens + 0.5 * attachment_loss / attachments
    assert metrics["eval_loss"] == pytest.approx(expected, rel=1e-5)


def test_evaluation_leaves_training_alone(data: Data, trained: Path, tmp_path: Path) -> None:
    recipe = tiny_recipe("training.eval_every=3", steps=24)
    run_recipe(recipe, data, tmp_path / "run")
    assert read_log(tmp_path / "run", "train") == read_log(trained, "train")


def test_plain_language_model_has_no_attachment_metrics(data: Data, tmp_path: Path) -> None:
    recipe = tiny_recipe("model.attachment_head=null", "model.pushdown_layers=none", steps=2)
    metrics = run_recipe(recipe, data, tmp_path / "run")
    assert "attachment_loss" not in metrics
    assert "attachment_loss" not in read_log(tmp_path / "run")[0]
    assert metrics["loss"] == metrics["lm_loss"]


# ------------------------------------------------------------------ the run folder


def test_run_folder(data: Data, trained: Path) -> None:
    assert sorted(path.name for path in trained.iterdir()) == [
        "checkpoint-16",
        "checkpoint-24",
        "checkpoint-8",
        "metrics.json",
        "metrics.jsonl",
        "model",
        "recipe.yaml",
        "versions.json",
    ]
    assert [record["step"] for record in read_log(trained, "train")] == list(range(1, 25))
    assert [record["step"] for record in read_log(trained, "eval")] == [8, 16, 24]
    first, last = read_log(trained, "train")[0], read_log(trained, "train")[-1]
    assert first["lm_loss"] == pytest.approx(math.log(len(data.tokenizer)), rel=0.1)
    assert last["loss"] < first["loss"]
    for folder in (*checkpoints(trained), trained / "model"):
        verify_manifest(folder)
        for path in folder.iterdir():
            assert path.suffix in (".json", ".safetensors")


def test_model_loads_by_the_auto_classes(data: Data, trained: Path) -> None:
    batch = Collator(2)([data.train[0], data.train[1]])
    model, tokenizer = load_model(trained / "model")
    auto = AutoModelForCausalLM.from_pretrained(trained / "model")
    assert torch.equal(model(**batch).logits, auto.eval()(**batch).logits)
    assert tokenizer.get_vocab() == data.tokenizer.get_vocab()
    assert AutoTokenizer.from_pretrained(trained / "model").get_vocab() == tokenizer.get_vocab()


def test_damaged_model_is_not_loaded(data: Data, tmp_path: Path) -> None:
    run_recipe(tiny_recipe(steps=1), data, tmp_path / "run")
    path = tmp_path / "run" / "model" / "model.safetensors"
    flip_a_bit(path)
    with pytest.raises(FolderError, match=r"model\.safetensors: its SHA-256"):
        load_model(path.parent)


def flip_a_bit(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def test_seed_decides_everything(data: Data, trained: Path, tmp_path: Path) -> None:
    run_recipe(tiny_recipe("training.seed=1", steps=24), data, tmp_path / "other")
    ours, theirs = read_log(trained, "train"), read_log(tmp_path / "other", "train")
    assert all(one["loss"] != other["loss"] for one, other in zip(ours, theirs, strict=True))


def test_early_stopping_keeps_the_best_model(data: Data, tmp_path: Path, monkeypatch: Any) -> None:
    recipe = tiny_recipe(
        "training.lr=1e-12",  # nothing gets better
        "training.eval_every=1",
        "training.early_stopping_patience=2",
        "training.keep=2",
        steps=9,
    )
    metrics = run_recipe(recipe, data, tmp_path / "run")
    assert metrics["steps"] == 3
    evals = read_log(tmp_path / "run", "eval")
    best = min(evals, key=lambda record: record["perplexity"])
    assert metrics["perplexity"] == best["perplexity"]
    kept = load_file(tmp_path / "run" / f"checkpoint-{best['step']}" / "model.safetensors")
    for name, tensor in weights(tmp_path / "run").items():
        assert torch.equal(tensor, kept[name])
    with monkeypatch.context() as patch:  # its patience outlives an interruption
        at_step(2, lambda: os.kill(os.getpid(), signal.SIGTERM), patch)
        with pytest.raises(Interrupted):
            run_recipe(recipe, data, tmp_path / "resumed")
    run_recipe(recipe, data, tmp_path / "resumed", resume=True)
    assert_identical(tmp_path / "run", tmp_path / "resumed")


# ------------------------------------------------------------------ resuming


def test_run_killed_at_any_step_goes_on_number_for_number(
    data: Data, trained: Path, tmp_path: Path
) -> None:
    recipe_file = tmp_path / "recipe.yaml"
    recipe_file.write_text(long_recipe().to_yaml())
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(recipe_file), str(data.folder), str(tmp_path / "run")],
        env={**os.environ, "OMP_NUM_THREADS": str(torch.get_num_threads())},
        capture_output=True,
        text=True,
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert [path.name for path in checkpoints(tmp_path / "run")] == [
        "checkpoint-8",
        "checkpoint-16",
    ]
    assert read_log(tmp_path / "run")[-1]["step"] == 20
    run_recipe(long_recipe(), data, tmp_path / "run", resume=True)
    assert_identical(trained, tmp_path / "run")


KILLED = """
import os, signal, sys
from pushdown_lm.data.dataset import load_data
from pushdown_lm.training.monitor import ProgressCallback
from pushdown_lm.training.recipe import load_recipe
from pushdown_lm.training.run import run_recipe

def kill(self, args, state, control, **kwargs):
    if state.global_step == 22:
        os.kill(os.getpid(), signal.SIGKILL)

ProgressCallback.on_step_end = kill
run_recipe(load_recipe(sys.argv[1]), load_data(sys.argv[2]), sys.argv[3])
"""


def assert_identical(one: Path, other: Path) -> None:
    for name in ("metrics.jsonl", "model/model.safetensors"):
        assert (one / name).read_bytes() == (other / name).read_bytes()


@pytest.mark.parametrize(
    ("number", "step", "batches"),
    [
        (signal.SIGTERM, 7, "training.tokens_per_batch=256"),
        (signal.SIGINT, 5, "training.batch_size=32 training.gradient_accumulation=2"),
        (signal.SIGINT, 10, "training.batch_size=32"),
    ],
)
def test_signal_saves_and_stops(
    number: int, step: int, batches: str, data: Data, tmp_path: Path, monkeypatch: Any
) -> None:
    recipe = tiny_recipe(*batches.split(), steps=12)
    run_recipe(recipe, data, tmp_path / "whole")
    before = signal.getsignal(number)
    with monkeypatch.context() as patch:
        at_step(step, lambda: os.kill(os.getpid(), number), patch)
        with pytest.raises(Interrupted, match=f"checkpoint-{step}; --resume continues") as error:
            run_recipe(recipe, data, tmp_path / "run")
    assert error.value.exit_code == 128 + number
    assert signal.getsignal(number) == before
    assert [path.name for path in checkpoints(tmp_path / "run")] == [f"checkpoint-{step}"]
    run_recipe(recipe, data, tmp_path / "run", resume=True)
    assert_identical(tmp_path / "whole", tmp_path / "run")


def test_run_killed_after_its_last_step(data: Data, trained: Path, tmp_path: Path) -> None:
    recipe = long_recipe()

    class Killed(BaseException):
        pass

    def kill(_: Any) -> None:
        raise Killed

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PushdownTrainer, "save_final", kill)
        with pytest.raises(Killed):
            run_recipe(recipe, data, tmp_path / "run")
    metrics = run_recipe(recipe, data, tmp_path / "run", resume=True)
    assert metrics["perplexity"] == read_log(trained, "eval")[-1]["perplexity"]
    assert_identical(trained, tmp_path / "run")


def test_log_forgets_what_is_done_again(tmp_path: Path) -> None:
    log = MetricsLog(tmp_path / "metrics.jsonl")
    log.forget_after(0)
    log.write({"step": 1}, {"step": 2}, {"step": 3})
    with log.path.open("a") as file:
        file.write('{"step": 1, "cut sh')
    log.forget_after(2)
    assert log.path.read_text() == '{"step": 1}\n{"step": 2}\n'


def test_what_cannot_be_resumed(data: Data, trained: Path, tmp_path: Path) -> None:
    with pytest.raises(TrainingError, match="the run is finished"):
        run_recipe(long_recipe(), data, trained, resume=True)
    with pytest.raises(TrainingError, match="found files; --resume continues a run"):
        run_recipe(long_recipe(), data, trained)
    with pytest.raises(TrainingError, match=r"expected a run to resume, found no recipe\.yaml"):
        run_recipe(long_recipe(), data, tmp_path, resume=True)


def test_run_of_another_recipe_or_data(data: Data, tmp_path: Path, monkeypatch: Any) -> None:
    recipe = tiny_recipe(steps=4)
    with monkeypatch.context() as patch:
        at_step(2, lambda: os.kill(os.getpid(), signal.SIGTERM), patch)
        with pytest.raises(Interrupted):
            run_recipe(recipe, data, tmp_path / "run")
    with pytest.raises(RecipeError, match=r"another recipe: training\.lr was 0\.002 and is 0\.5"):
        run_recipe(tiny_recipe("training.lr=0.5", steps=4), data, tmp_path / "run", resume=True)
    with pytest.raises(TrainingError, match="started with other data"):
        run_recipe(recipe, tiny_data(tmp_path / "data", seed=5), tmp_path / "run", resume=True)
    flip_a_bit(tmp_path / "run" / "checkpoint-2" / "optimizer.safetensors")
    with pytest.raises(FolderError, match=r"optimizer\.safetensors: its SHA-256 .*no older"):
        run_recipe(recipe, data, tmp_path / "run", resume=True)


# ------------------------------------------------------------------ faults


def test_loss_that_is_not_finite_stops_training(data: Data, tmp_path: Path) -> None:
    recipe = tiny_recipe("training.lr=1e30", "training.warmup_steps=0", "training.save_every=2")
    with pytest.raises(
        TrainingError, match=r"step \d: the loss or its gradient is not finite"
    ) as e:
        run_recipe(recipe, data, tmp_path / "run")
    (saved,) = (tmp_path / "run").glob("not-finite-*.safetensors")
    assert str(saved) in str(e.value)
    batch = load_file(saved)
    assert batch["0.input_ids"].shape == batch["0.attachments"].shape
    assert (batch["0.input_ids"][:, 0] == data.tokenizer.bos_token_id).all()
    assert not (tmp_path / "run" / "model").exists()


def test_full_disk_leaves_the_last_checkpoint(data: Data, tmp_path: Path, monkeypatch: Any) -> None:
    recipe = tiny_recipe("training.save_every=3")
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill_the_disk() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, hard))

    try:
        with monkeypatch.context() as patch:
            at_step(5, fill_the_disk, patch)
            with pytest.raises(TrainingError, match=r"checkpoint-6: could not be written") as error:
                run_recipe(recipe, data, tmp_path / "run")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert "the last checkpoint is checkpoint-3, intact" in str(error.value)
    assert [path.name for path in checkpoints(tmp_path / "run")] == ["checkpoint-3"]
    assert not list((tmp_path / "run").glob(".unfinished*"))
    run_recipe(recipe, data, tmp_path / "whole")
    run_recipe(recipe, data, tmp_path / "run", resume=True)
    assert_identical(tmp_path / "whole", tmp_path / "run")


def test_share_of_the_data(data: Data, tmp_path: Path) -> None:
    everything = ("training.steps=null", "training.epochs=1", "training.eval_every=null")
    steps = [
        run_recipe(tiny_recipe(*everything, f"data.share={share}"), data, tmp_path / share)["steps"]
        for share in ("1", "0.5")
    ]
    assert steps[1] < 0.7 * steps[0]


def test_recipe_that_does_not_fit_the_data(data: Data, tmp_path: Path) -> None:
    for override, message in (
        (
            "model.decoder.max_position_embeddings=5",
            r"max_position_embeddings: the longest example",
        ),
        (
            "data.window=64",
            r"data\.window: expected windows of 64 tokens, the data has one sentence",
        ),
        ("training.tokens_per_batch=10", "tokens_per_batch: expected at least"),
    ):
        with pytest.raises(ValueError, match=message):
            run_recipe(tiny_recipe(override), data, tmp_path / "run")


def test_depths_above_the_table_are_mentioned(
    data: Data, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_recipe(tiny_recipe("model.num_depths=3", steps=1), data, tmp_path / "run")
    assert "those above 2 share one" in " ".join(capsys.readouterr().err.split())


def test_reports_need_their_package(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr("pushdown_lm.training.arguments.find_spec", lambda name: None)
    with pytest.raises(RecipeError, match=r"training\.report_to: wandb is not installed"):
        training_arguments(tiny_recipe("training.report_to=[wandb]"), tmp_path)
