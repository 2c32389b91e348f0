"""Recipes: what they say, how they are checked, and that every one of them runs."""

from __future__ import annotations

from pathlib import Path

import pytest
from transformers import GPT2Config, GPT2LMHeadModel, LlamaConfig

from pushdown_lm.corpora.dyck import Dyck, build_dyck_data
from pushdown_lm.data.dataset import Data
from pushdown_lm.data.tokenization import train_word_vocabulary
from pushdown_lm.errors import ConfigError
from pushdown_lm.model.factory import build_model, chosen_layers
from pushdown_lm.model.settings import DecoderSettings, ModelSettings
from pushdown_lm.training.recipe import ABLATIONS, SHARES, RecipeError, load_recipe, recipe_names
from pushdown_lm.training.run import run_recipe
from tests.tiny_training import tiny_data, tiny_recipe


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return tiny_data(tmp_path_factory.mktemp("data"), labels=True)


@pytest.fixture(scope="module")
def windows(tmp_path_factory: pytest.TempPathFactory) -> Data:
    return tiny_data(tmp_path_factory.mktemp("windows"), window=48)


@pytest.fixture(scope="module")
def small_gpt2(tmp_path_factory: pytest.TempPathFactory, windows: Data) -> Path:
    """A random GPT-2 on disk, in the place of a pretrained one."""
    config = GPT2Config(
        vocab_size=len(windows.tokenizer), n_layer=2, n_embd=16, n_head=2, n_positions=64
    )
    folder = tmp_path_factory.mktemp("gpt2")
    GPT2LMHeadModel(config).save_pretrained(folder)
    return folder


EXPERIMENTS = ("bllip-lg", "demo", "english-small", "gpt2-medium", "wikitrees-small")
OURS = ("english", "smollm2")
RECIPES = [*recipe_names(), *recipe_names(ABLATIONS), *recipe_names(SHARES)]


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_every_experiment_has_its_base_and_its_multitask_twin(name: str) -> None:
    recipe = load_recipe(name)
    for suffix, head in (("base", None), ("multitask", "mlp")):
        twin = load_recipe(f"{name}-{suffix}")
        assert twin.training == recipe.training
        changes = {"pushdown_layers": "none", "attachment_head": head}
        assert twin.model == recipe.model.model_copy(update=changes)
        assert twin.name == f"{name}-{suffix}"


@pytest.mark.parametrize("name", OURS)
def test_twins_of_our_models_have_none_of_their_extensions(name: str) -> None:
    recipe = load_recipe(name)
    plain = {"head_input": "embedding", "num_distances": 0}
    without = {"pushdown_layers": "none", **plain}
    in_paper = {**plain, "pushdown_layers": load_recipe(f"{name}-paper").model.pushdown_layers}
    for suffix, changes in (
        ("base", {**without, "attachment_head": None}),
        ("multitask", without),
        ("paper", in_paper),
    ):
        twin = load_recipe(f"{name}-{suffix}")
        assert twin.training == recipe.training
        assert twin.model == recipe.model.model_copy(update=changes)


def test_only_the_base_lm_of_dyck_has_the_attachment_loss() -> None:
    recipe, base = load_recipe("dyck"), load_recipe("dyck-base")
    assert base.model == recipe.model.model_copy(update={"pushdown_layers": "none"})
    heads = {name: load_recipe(name).model.attachment_head for name in recipe_names()}
    assert [name for name in heads if name.endswith("-base") and heads[name]] == ["dyck-base"]


@pytest.mark.parametrize("asked", [None, True, False])
def test_a_head_sees_the_tape_of_pushdown_layers_unless_told(asked: bool | None) -> None:
    tokenizer = train_word_vocabulary([["a", "b"]])
    for layers in ("all", "none"):
        settings = ModelSettings(
            decoder=DecoderSettings(num_hidden_layers=1, hidden_size=8, num_attention_heads=2),
            pushdown_layers=layers,
            head_sees_tape=asked,
        )
        model = build_model(settings, tokenizer)
        expected = layers == "all" if asked is None else asked
        assert model.config.head_sees_tape == expected
        assert (model.head.tape_embedding is not None) == expected


def test_bllip_lg_is_the_paper_s() -> None:
    recipe = load_recipe("bllip-lg")
    assert recipe.model.decoder.model_extra == {
        "num_hidden_layers": 16,
        "hidden_size": 1024,
        "num_attention_heads": 8,
        "max_position_embeddings": 1024,
    }
    training = recipe.training
    assert (training.dropout, training.steps, training.eval_every) == (0.1, 300_000, 3_000)
    assert training.early_stopping_patience is not None


def test_wikitrees_small_is_the_paper_s() -> None:
    recipe = load_recipe("wikitrees-small")
    training = recipe.training
    assert (training.batch_size, training.lr, training.warmup_steps) == (480, 6e-4, 200)
    assert (training.schedule, training.dropout) == ("cosine", 0.2)
    assert chosen_layers(recipe.model, 12) == [6, 7, 8, 9, 10, 11]
    assert recipe.data.window == 512


