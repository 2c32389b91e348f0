"""Adapters: saved alone, put on their base model again, in peft's layout where it fits."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import (
    AutoModelForCausalLM,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
)

from pushdown_lm.corpora.grammar import generate
from pushdown_lm.data.build import DataOptions, build_data
from pushdown_lm.data.dataset import Data
from pushdown_lm.data.tokenization import detokenize, splits_marks, text_rule, train_bpe
from pushdown_lm.files import FolderError
from pushdown_lm.model.convert import convert
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from pushdown_lm.training.adapters import (
    AdapterError,
    apply_adapter,
    base_name,
    load_adapted,
    read_info,
    save_adapter,
)
from pushdown_lm.training.checkpoint import load_model
from pushdown_lm.training.recipe import load_recipe
from pushdown_lm.training.run import run_recipe
from tests.command_line import run_pushdown
from tests.models import pushdown_model

pytest.importorskip("peft", reason="peft is not installed")

TREES = list(generate(40, seed=3))
SETTINGS = (
    "training.steps=3",
    "training.tokens_per_batch=256",
    "training.lr=2e-2",
    "training.warmup_steps=0",
    "training.precision=float32",
    "training.eval_every=3",
    "training.lora.rank=2",
)


def save_base(kind: str, folder: Path, *, seed: int = 1, width: int = 32) -> Path:
    """A random language model with a tokenizer, in the place of a pretrained one."""
    torch.manual_seed(seed)
    tokenizer = train_bpe([detokenize(tree.words) for tree in TREES], vocab_size=300)
    sizes = {"vocab_size": len(tokenizer), "num_hidden_layers": 3, "hidden_size": width}
    sizes |= {"num_attention_heads": 4, "max_position_embeddings": 96}
    model: PreTrainedModel = (
        GPT2LMHeadModel(GPT2Config(**sizes))
        if kind == "gpt2"
        else LlamaForCausalLM(LlamaConfig(**sizes, intermediate_size=48))
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


class Trained:
    """A base model, its conversion, and a run that trained adapters in it."""

    def __init__(self, kind: str, folder: Path, recipe: str = "smollm2") -> None:
        self.base = save_base(kind, folder / "base")
        self.converted, self.run = folder / "converted", folder / "run"
        is_plain = recipe == "smollm2-base"
        options: dict[str, object] = (
            {"attachment_head": None}
            if is_plain
            else {"head_input": "lower_layers", "splits_marks": True}
        )
        layers = "none" if is_plain else "last:2"
        distances = 0 if is_plain else 16
        convert(self.base, self.converted, layers=layers, num_distances=distances, **options)
        chosen = DataOptions(tokenizer=str(self.converted))
        self.data: Data = build_data({"train": TREES, "valid": TREES[:5]}, folder / "data", chosen)
        targets = "null" if kind == "gpt2" else "[q_proj, down_proj]"
        overrides = [
            f"model.pretrained={self.converted}",
            f"model.pushdown_layers={layers}",
            "training.freeze=lower:1",
            f"training.lora.targets={targets}",
            *SETTINGS,
        ]
        run_recipe(load_recipe(recipe, overrides), self.data, self.run)
        self.adapter = self.run / "adapter"


@pytest.fixture(scope="module", params=["llama", "gpt2"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Trained:
    return Trained("llama", tmp_path_factory.mktemp("only"))


def logits(model: torch.nn.Module, data: Data, **options: object) -> torch.Tensor:
    example = data.train[4]
    ids, attachments = (torch.tensor([example[key]]) for key in ("input_ids", "attachments"))
    with torch.inference_mode():
        if options:
            return model(input_ids=ids).logits
        output = model(input_ids=ids, attachments=attachments)
    return output.logits


def test_adapter_on_its_base_is_the_trained_model(trained: Trained) -> None:
    whole, tokenizer = load_model(trained.run / "model")
    for base in (trained.base, trained.converted):
        model, found = load_adapted(trained.adapter, base)
        assert model.config.pushdown_layers == [1, 2]
        torch.testing.assert_close(model.state_dict(), whole.state_dict(), rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(logits(model, trained.data), logits(whole, trained.data))
        assert found.bos_token_id == tokenizer.bos_token_id == model.config.bos_token_id
        assert text_rule(found) == text_rule(trained.data.tokenizer)
        assert splits_marks(found)
        assert splits_marks(tokenizer)
    start, _ = load_model(trained.converted)
    assert not torch.allclose(logits(start, trained.data), logits(whole, trained.data), atol=1e-4)


def test_peft_puts_it_on_the_plain_decoder(trained: Trained) -> None:
    from peft import PeftModel

    plain = AutoModelForCausalLM.from_pretrained(trained.base)
    adapted = PeftModel.from_pretrained(plain, str(trained.adapter)).eval()
    whole, _ = load_model(trained.run / "model")
    expected = logits(whole.decoder, trained.data, plain=True)
    found = whole.forbidden.mask(logits(adapted, trained.data, plain=True).clone())
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)


def test_adapter_of_a_base_lm(tmp_path: Path) -> None:
    trained = Trained("llama", tmp_path, "smollm2-base")
    whole, _ = load_model(trained.run / "model")
    model, _ = load_adapted(trained.adapter, trained.base)
    assert model.head is None
    torch.testing.assert_close(model.state_dict(), whole.state_dict(), rtol=1e-5, atol=1e-6)

    split = tmp_path / "split"
    convert(trained.base, split, layers="none", attachment_head=None, splits_marks=True)
    with pytest.raises(AdapterError, match="--split-marks, the adapter was trained without"):
        load_adapted(trained.adapter, split)


def test_commands(llama: Trained, tmp_path: Path) -> None:
    shown = run_pushdown("adapter", "show", llama.adapter)
    assert shown.exit_code == 0
    assert "base model\tbase\n" in shown.output
    assert "head input\tlower_layers\n" in shown.output
    saved = run_pushdown("adapter", "save", llama.adapter, "--out", tmp_path / "half")
    assert saved.exit_code == 0, saved.error
    for name in ("pushdown.safetensors", "adapter_model.safetensors"):
        ours, half = (load_file(place / name) for place in (llama.adapter, tmp_path / "half"))
        assert ours.keys() == half.keys()
        assert {weight.dtype for weight in half.values()} == {torch.float16}
    made = ("--base", llama.base, "--out", tmp_path / "model")
    applied = run_pushdown("adapter", "apply", tmp_path / "half", *made)
    assert applied.exit_code == 0, applied.error
    model, _ = load_model(tmp_path / "model")
    whole, _ = load_model(llama.run / "model")
    torch.testing.assert_close(
        logits(model, llama.data), logits(whole, llama.data), rtol=1e-2, atol=1e-2
    )
    again = run_pushdown("adapter", "apply", llama.adapter, *made)
    assert again.exit_code == 2
    assert "expected a new or empty folder" in again.error


# ------------------------------------------------------------------ what does not fit


def test_another_base(llama: Trained, tmp_path: Path) -> None:
    other = save_base("llama", tmp_path / "other", seed=2)
    done = run_pushdown("adapter", "apply", llama.adapter, "--base", other, "--out", tmp_path / "m")
    assert done.exit_code == 2
    assert f"was trained on base, whose weights are not those of {other}" in done.error
    assert not (tmp_path / "m").exists()
    model = apply_adapter(llama.adapter, tmp_path / "m", base=other, allow_other_base=True)
    added = load_file(llama.adapter / "pushdown.safetensors")
    assert torch.equal(model.state_dict()["head.key.weight"], added["head.key.weight"])


def test_a_base_of_other_shapes(llama: Trained, tmp_path: Path) -> None:
    wide = save_base("llama", tmp_path / "wide", width=48)
    with pytest.raises(AdapterError, match=r"tape_embedding\.weight: \(80, 8\) does not fit"):
        load_adapted(llama.adapter, wide, allow_other_base=True)
    gpt2 = save_base("gpt2", tmp_path / "gpt2")
    with pytest.raises(AdapterError, match="does not fit"):
        load_adapted(llama.adapter, gpt2, allow_other_base=True)
    convert(llama.base, tmp_path / "converted", layers="last:1", num_distances=16)
    with pytest.raises(AdapterError, match=r"for pushdown_layers \[1, 2\], .* model has \[2\]"):
        load_adapted(llama.adapter, tmp_path / "converted")


def test_damaged_and_other_folders(llama: Trained, tmp_path: Path) -> None:
    with pytest.raises(AdapterError, match=r"expected an adapter, found no pushdown\.json"):
        read_info(llama.base)
    run_pushdown("adapter", "save", llama.adapter, "--out", tmp_path / "copy")
    path = tmp_path / "copy" / "pushdown.safetensors"
    content = bytearray(path.read_bytes())
    content[-5] ^= 1
    path.write_bytes(content)
    with pytest.raises(FolderError, match=r"pushdown\.safetensors: its SHA-256"):
        read_info(tmp_path / "copy")


def test_model_without_adapters(tmp_path: Path) -> None:
    tokenizer: PreTrainedTokenizerFast = train_bpe(["a b c"], vocab_size=260)
    with pytest.raises(AdapterError, match=r"expected a model with low-rank adapters"):
        save_adapter(pushdown_model(), tokenizer, "base", tmp_path / "adapter")


def test_names_are_those_that_others_know(llama: Trained, tmp_path: Path) -> None:
    assert base_name("HuggingFaceTB/SmolLM2-135M") == "HuggingFaceTB/SmolLM2-135M"
    assert base_name(str(llama.converted)) == base_name(str(llama.base)) == "base"
    assert base_name("/models/of/mine.gguf") == "mine.gguf"
    settings = json.loads((llama.adapter / "adapter_config.json").read_text())
    assert settings["base_model_name_or_path"] == "base"
    assert settings["peft_type"] == "LORA"


# ------------------------------------------------------------------ those of this repository

OURS = Path(__file__).parents[2] / "models" / "smollm2"


@pytest.mark.parametrize(("name", "recipe"), [("pushdown", "smollm2"), ("base", "smollm2-base")])
def test_adapters_of_this_repository(name: str, recipe: str) -> None:
    info = read_info(OURS / name)
    assert info.base == "SmolLM2-135M-Instruct.Q4_1.gguf"
    trained = load_recipe(recipe)
    assert info.config["num_distances"] == trained.model.num_distances
    training = json.loads((OURS / name / "training.json").read_text())
    assert training["recipe"]["name"] == recipe
    assert training["metrics"]["steps"] == trained.training.steps
    assert sum(path.stat().st_size for path in (OURS / name).iterdir()) < 10e6


def test_our_adapter_parses_on_the_real_model() -> None:
    file = os.environ.get("PUSHDOWN_GGUF")
    if file is None or not file.endswith("SmolLM2-135M-Instruct.Q4_1.gguf"):
        pytest.skip("set PUSHDOWN_GGUF to SmolLM2-135M-Instruct.Q4_1.gguf to run this test")
    scorer = PushdownScorer(*load_adapted(OURS / "pushdown", file), beam=10)
    best = scorer.analyse(["The keys to the old cabinet are on the table."])[0].trees()[0].tree
    assert {(0, 6), (2, 6), (7, 10)} <= set(best.spans)
    good, bad = scorer.log_probs(
        [f"The keys to the cabinet {verb} here." for verb in ("are", "is")]
    )
    assert good > bad
