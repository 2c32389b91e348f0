"""Conversion of pretrained language models, and their training as converted."""

from __future__ import annotations

import json
import os
import shutil
from pathlib import Path

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    XLNetConfig,
    XLNetLMHeadModel,
)

from pushdown_lm.corpora.grammar import generate
from pushdown_lm.data.build import DataOptions, build_data
from pushdown_lm.data.tokenization import (
    detokenize,
    load_tokenizer,
    splits_marks,
    train_bpe,
    train_word_vocabulary,
)
from pushdown_lm.errors import ConfigError
from pushdown_lm.model import convert as convert_module
from pushdown_lm.model.convert import ConversionError, convert, parse_layers
from pushdown_lm.model.factory import build_model
from pushdown_lm.model.settings import ModelSettings
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from pushdown_lm.training.checkpoint import load_model
from pushdown_lm.training.recipe import RecipeError, load_recipe
from pushdown_lm.training.run import run_recipe
from tests.command_line import run_pushdown
from tests.tiny_training import read_log

SENTENCES = [list(tree.words) for tree in generate(60, seed=3)]
SIZES = {"num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 4}


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerFast:
    return train_bpe(map(detokenize, SENTENCES), vocab_size=400)


def save_gpt2(folder: Path, tokenizer: PreTrainedTokenizerFast, padding: int = 0) -> Path:
    torch.manual_seed(1)
    config = GPT2Config(vocab_size=len(tokenizer) + padding, n_positions=96, **SIZES)
    GPT2LMHeadModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def gpt2(tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random GPT-2 that embeds more entries than its tokenizer has."""
    return save_gpt2(tmp_path_factory.mktemp("gpt2"), tokenizer, padding=24)


@pytest.fixture(scope="module")
def llama(tokenizer: PreTrainedTokenizerFast, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("llama")
    torch.manual_seed(2)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        intermediate_size=48,
        num_key_value_heads=2,
        tie_word_embeddings=True,
        max_position_embeddings=96,
        **SIZES,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def converted(gpt2: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("converted") / "model"
    convert(gpt2, folder, layers="last:2", num_depths=32)
    return folder


# ------------------------------------------------------------------ layers


@pytest.mark.parametrize(
    ("text", "layers"),
    [
        ("all", [0, 1, 2, 3]),
        ("none", []),
        ("first:1", [0]),
        ("last:4", [0, 1, 2, 3]),
        ("2-3", [2, 3]),
        ("3, 0", [0, 3]),
    ],
)
def test_layers(text: str, layers: list[int]) -> None:
    assert parse_layers(text, 4) == layers


@pytest.mark.parametrize("text", ["last:5", "last:0", "4", "2-4", "3-2", "-1", "last", "", "1,,2"])
def test_layers_that_are_not_there(text: str) -> None:
    with pytest.raises(ConfigError, match="layers: "):
        parse_layers(text, 4)


# ------------------------------------------------------------------ the same model


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_logits_are_the_original_s(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    source: Path = request.getfixturevalue(kind)
    conversion = convert(source, tmp_path / "model", layers="1-2")
    assert conversion.pushdown_layers == [1, 2]
    assert conversion.largest_difference < 1e-5
    assert conversion.added_parameters > 0
    original = AutoModelForCausalLM.from_pretrained(source).eval()
    model = AutoModelForCausalLM.from_pretrained(tmp_path / "model").eval()
    ids = torch.randint(3, 300, (3, 20))
    attachments = torch.arange(20).expand(3, 20)
    expected = model.forbidden.mask(original(ids).logits)
    torch.testing.assert_close(model(ids, attachments=attachments).logits, expected)
    recorded = json.loads((tmp_path / "model" / "conversion.json").read_text())
    assert recorded["pushdown_layers"] == [1, 2]


def test_a_model_that_computes_something_else_is_not_written(
    gpt2: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pushdown_lm.model.modeling import PushdownForCausalLM

    from_lm = PushdownForCausalLM.from_lm

    def disturbed(*arguments: object, **options: object) -> PushdownForCausalLM:
        model = from_lm(*arguments, **options)  # type: ignore[arg-type]
        for name, parameter in model.named_parameters():
            if "tape_embedding" in name:
                torch.nn.init.normal_(parameter)
        return model

    monkeypatch.setattr(PushdownForCausalLM, "from_lm", disturbed)
    with pytest.raises(ConversionError, match="logits differ by up to"):
        convert(gpt2, tmp_path / "model")
    assert not (tmp_path / "model").exists()


def test_a_folder_that_all_else_loads(converted: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    model, loaded = load_model(converted)
    assert loaded.get_vocab() == tokenizer.get_vocab()
    assert (model.config.bos_token_id, model.config.eos_token_id, model.config.pad_token_id) == (
        tokenizer.bos_token_id,
        tokenizer.eos_token_id,
        tokenizer.pad_token_id,
    )
    assert model.config.num_depths == 32
    assert AutoTokenizer.from_pretrained(converted).eos_token == tokenizer.eos_token
    text = "".join(detokenize(SENTENCES[0]))
    tree = PushdownScorer.from_pretrained(converted, beam=4).parse(text)
    assert len(tree.spans) == len(tree.words) - 1
    prompt = torch.tensor([[tokenizer.bos_token_id, *tokenizer(text)["input_ids"][:3]]])
    assert model.generate(prompt, max_new_tokens=4, do_sample=False).shape[1] <= 8


def test_base_model_has_no_pushdown_layers(gpt2: Path, tmp_path: Path) -> None:
    convert(gpt2, tmp_path / "base", layers="none")
    model, _ = load_model(tmp_path / "base")
    assert model.config.pushdown_layers == []
    assert model.head is not None


# ------------------------------------------------------------------ sentences begin and end


def test_without_bos_eos_is_both(gpt2: Path, tmp_path: Path) -> None:
    source = save_gpt2(tmp_path / "source", load_with(gpt2, bos_token=None, pad_token=None))
    convert(source, tmp_path / "model")
    model, tokenizer = load_model(tmp_path / "model")
    assert model.config.shared_boundary
    assert model.config.pad_token_id == model.config.eos_token_id == tokenizer.eos_token_id


def test_boundaries_that_are_asked_for(gpt2: Path, tmp_path: Path) -> None:
    convert(gpt2, tmp_path / "model", bos="<pad>", eos="<pad>")
    model, tokenizer = load_model(tmp_path / "model")
    assert model.config.bos_token_id == model.config.eos_token_id
    assert model.config.eos_token_id == tokenizer.convert_tokens_to_ids("<pad>")
    with pytest.raises(ConversionError, match="--eos: '<end>' is not in the vocabulary"):
        convert(gpt2, tmp_path / "other", eos="<end>")


@pytest.mark.parametrize("asked", [None, "<s>"])
def test_a_document_boundary_is_preferred_to_a_chat_marker(
    gpt2: Path, tmp_path: Path, asked: str | None
) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(gpt2)
    tokenizer.add_special_tokens({"bos_token": "<|im_start|>", "eos_token": "<|im_end|>"})
    tokenizer.add_tokens(["<|endoftext|>"], special_tokens=True)
    source = save_gpt2(tmp_path / "source", tokenizer)
    conversion = convert(source, tmp_path / "model", bos=asked)
    assert conversion.bos_token == (asked or "<|endoftext|>")
    assert conversion.eos_token == "<|endoftext|>"
    expected = "the tokenizer's <|im_start|> marks turns of a chat" if asked is None else "asked"
    assert expected in conversion.reasons["bos"]
    model, saved = load_model(tmp_path / "model")
    assert model.config.shared_boundary == (asked is None)
    assert saved.bos_token == conversion.bos_token


def load_with(folder: Path, **special_tokens: None) -> PreTrainedTokenizerFast:
    kept = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"} | special_tokens
    backend = PreTrainedTokenizerFast.from_pretrained(folder).backend_tokenizer
    return PreTrainedTokenizerFast(tokenizer_object=backend, **kept)


# ------------------------------------------------------------------ bad input


def test_command(llama: Path, tmp_path: Path) -> None:
    out = tmp_path / "model"
    done = run_pushdown("convert", llama, "--layers", "last:1", "--split-marks", "--out", out)
    assert done.exit_code == 0
    assert splits_marks(load_tokenizer(out))
    assert not splits_marks(load_tokenizer(llama))
    printed = done.output
    assert "pushdown layers\t3\n" in printed
    assert "logits\tsame as the original's" in printed
    assert "begin with\t<s>: the tokenizer's\n" in printed
    again = run_pushdown("convert", llama, "--out", out)
    assert again.exit_code == 2
    assert "expected a new or empty folder" in again.error


def test_bad_input_is_one_line_and_exit_code_2(gpt2: Path, tmp_path: Path) -> None:
    no_eos = save_gpt2(tmp_path / "no-eos", load_with(gpt2, eos_token=None))
    words = save_gpt2(tmp_path / "words", train_word_vocabulary([["the", "dog"]]))
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"not a GGUF file")
    cases = [
        ((gpt2, "--layers", "2-4"), "the decoder has layers 0 to 3, got '2-4'"),
        ((gpt2, "--layers", "last:5"), "expected 1 to 4 of 4 layers"),
        ((gpt2, "--head", "big"), "attachment_head: expected one of"),
        ((words, "--split-marks"), "words: expected a byte-level tokenizer"),
        ((no_eos,), "expected a tokenizer with an EOS token"),
        ((tmp_path / "nowhere",), "no such file or folder, nor a name of the Hub"),
        ((gpt2, "--gguf-file", "absent.gguf"), "no such file"),
        ((broken,), "broken.gguf: "),
    ]
    for arguments, message in cases:
        done = run_pushdown("convert", *arguments, "--out", tmp_path / "out")
        error = done.error.strip().splitlines()[-1]
        assert done.exit_code == 2
        assert error.startswith("pushdown: ")
        assert message in error
        assert not (tmp_path / "out").exists()


def test_attention_outside_the_interface_is_refused(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    config = XLNetConfig(vocab_size=len(tokenizer), d_model=16, n_layer=2, n_head=2, d_inner=16)
    XLNetLMHeadModel(config).save_pretrained(tmp_path / "source")
    tokenizer.save_pretrained(tmp_path / "source")
    with pytest.raises(ConfigError, match="XLNetLMHeadModel does not call its attention through"):
        convert(tmp_path / "source", tmp_path / "model")


def test_tokenizer_larger_than_the_embeddings(
    tokenizer: PreTrainedTokenizerFast, tmp_path: Path
) -> None:
    source = save_gpt2(tmp_path / "source", tokenizer, padding=-1)
    with pytest.raises(ConversionError, match="has 400 entries, the model embeds 399"):
        convert(source, tmp_path / "model")


def test_gguf_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF")
    monkeypatch.setattr(convert_module, "find_spec", lambda name: None)
    with pytest.raises(ConversionError, match=r"pip install 'pushdown-lm\[gguf\]'"):
        convert(tmp_path / "model.gguf", tmp_path / "out")


def test_gguf_of_an_unknown_architecture(tmp_path: Path) -> None:
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    writer = gguf.GGUFWriter(str(tmp_path / "odd.gguf"), "abacus")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(ConversionError, match=r"odd\.gguf|abacus"):
        convert(tmp_path / "odd.gguf", tmp_path / "out")


def test_real_gguf(tmp_path: Path) -> None:
    pytest.importorskip("gguf", reason="gguf is not installed")
    file = os.environ.get("PUSHDOWN_GGUF")
    if file is None:
        pytest.skip("set PUSHDOWN_GGUF to the GGUF file of a language model to run this test")
    conversion = convert(file, tmp_path / "model", layers="last:2")
    assert conversion.largest_difference <= 1e-4 * conversion.largest_logit
    model, tokenizer = load_model(tmp_path / "model")
    assert model.config.eos_token_id == tokenizer.eos_token_id
    assert not hasattr(model.config.decoder, "quantization_config")
    assert not getattr(model, "is_quantized", False)
    original = AutoModelForCausalLM.from_pretrained(
        str(Path(file).parent), gguf_file=Path(file).name
    ).eval()
    ids = torch.tensor([tokenizer("The dog that the cats have seen is here.")["input_ids"]])
    attachments = torch.arange(ids.shape[1])[None]
    with torch.inference_mode():
        new, old = model.eval()(ids, attachments=attachments).logits, original(ids).logits
        old = model.forbidden.mask(old)
    torch.testing.assert_close(new, old, rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_gpt2_medium_of_the_true_shapes(tokenizer: PreTrainedTokenizerFast, tmp_path: Path) -> None:
    config = GPT2Config(n_layer=24, n_embd=1024, n_head=16, vocab_size=50257)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "source")
    tokenizer.save_pretrained(tmp_path / "source")
    conversion = convert(tmp_path / "source", tmp_path / "model", layers="last:12")
    assert conversion.pushdown_layers == list(range(12, 24))


# ------------------------------------------------------------------ trained further

SHORT = ["training.steps=2", "training.batch_size=4", "training.gradient_accumulation=1"]


@pytest.fixture(scope="module")
def windows(converted: Path, tmp_path_factory: pytest.TempPathFactory):  # type: ignore[no-untyped-def]
    trees = {"train": list(generate(40, seed=3)), "valid": list(generate(10, seed=4))}
    options = DataOptions(tokenizer=str(converted), window=48, errors="skip", max_length=48)
    return build_data(trees, tmp_path_factory.mktemp("windows"), options)


def continued(converted: Path, *overrides: str):  # type: ignore[no-untyped-def]
    settings = [f"model.pretrained={converted}", "model.pushdown_layers=last:2", "data.window=48"]
    settings += ["training.precision=float32", "training.eval_every=2", *SHORT, *overrides]
    return load_recipe("gpt2-medium", settings)


def test_converted_model_is_trained_further(converted: Path, windows, tmp_path: Path) -> None:  # type: ignore[no-untyped-def]
    recipe = continued(converted, "training.lr=1e-3")
    metrics = run_recipe(recipe, windows, tmp_path / "run")
    assert metrics["trainable_parameters"] == metrics["parameters"]
    assert metrics["peak_memory_megabytes"] > 0
    before, after = read_log(tmp_path / "run", "eval")
    assert (before["step"], after["step"]) == (0, 2)
    assert after["loss"] < before["loss"]
    start, _ = load_model(converted)
    end, _ = load_model(tmp_path / "run" / "model")
    assert end.config.num_depths == start.config.num_depths == 32
    again = tmp_path / "run" / "recipe.yaml"
    assert load_recipe(again) == recipe
    run_recipe(load_recipe(again), windows, tmp_path / "again")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.pushdown_layers=none", r"model\.pushdown_layers: the recipe wants \[\]"),
        ("model.num_depths=8", r"model\.num_depths: the recipe wants 8, .* has 32"),
        ("model.attachment_head=null", r"model\.attachment_head: the recipe wants None"),
    ],
)
def test_a_recipe_for_another_model(converted: Path, windows, override: str, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(RecipeError, match=message):
        continued(converted, override).build_model(windows.tokenizer)


def test_data_of_another_tokenizer(converted: Path) -> None:
    other = train_bpe(map(detokenize, SENTENCES[:10]), vocab_size=300)
    with pytest.raises(ConfigError, match="the data was made with another tokenizer"):
        build_model(ModelSettings(pretrained=str(converted)), other)


def test_frozen_weights_are_the_same_after_training(
    converted: Path,
    windows,  # type: ignore[no-untyped-def]
    tmp_path: Path,
) -> None:
    recipe = continued(
        converted,
        "training.freeze=lower",
        "training.gradient_checkpointing=true",
        "training.precision=bf16",
    )
    metrics = run_recipe(recipe, windows, tmp_path / "run")
    assert 0 < metrics["trainable_parameters"] < metrics["parameters"]
    start, _ = load_model(converted)
    end, _ = load_model(tmp_path / "run" / "model")
    trained = end.state_dict()
    moved = {name for name, value in start.state_dict().items() if not value.equal(trained[name])}
    assert any(name.startswith("head.") for name in moved)
    assert any(".h.2." in name for name in moved)
    assert not any(part in name for name in moved for part in (".h.0.", ".h.1.", "wte", "wpe"))


def test_adapters_are_merged_into_the_trained_model(
    converted: Path,
    windows,  # type: ignore[no-untyped-def]
    tmp_path: Path,
) -> None:
    pytest.importorskip("peft", reason="peft is not installed")
    recipe = continued(converted, "training.lora={rank: 2}", "training.lr=1e-2")
    metrics = run_recipe(recipe, windows, tmp_path / "run")
    assert metrics["trainable_parameters"] < metrics["parameters"] / 2
    start, _ = load_model(converted)
    end, _ = load_model(tmp_path / "run" / "model")
    assert end.state_dict().keys() == start.state_dict().keys()
    name = "decoder.transformer.h.0.attn.c_attn.weight"
    assert not end.state_dict()[name].equal(start.state_dict()[name])
    ids = torch.tensor([windows.valid[0]["input_ids"]])
    attachments = torch.tensor([windows.valid[0]["attachments"]])
    loss = end.eval()(ids, attachments, labels=ids).loss
    assert loss < start.eval()(ids, attachments, labels=ids).loss


def test_training_of_adapters_resumes(
    converted: Path,
    windows,  # type: ignore[no-untyped-def]
    tmp_path: Path,
) -> None:
    pytest.importorskip("peft", reason="peft is not installed")
    recipe = continued(converted, "training.lora={rank: 2}", "training.steps=4", "training.keep=9")
    run_recipe(recipe, windows, tmp_path / "whole")
    for name in ("recipe.yaml", "versions.json", "metrics.jsonl"):
        shutil.copy(tmp_path / "whole" / name, tmp_path)
    shutil.copytree(tmp_path / "whole" / "checkpoint-2", tmp_path / "checkpoint-2")
    run_recipe(recipe, windows, tmp_path, resume=True)
    assert read_log(tmp_path) == read_log(tmp_path / "whole")
    whole, _ = load_model(tmp_path / "whole" / "model")
    resumed, _ = load_model(tmp_path / "model")
    torch.testing.assert_close(resumed.state_dict(), whole.state_dict(), rtol=0, atol=0)


def test_bad_choices_of_what_is_trained(converted: Path) -> None:
    with pytest.raises(RecipeError, match=r"training\.freeze: expected none, all-but-pushdown"):
        continued(converted, "training.freeze=upper")
    with pytest.raises(RecipeError, match=r"training\.freeze, lora: .* choose one"):
        continued(converted, "training.freeze=all-but-pushdown", "training.lora={}")
    with pytest.raises(RecipeError, match=r"training\.lora\.rank: expected"):
        continued(converted, "training.lora={rank: 0}")