def test_gpt2_medium_is_the_paper_s() -> None:
    recipe = load_recipe("gpt2-medium")
    training = recipe.training
    assert (training.batch_size, training.lr, training.schedule) == (256, 3e-5, "constant")
    assert recipe.model.pretrained == "gpt2-medium"
    assert chosen_layers(recipe.model, 24) == list(range(12, 24))


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_takes_two_steps(
    name: str, data: Data, windows: Data, small_gpt2: Path, tmp_path: Path
) -> None:
    full = load_recipe(name)
    overrides = ["training.steps=2", "training.gradient_accumulation=2", "training.eval_every=2"]
    if full.model.pretrained is not None:
        overrides.append(f"model.pretrained={small_gpt2}")
        if full.training.freeze != "none":
            overrides.append("training.freeze=lower:1")
        if full.training.lora is not None:
            overrides.append("training.lora.targets=null")
    else:
        overrides += [
            "model.decoder.vocab_size=null",
            "model.decoder.num_hidden_layers=2",
            "model.decoder.hidden_size=16",
            "model.decoder.num_attention_heads=2",
        ]
        if full.model.decoder.type == "smollm3":
            overrides += [
                "model.decoder.num_key_value_heads=1",
                "model.decoder.no_rope_layers=[0, 0]",
            ]
    if full.model.pushdown_layers != "none":
        overrides.append("model.pushdown_layers=last:1")
    if full.training.batch_size is not None:
        overrides.append("training.batch_size=8")
    if full.data.window is not None:
        overrides.append("data.window=48")
    recipe = load_recipe(name, overrides)
    of_windows = full.data.window is not None or full.model.pretrained is not None
    chosen = windows if of_windows else data
    if full.model.legality == Dyck.legality:
        chosen = build_dyck_data(tmp_path / "dyck", train=60, valid=10)
    metrics = run_recipe(recipe, chosen, tmp_path / "run")
    assert metrics["steps"] == 2
    assert 1 < metrics["perplexity"] < 10 * len(chosen.tokenizer)
    if full.model.attachment_head is not None:
        assert 0 <= metrics["attachment_accuracy"] <= 1


@pytest.mark.parametrize("name", recipe_names(SHARES))
def test_shares_are_read_as_often_as_the_whole(name: str) -> None:
    recipe = load_recipe(name)
    whole = load_recipe(Path(name).name.rpartition("-")[0])
    assert recipe.model == whole.model
    assert recipe.training.steps == recipe.data.share * whole.training.steps
    assert recipe.training == whole.training.model_copy(update={"steps": recipe.training.steps})


def test_share_of_kept_output() -> None:
    with pytest.raises(RecipeError, match=r"data\.share, training\.cache_lower: choose one"):
        load_recipe("smollm2", ["data.share=0.5"])


@pytest.mark.parametrize("name", recipe_names(ABLATIONS))
def test_ablations_change_the_model_or_the_optimizer(name: str) -> None:
    recipe, whole = load_recipe(name), load_recipe("english")
    assert recipe.model.decoder == whole.model.decoder
    if recipe.training != whole.training:
        changes = {"optimizer": recipe.training.optimizer}
        assert recipe.training == whole.training.model_copy(update=changes)
        assert recipe.model == whole.model
    else:
        assert recipe.model not in (whole.model, load_recipe("english-paper").model)


@pytest.mark.parametrize("name", RECIPES)
def test_resolved_recipe_loads_to_the_same(name: str, tmp_path: Path) -> None:
    recipe = load_recipe(name, ["training.lr=1e-5"])
    path = tmp_path / "recipe.yaml"
    path.write_text(recipe.to_yaml())
    assert load_recipe(path) == recipe


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.lr=fast", "training.lr: expected a number, got 'fast'"),
        ("training.lr=-1", "training.lr: expected greater than 0, got -1"),
        ("training.lrr=1", "training.lrr: no such key"),
        ("trainin.lr=1", "trainin: no such key"),
        ("training.steps=1.5", "training.steps: expected a whole number, got 1.5"),
        ("training.compile=1", "training.compile: expected true or false, got 1"),
        ("training.report_to=wandb", "training.report_to: expected a list, got 'wandb'"),
        ("training.report_to=[mail]", "training.report_to.0: expected 'tensorboard' or 'wandb'"),
        ("training.betas=[0.9]", "training.betas: should have at least 2 items"),
        ("training.schedule=sine", "training.schedule: expected 'cosine', 'constant', 'linear'"),
        ("training=3", "training: expected a section of keys, got 3"),
        ("training.steps=null", "training.steps, epochs: expected exactly one of them"),
        ("model.pushdown_layers=some", "model.pushdown_layers: expected all, none, first:N"),
        ("model.pushdown_layers=[-1]", "model.pushdown_layers: expected all, none, first:N"),
        (
            "model.attachment_head=tree",
            "model.attachment_head: expected 'mlp', 'appendix'",
        ),
        ("training.save_every=7 training.early_stopping_patience=1", "training.save_every: early"),
        ("training.eval_every=null training.early_stopping_patience=1", "training.eval_every: "),
        ("training.lr=[", "--set training.lr:1:2: "),
        ("training.lr", "--set: expected section.key=value, got 'training.lr'"),
    ],
)
def test_error_names_the_key(override: str, message: str) -> None:
    with pytest.raises(RecipeError) as error:
        load_recipe("demo", override.split(" "))
    assert message in str(error.value)


