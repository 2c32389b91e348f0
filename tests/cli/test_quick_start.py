"""The commands of the README's "From trees to a model", scaled down by options."""

from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
import yaml

from pushdown_lm.corpora.grammar import generate
from pushdown_lm.files import FolderError, locked
from pushdown_lm.trees import to_brackets
from tests.command_line import run_pushdown
from tests.tiny_training import read_log

SMALL = [
    "model.decoder.num_hidden_layers=2",
    "model.decoder.hidden_size=16",
    "model.decoder.num_attention_heads=2",
    "training.steps=4",
    "training.batch_size=8",
    "training.gradient_accumulation=1",
    "training.precision=float32",
    "training.eval_every=2",
    "training.warmup_steps=1",
]


def pushdown(*arguments: object) -> tuple[int, str, str]:
    done = run_pushdown(*arguments)
    return done.exit_code, done.output, done.error


def test_quick_start(tmp_path: Path) -> None:
    for name, count, seed in (("train", 60, 1), ("valid", 10, 2)):
        trees = map(to_brackets, generate(count, seed=seed))
        (tmp_path / f"{name}.trees").write_text("\n".join(trees))
    data, run = tmp_path / "data", tmp_path / "run"
    build = ["data", "build", tmp_path / "train.trees", "--valid", tmp_path / "valid.trees"]
    assert pushdown(*build, "--tokenizer", "bpe:400", "--out", data)[0] == 0

    settings = [word for setting in SMALL for word in ("--set", setting)]
    train = ["train", "bllip-lg", "--data", data, "--out", run]
    assert pushdown(*train, *settings, "--set", "training.lr=3e-4")[0] == 0
    assert yaml.safe_load((run / "recipe.yaml").read_text())["training"]["lr"] == 3e-4

    # as after a crash: the run's own recipe and data, and nothing that disagrees
    (run / "metrics.json").unlink()
    code, _, said = pushdown(*train, "--resume", "--set", "training.lr=1e-3")
    assert (code, "training.lr was 0.0003 and is 0.001" in said) == (2, True)
    code, _, said = pushdown("train", "demo", "--out", run, "--resume")
    assert (code, "started with the recipe 'bllip-lg', not 'demo'" in said) == (2, True)
    with locked(run, "run"):
        code, _, said = pushdown("train", "--out", run, "--resume")
    assert (code, "is writing this run" in said) == (2, True)
    assert pushdown("train", "--out", run, "--resume")[0] == 0
    assert [record["step"] for record in read_log(run, "train")] == [1, 2, 3, 4]

    text = tmp_path / "sentences.txt"
    text.write_text('the boys are "happy" .\n')
    code, table, _ = pushdown("surprisal", run / "model", text, "--beam", 5)
    assert code == 0
    rows = list(csv.DictReader(io.StringIO(table), delimiter="\t"))
    shown = "".join(row["token"] for row in rows if row["token"] != "Ġ")
    assert shown == 'theboysare"happy".</s>'
    for command in ("score", "parse"):
        assert pushdown(command, run / "model", text, "--beam", 5)[0] == 0
    assert pushdown("generate", run / "model", "--count", 2, "--temperature", 0)[0] == 0


def test_a_folder_has_one_writer(tmp_path: Path) -> None:
    with (
        locked(tmp_path, "run"),
        pytest.raises(FolderError, match=r"process .* is writing this run"),
        locked(tmp_path, "run"),
    ):
        raise AssertionError
    with locked(tmp_path, "run"):
        pass
    assert not list(tmp_path.iterdir())