def test_all_errors_come_at_once() -> None:
    with pytest.raises(RecipeError, match=r"training\.lr: .*; training\.keep: "):
        load_recipe("demo", ["training.lr=x", "training.keep=0"])


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("model.decoder.type=perceptron", "model.decoder.type: expected a model type"),
        ("model.decoder.n_hed=2", "model.decoder.n_hed: the configuration of gpt2 has no such"),
        ("model.decoder.hidden_size=wide", "model.decoder: .*expected int, got str"),
        ("model.decoder.num_attention_heads=3", "model.decoder: .*divisible"),
        (
            "model.decoder.vocab_size=50257",
            "model.decoder.vocab_size: the recipe is for a .*50,257",
        ),
        (
            "model.pushdown_layers=last:9",
            "model.pushdown_layers: expected 1 to 2 of 2 layers, got 'last:9'",
        ),
        ("model.pushdown_layers=[5]", "model.pushdown_layers: the decoder has layers 0 to 1"),
        ("model.attention=fast", "model.attention: expected one of"),
        ("model.pretrained=/nowhere", "model.pretrained: "),
    ],
)
def test_models_that_cannot_be_built(override: str, message: str, data: Data) -> None:
    with pytest.raises(RecipeError, match=message):
        tiny_recipe(override).build_model(data.tokenizer)


def test_pretrained_model_of_another_vocabulary(small_gpt2: Path, data: Data) -> None:
    model = ModelSettings(pretrained=str(small_gpt2))
    with pytest.raises(ConfigError, match=r"pretrained: .* has a vocabulary of"):
        build_model(model, data.tokenizer)


def test_decoder_of_any_type_with_the_recipe_s_dropout(data: Data) -> None:
    recipe = tiny_recipe("model.decoder.type=llama", "model.decoder.intermediate_size=32")
    model = build_model(recipe.model, data.tokenizer, 0.25)
    assert isinstance(model.config.decoder, LlamaConfig)
    assert model.config.decoder.attention_dropout == model.config.head_dropout == 0.25
    assert model.config.decoder.vocab_size == len(data.tokenizer)
    assert model.config.bos_token_id == data.tokenizer.bos_token_id
    gpt2 = build_model(tiny_recipe().model, data.tokenizer, 0.25).config.decoder
    assert (gpt2.resid_pdrop, gpt2.embd_pdrop, gpt2.attn_pdrop) == (0.25, 0.25, 0.25)


def test_layers_by_name() -> None:
    for name, layers in {"all": [0, 1, 2], "none": [], "first:2": [0, 1], "last:1": [2]}.items():
        assert chosen_layers(ModelSettings(pushdown_layers=name), 3) == layers
    assert chosen_layers(ModelSettings(pushdown_layers=[1]), 3) == [1]


def test_inherited_from_a_file_next_to_it(tmp_path: Path) -> None:
    (tmp_path / "parent.yaml").write_text(
        "inherits: demo\ntraining: {epochs: 2, lr: 1e-3}\nmodel: {num_depths: 8}\n"
    )
    (tmp_path / "child.yaml").write_text("inherits: parent.yaml\ntraining: {batch_size: 16}\n")
    recipe = load_recipe(tmp_path / "child.yaml", ["model.decoder.hidden_size=32"])
    assert recipe.name == "child"
    assert (recipe.training.epochs, recipe.training.steps) == (2.0, None)
    assert (recipe.training.batch_size, recipe.training.tokens_per_batch) == (16, None)
    assert (recipe.training.lr, recipe.model.num_depths) == (1e-3, 8)
    assert recipe.model.decoder.model_extra is not None
    assert recipe.model.decoder.model_extra["hidden_size"] == 32
    assert recipe.training.schedule == load_recipe("demo").training.schedule


def test_files_that_are_no_recipes(tmp_path: Path) -> None:
    circle, broken = tmp_path / "circle.yaml", tmp_path / "broken.yaml"
    circle.write_text("inherits: circle.yaml")
    with pytest.raises(RecipeError, match="goes in a circle"):
        load_recipe(circle)
    broken.write_text("training:\n  lr: [1,\n")
    with pytest.raises(RecipeError, match=r"broken\.yaml:3:1: "):
        load_recipe(broken)
    broken.write_text("- 1")
    with pytest.raises(RecipeError, match="expected keys and values"):
        load_recipe(broken)
    with pytest.raises(
        RecipeError, match=r"no recipe 'dick': expected a YAML file or one of bllip"
    ):
        load_recipe("dick")
