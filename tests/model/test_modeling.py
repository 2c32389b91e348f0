"""The model: proper probabilities, parallel = incremental, conversion, saving, generation."""

from __future__ import annotations

import copy
import itertools
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoConfig, AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel, OPTConfig

from pushdown_lm.model.attention import TapeEmbedding
from pushdown_lm.model.cache import PushdownCache
from pushdown_lm.model.configuration import ConfigError, PushdownConfig
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.trees import Tree
from pushdown_lm.trees.oracle import Legality, Stack, attachments_from_tree, join_windows
from tests.models import BOS, EOS, decoder_config, pushdown_model, tape_embeddings

KINDS = ["gpt2", "llama", "qwen3", "nope", "relative"]
HAPPY_DOG = Tree(tuple("abcd"), ((0, 2), (2, 4), (0, 4)))
IDS = torch.tensor([[BOS, 5, 6, 7, 8, EOS]])
ATTACHMENTS = torch.tensor([attachments_from_tree(HAPPY_DOG)])


def incremental_log_prob(model: PushdownForCausalLM, ids: list[int], history: list[int]) -> float:
    """log p(x, y), token by token with the cache."""
    cache = PushdownCache(config=model.config.decoder)
    logits = model.advance(cache, torch.tensor([ids[0]]), torch.tensor([0]))
    total = 0.0
    for token, attachment in zip(ids[1:], history[1:], strict=True):
        tokens = torch.tensor([token])
        total += float(logits.log_softmax(-1)[0, token])
        if token != model.config.eos_token_id:
            scores, index = model.attachment_scores(cache, tokens)
            legal = (index[0] == attachment) & scores[0].isfinite()
            total += float(scores[0, legal.nonzero()[0, 0]])
        logits = model.advance(cache, tokens, torch.tensor([attachment]))
    return total


def parallel_log_prob(model: PushdownForCausalLM, ids: list[int], history: list[int]) -> float:
    output = model(torch.tensor([ids]), attachments=torch.tensor([history]))
    tokens = output.logits.log_softmax(-1)[0, :-1]
    total = tokens.gather(-1, torch.tensor(ids[1:])[:, None]).sum()
    decided = output.attachment_targets[0] >= 0
    slots = output.attachment_logits.log_softmax(-1)[0, decided]
    total = total + slots.gather(-1, output.attachment_targets[0, decided, None]).sum()
    return float(total)


def histories(length: int, legality: Legality = "constituents") -> list[list[int]]:
    """All legal attachment histories of so many words, ROOT first, without EOS."""
    found = []

    def extend(history: list[int], stack: Stack) -> None:
        if len(history) == length + 1:
            found.append(history)
            return
        index, legal = stack.candidates(legality=legality)
        for choice in index[0][legal[0]].tolist():
            extend([*history, choice], stack.step(torch.tensor([choice])))

    extend([0], Stack.start(1))
    return found


@pytest.mark.parametrize("counts", ["constituents", "open_tokens"])
@pytest.mark.parametrize("on_values", [False, True], ids=["keys", "values"])
@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_parallel_equals_incremental(kind: str, on_values: bool, counts: Legality) -> None:
    options = {"distance_counts": counts, "legality": counts, "tape_on_values": on_values}
    model = pushdown_model(kind, num_distances=5, num_depths=3, **options)
    for history in histories(4, counts):
        ids, attachments = IDS[0].tolist(), [*history, 0]
        expected = incremental_log_prob(model, ids, attachments)
        assert parallel_log_prob(model, ids, attachments) == pytest.approx(expected, abs=1e-9)


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_parallel_equals_incremental_with_the_next_token_in_context(kind: str) -> None:
    model = pushdown_model(kind, pushdown_layers=[1, 2], head_input="lower_layers")
    for history in histories(4):
        ids, attachments = IDS[0].tolist(), [*history, 0]
        expected = incremental_log_prob(model, ids, attachments)
        assert parallel_log_prob(model, ids, attachments) == pytest.approx(expected, abs=1e-9)


@torch.no_grad()
def test_tape_on_values_matters_and_is_checked() -> None:
    model = pushdown_model("llama", tape_on_values=True)
    before = model(IDS, attachments=ATTACHMENTS).logits
    for module in model.modules():
        if isinstance(module, TapeEmbedding):
            module.value_weight.zero_()
    after = model(IDS, attachments=ATTACHMENTS).logits
    assert not torch.allclose(before, after)
    plain = pushdown_model("llama")
    plain.load_state_dict(model.state_dict(), strict=False)
    torch.testing.assert_close(plain(IDS, attachments=ATTACHMENTS).logits, after)
    with pytest.raises(ConfigError, match="tape_on_values: flex"):
        pushdown_model("llama", tape_on_values=True, attention="flex")


@torch.no_grad()
def test_head_input_matters_and_is_checked() -> None:
    model = pushdown_model("gpt2", pushdown_layers=[1, 2], head_input="lower_layers")
    before = model(IDS, attachments=ATTACHMENTS)
    changed = IDS.clone()
    changed[0, 1] = 3 + (int(IDS[0, 1]) == 3)
    after = model(changed, attachments=ATTACHMENTS)
    assert not torch.allclose(before.attachment_logits[:, 2], after.attachment_logits[:, 2])
    with pytest.raises(ConfigError, match="head_input: lower_layers are those below"):
        pushdown_model("gpt2", head_input="lower_layers")


@pytest.mark.parametrize(
    "options",
    [
        {"attachment_head": "mlp"},
        {"attachment_head": "appendix"},
        {"attachment_head": "bilinear"},
        {"attachment_head": "published"},
        {"attachment_head": "published", "kind": "relative"},
        {"attachment_head": "mlp", "legality": "open_tokens"},
        {"head_input": "lower_layers", "pushdown_layers": [1]},
    ],
)
@torch.no_grad()
def test_probabilities_of_strings_and_parses_sum_to_one(options: dict[str, Any]) -> None:
    """All strings over two words up to length 4, with all parses, and the unfinished prefixes."""
    model = pushdown_model(layers=2, vocabulary=4, **options)
    words, longest = (2, 3), 4
    finished = unfinished = 0.0
    for length in range(longest + 1):
        parses = torch.tensor(histories(length, model.config.legality))
        for string in itertools.product(words, repeat=length):
            ids = torch.tensor([[BOS, *string, EOS]]).expand(len(parses), -1)
            closed = torch.cat([parses, torch.zeros(len(parses), 1, dtype=torch.long)], 1)
            output = model(ids, attachments=closed)
            tokens = output.logits.log_softmax(-1)
            target = output.attachment_targets.clamp(min=0)[..., None]
            slots = output.attachment_logits.log_softmax(-1).gather(-1, target)[..., 0]
            slots = slots.masked_fill(output.attachment_targets < 0, 0.0)
            prefix = tokens[:, :length].gather(-1, ids[:, 1 : length + 1, None]).sum((1, 2))
            prefix = prefix + slots[:, :length].sum(-1)
            finished += float((prefix + tokens[:, length, EOS]).exp().sum())
            if length == longest:
                more = tokens[:, length, list(words)].logsumexp(-1)
                unfinished += float((prefix + more).exp().sum())
    assert finished + unfinished == pytest.approx(1.0, abs=1e-5)
    assert unfinished > 1e-4


@torch.no_grad()
def test_all_positions_variant_leaks() -> None:
    """The authors' softmax gives mass to positions that no parse can attach to."""
    model = pushdown_model("gpt2", attachment_head="all_positions")
    output = model(IDS, attachments=ATTACHMENTS)
    decision = 3  # the fourth word: legal are b (2), c (3) and the shift (column 6), not a (1)
    probabilities = output.attachment_logits[0, decision].softmax(-1)
    assert probabilities.sum() == pytest.approx(1.0)
    assert probabilities[[0, 1]].sum() > 0
    assert output.attachment_targets[0].tolist() == [-100, 1, 6, 2, -100, -100]


@pytest.mark.parametrize("kind", [*KINDS, "shared"])
def test_conversion_keeps_the_logits(kind: str, tmp_path: Path) -> None:
    torch.manual_seed(0)
    original = AutoModelForCausalLM.from_config(decoder_config(kind)).eval()
    original.save_pretrained(tmp_path)
    model = PushdownForCausalLM.from_pretrained_lm(tmp_path, pushdown_layers=[1, 2])
    ids = IDS.where(IDS != EOS, torch.tensor(model.config.eos_token_id))
    with torch.no_grad():
        expected = model.forbidden.mask(original(ids).logits)
        for implementation in ("tiled", "gather", "reference", "flex"):
            model.set_attention(implementation)  # type: ignore[arg-type]
            logits = model(ids, attachments=ATTACHMENTS).logits
            torch.testing.assert_close(logits, expected, rtol=1e-5, atol=1e-6)
    model.set_attention("tiled")
    model(ids, attachments=ATTACHMENTS, labels=ids).loss.backward()
    for embedding in tape_embeddings(model):
        assert embedding.weight.grad is not None
        assert embedding.weight.grad.abs().sum() > 0


def test_tape_embeddings_start_at_zero_or_at_random() -> None:
    for std in (0.0, 1.0):
        model = PushdownForCausalLM(
            PushdownConfig(decoder_config=decoder_config(), tape_init_std=std)
        )
        started = [embedding.weight for embedding in tape_embeddings(model)]
        assert model.head is not None
        assert model.head.tape_embedding is not None
        for weight in (*started, model.head.tape_embedding):
            assert float(weight.detach().std()) == pytest.approx(std, abs=0.15)
    with pytest.raises(ConfigError, match="tape_init_std: expected 0 or more, got -1"):
        PushdownConfig(decoder_config=decoder_config(), tape_init_std=-1.0)


def test_conversion_is_exact_against_eager_attention(tmp_path: Path) -> None:
    """The gather form does what eager attention does, bit for bit."""
    original = GPT2LMHeadModel(decoder_config()).eval()  # type: ignore[arg-type]
    original.set_attn_implementation("eager")
    original.save_pretrained(tmp_path)
    model = PushdownForCausalLM.from_pretrained_lm(tmp_path, attention="gather")
    with torch.no_grad():
        expected = model.forbidden.mask(original(IDS).logits)
        assert torch.equal(model(IDS, attachments=ATTACHMENTS).logits, expected)


@pytest.mark.parametrize("kind", KINDS)
def test_implementations_agree_in_the_model(kind: str) -> None:
    model = pushdown_model(kind, num_distances=4)
    gradients = []
    for implementation in ("reference", "gather", "tiled"):
        model.set_attention(implementation)  # type: ignore[arg-type]
        model.zero_grad()
        model(IDS, attachments=ATTACHMENTS, labels=IDS).loss.backward()
        gradients.append({name: p.grad.clone() for name, p in model.named_parameters()})
    for other in gradients[1:]:
        for name, gradient in gradients[0].items():
            torch.testing.assert_close(other[name], gradient, rtol=1e-8, atol=1e-9, msg=name)


def test_rotary_depth_term_uses_the_query_before_rotation() -> None:
    """Shifting all positions changes nothing: neither term sees absolute positions."""
    model = pushdown_model("llama")
    with torch.no_grad():
        here = model(IDS, attachments=ATTACHMENTS).logits
        positions = torch.arange(6)[None] + 17
        there = model(IDS, attachments=ATTACHMENTS, position_ids=positions).logits
    torch.testing.assert_close(here, there)


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@torch.no_grad()
def test_padding_changes_nothing(kind: str) -> None:
    model = pushdown_model(kind)
    alone = model(IDS, attachments=ATTACHMENTS, labels=IDS)
    ids = torch.cat([IDS, torch.full((1, 3), EOS)], 1)
    attachments = torch.cat([ATTACHMENTS, torch.tensor([[6, 7, 8]])], 1)
    mask = torch.tensor([[1] * 6 + [0] * 3])
    padded = model(ids, attachments=attachments, attention_mask=mask, labels=ids)
    torch.testing.assert_close(padded.logits[:, :6], alone.logits)
    torch.testing.assert_close(padded.lm_loss, alone.lm_loss)
    torch.testing.assert_close(padded.attachment_loss, alone.attachment_loss)


@pytest.mark.parametrize("kind", ["gpt2", "shared"])
@torch.no_grad()
def test_padding_on_the_left_changes_no_loss(kind: str) -> None:
    """The first ROOT of a row is given, also where it is the id that ends sentences."""
    model = pushdown_model(kind)
    ids = IDS.where(IDS != EOS, torch.tensor(model.config.eos_token_id))
    alone = model(ids, attachments=ATTACHMENTS, labels=ids)
    padding = torch.full((1, 2), model.config.eos_token_id)
    padded = {
        "input_ids": torch.cat([padding, ids], 1),
        "attachments": torch.cat([torch.tensor([[0, 1]]), ATTACHMENTS + 2], 1),
        "labels": torch.cat([padding, ids], 1),
        "attention_mask": torch.tensor([[0, 0, 1, 1, 1, 1, 1, 1]]),
    }
    output = model(**padded, position_ids=torch.tensor([[0, 0, *range(6)]]))
    torch.testing.assert_close(output.lm_loss, alone.lm_loss)
    torch.testing.assert_close(output.attachment_loss, alone.attachment_loss)
    assert model.count_targets(**padded).tolist() == [5, 3]


@torch.no_grad()
def test_what_cannot_follow_has_no_probability() -> None:
    """ROOT, padding and what a scorer refuses; EOS always can follow."""
    model = pushdown_model("gpt2", pad_token_id=2)
    output = model(IDS, attachments=ATTACHMENTS, labels=IDS)
    assert (output.logits == -torch.inf).all((0, 1)).nonzero()[:, 0].tolist() == [BOS, 2]
    assert output.loss.isfinite()
    model.forbidden.add([4, EOS, None])
    cache = PushdownCache(config=model.config.decoder)
    logits = model.advance(cache, torch.tensor([BOS]), torch.tensor([0]))
    assert logits[0].isinf().nonzero()[:, 0].tolist() == [BOS, 2, 4]
    assert pushdown_model("shared").forbidden.ids == set()


@torch.no_grad()
def test_losses_are_what_they_say() -> None:
    model = pushdown_model(attachment_loss_weight=0.5)
    output = model(IDS, attachments=ATTACHMENTS, labels=IDS)
    tokens = output.logits.log_softmax(-1)[0, :-1].gather(-1, IDS[0, 1:, None])
    assert float(output.lm_loss) == pytest.approx(-float(tokens.mean()))
    slots = output.attachment_logits.log_softmax(-1)[0]
    chosen = [float(slots[k, slot]) for k, slot in ((1, 1), (2, 0), (3, 2))]
    assert float(output.attachment_loss) == pytest.approx(-sum(chosen) / 3)
    assert float(output.loss) == pytest.approx(
        float(output.lm_loss) + 0.5 * float(output.attachment_loss)
    )
    divided = model(
        IDS, attachments=ATTACHMENTS, labels=IDS, num_items_in_batch=50, num_attachments_in_batch=30
    )
    torch.testing.assert_close(divided.lm_loss, output.lm_loss * 5 / 50)
    torch.testing.assert_close(divided.attachment_loss, output.attachment_loss * 3 / 30)


@pytest.mark.parametrize("kind", ["gpt2", "shared"])
@torch.no_grad()
def test_windows_of_sentences_equal_reading_them_one_by_one(kind: str) -> None:
    model = pushdown_model(kind, num_distances=3)
    shared = model.config.shared_boundary
    sentences = [attachments_from_tree(HAPPY_DOG), [0, 1, 2, 1, 0]]
    window, _ = join_windows(sentences, shared_boundary=shared)
    words = [[5, 6, 7, 8], [9, 4, 3]]
    ids = [BOS, *words[0], model.config.eos_token_id]
    ids += [*([] if shared else [BOS]), *words[1], model.config.eos_token_id]
    output = model(torch.tensor([ids]), attachments=torch.tensor([window]))
    cache = PushdownCache(config=model.config.decoder)
    for position, (token, attachment) in enumerate(zip(ids, window, strict=True)):
        tokens = torch.tensor([token])
        if output.attachment_targets[0, position - 1] >= 0 and position:
            scores, _ = model.attachment_scores(cache, tokens)
            expected = output.attachment_logits[:, position - 1].log_softmax(-1)
            torch.testing.assert_close(scores, expected[:, : scores.shape[1]])
        logits = model.advance(cache, tokens, torch.tensor([attachment]))
        torch.testing.assert_close(logits, output.logits[:, position])


@pytest.mark.parametrize("kind", KINDS)
@torch.no_grad()
def test_chunks_after_a_cache(kind: str) -> None:
    model = pushdown_model(kind)
    whole = model(IDS, attachments=ATTACHMENTS).logits
    cache = PushdownCache(config=model.config.decoder)
    parts = [
        model(IDS[:, now], attachments=ATTACHMENTS[:, now], past_key_values=cache).logits
        for now in (slice(0, 3), slice(3, 4), slice(4, 6))
    ]
    torch.testing.assert_close(torch.cat(parts, 1), whole)


@torch.no_grad()
def test_without_attachments_the_model_attaches_greedily() -> None:
    model = pushdown_model()
    chosen = [0]
    cache = PushdownCache(config=model.config.decoder)
    model.advance(cache, IDS[:, 0], torch.tensor([0]))
    for token in range(1, 5):
        scores, index = model.attachment_scores(cache, IDS[:, token])
        choice = index.gather(-1, scores.argmax(-1, keepdim=True))[:, 0]
        chosen.append(int(choice))
        model.advance(cache, IDS[:, token], choice)
    expected = model(IDS, attachments=torch.tensor([[*chosen, 0]])).logits
    torch.testing.assert_close(model(IDS).logits, expected)


def test_loss_without_attachments_is_refused() -> None:
    with pytest.raises(ValueError, match="a loss needs attachments"):
        pushdown_model()(IDS, labels=IDS)


def test_base_and_plain_models() -> None:
    base = pushdown_model(pushdown_layers=[])
    assert not tape_embeddings(base)
    output = base(IDS, attachments=ATTACHMENTS, labels=IDS)
    assert output.attachment_loss > 0
    other = base(IDS, attachments=torch.tensor([[0, 1, 2, 3, 1, 0]]))
    torch.testing.assert_close(other.logits, output.logits)  # the parse changes no token
    plain = pushdown_model(pushdown_layers=[], attachment_head=None)
    output = plain(IDS, labels=IDS)
    assert output.attachment_loss is None
    logits = plain.decoder(IDS).logits[0, :-1]
    expected = torch.nn.functional.cross_entropy(logits, IDS[0, 1:])
    torch.testing.assert_close(output.loss, expected.to(output.loss.dtype))


@pytest.mark.parametrize("kind", ["gpt2", "llama", "relative"])
def test_save_and_load_through_the_auto_classes(kind: str, tmp_path: Path) -> None:
    model = pushdown_model(kind, pushdown_layers=[1], num_distances=2).float()
    model.save_pretrained(tmp_path)
    assert [path.name for path in tmp_path.glob("*.bin")] == []
    loaded = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert isinstance(loaded, PushdownForCausalLM)
    assert isinstance(AutoConfig.from_pretrained(tmp_path), PushdownConfig)
    assert loaded.config.pushdown_layers == [1]
    for name, parameter in model.state_dict().items():
        assert torch.equal(parameter, loaded.state_dict()[name]), name
    tied = loaded.get_input_embeddings().weight is loaded.get_output_embeddings().weight
    assert tied == bool(model.config.decoder.tie_word_embeddings)
    again = copy.deepcopy(loaded)
    with torch.no_grad():
        for embedding in tape_embeddings(loaded):  # a copy must not share the query tap
            embedding.weight.zero_()
        expected = model(IDS, attachments=ATTACHMENTS).logits
        torch.testing.assert_close(again(IDS, attachments=ATTACHMENTS).logits, expected)


IMPORT_ORDERS = [
    "import pushdown_lm; from transformers import GPT2LMHeadModel, AutoModelForCausalLM as Auto",
    "import pushdown_lm; from transformers import AutoModelForCausalLM as Auto",
    "from transformers import AutoModelForCausalLM as Auto; import pushdown_lm",
    "from transformers import AutoConfig as Auto; import pushdown_lm",
    "import pushdown_lm; from transformers import AutoConfig as Auto",
]


@pytest.mark.parametrize("imports", IMPORT_ORDERS)
def test_importing_the_package_registers_the_model(imports: str, tmp_path: Path) -> None:
    pushdown_model().float().save_pretrained(tmp_path)
    code = f"{imports}; print(type(Auto.from_pretrained({str(tmp_path)!r})).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() in ("PushdownForCausalLM", "PushdownConfig")


def test_gradient_checkpointing_gives_the_same_gradients() -> None:
    for kind in ("gpt2", "llama", "relative"):
        model = pushdown_model(kind).train()
        model(IDS, attachments=ATTACHMENTS, labels=IDS).loss.backward()
        expected = {name: p.grad.clone() for name, p in model.named_parameters()}
        model.zero_grad()
        model.gradient_checkpointing_enable()
        model(IDS, attachments=ATTACHMENTS, labels=IDS).loss.backward()
        for name, parameter in model.named_parameters():
            torch.testing.assert_close(parameter.grad, expected[name], msg=name)


@pytest.mark.parametrize("kind", ["gpt2", "llama", "relative"])
def test_compiled_model_gives_the_same_losses_and_gradients(kind: str) -> None:
    """Traced by torch.compile; the slow test also generates code."""
    check_compiled(kind, backend="aot_eager")


@pytest.mark.slow
def test_compiled_model_with_inductor() -> None:
    check_compiled("gpt2", backend="inductor")


def check_compiled(kind: str, backend: str) -> None:
    model = pushdown_model(kind)
    expected = model(IDS, attachments=ATTACHMENTS, labels=IDS)
    expected.loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters()}
    model.zero_grad()
    compiled = torch.compile(model, backend=backend)
    output = compiled(IDS, attachments=ATTACHMENTS, labels=IDS)
    torch.testing.assert_close(output.loss, expected.loss)
    output.loss.backward()
    for name, parameter in model.named_parameters():
        torch.testing.assert_close(parameter.grad, gradients[name], msg=name)


def test_autocast_to_bfloat16() -> None:
    model = pushdown_model().float().train()
    exact = model(IDS, attachments=ATTACHMENTS, labels=IDS).loss
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rough = model(IDS, attachments=ATTACHMENTS, labels=IDS).loss
    rough.backward()
    assert float(rough.detach()) == pytest.approx(float(exact.detach()), rel=0.1)
    assert all(e.weight.grad.isfinite().all() for e in tape_embeddings(model))


@torch.no_grad()
def test_attentions_are_given_when_asked_for() -> None:
    model = pushdown_model(pushdown_layers=[1])
    output = model(IDS, attachments=ATTACHMENTS, output_attentions=True)
    assert len(output.attentions) == 3
    for weights in output.attentions:
        assert weights.shape == (1, 4, 6, 6)
        torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    plain = model(IDS, attachments=ATTACHMENTS)
    torch.testing.assert_close(output.logits, plain.logits)


def test_other_models_of_the_same_configuration_change_nothing() -> None:
    """Transformers keeps the attention's name in the configuration object."""
    shared = decoder_config()
    model = PushdownForCausalLM(PushdownConfig(decoder_config=shared)).eval()
    with torch.no_grad():
        for embedding in tape_embeddings(model):
            embedding.weight.normal_()
        before = model(IDS, attachments=ATTACHMENTS).logits
        AutoModelForCausalLM.from_config(shared, attn_implementation="eager")
        assert torch.equal(model(IDS, attachments=ATTACHMENTS).logits, before)


class TestRefusals:
    def test_layer_out_of_range(self) -> None:
        with pytest.raises(ConfigError, match="pushdown_layers: the decoder has layers 0 to 2"):
            PushdownConfig(decoder_config=decoder_config(), pushdown_layers=[3])

    def test_unknown_attention(self) -> None:
        with pytest.raises(ConfigError, match="attention: expected one of reference, gather"):
            PushdownConfig(decoder_config=decoder_config(), attention="flash")

    def test_unknown_head(self) -> None:
        with pytest.raises(ConfigError, match="attachment_head: expected one of None, mlp"):
            PushdownConfig(decoder_config=decoder_config(), attachment_head="big")

    def test_no_rows(self) -> None:
        with pytest.raises(ConfigError, match="num_depths, num_distances: expected at least one"):
            PushdownConfig(decoder_config=decoder_config(), num_depths=0)

    def test_negative_weight(self) -> None:
        with pytest.raises(ConfigError, match="attachment_loss_weight: expected 0 or more"):
            PushdownConfig(decoder_config=decoder_config(), attachment_loss_weight=-1.0)

    def test_no_eos(self) -> None:
        config = GPT2Config(n_layer=1, n_embd=8, n_head=1, eos_token_id=None, bos_token_id=None)
        with pytest.raises(ConfigError, match="eos_token_id: sentences end with an EOS token"):
            PushdownConfig(decoder_config=config)

    def test_decoder_without_the_attention_interface(self) -> None:
        from transformers import BloomConfig, BloomForCausalLM

        bloom = BloomForCausalLM(BloomConfig(vocab_size=9, hidden_size=8, n_layer=1, n_head=1))
        with pytest.raises(ConfigError, match="BloomForCausalLM does not call its attention"):
            PushdownForCausalLM.from_lm(bloom)

    def test_fused_rotary_queries(self) -> None:
        from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

        config = GPTNeoXConfig(
            vocab_size=9, hidden_size=8, num_hidden_layers=1, num_attention_heads=2
        )
        with pytest.raises(ConfigError, match="GPTNeoXAttention rotates its queries but has no"):
            PushdownForCausalLM.from_lm(GPTNeoXForCausalLM(config))

    def test_model_without_a_head_cannot_attach(self) -> None:
        model = pushdown_model(attachment_head=None)
        cache = PushdownCache(config=model.config.decoder)
        model.advance(cache, torch.tensor([BOS]), torch.tensor([0]))
        with pytest.raises(ValueError, match="no attachment head"):
            model.attachment_scores(cache, torch.tensor([5]))


def test_another_decoder_with_learned_positions() -> None:
    config = OPTConfig(
        vocab_size=11,
        hidden_size=16,
        ffn_dim=32,
        num_hidden_layers=2,
        num_attention_heads=4,
        max_position_embeddings=32,
        word_embed_proj_dim=16,
        dropout=0.0,
        bos_token_id=BOS,
        eos_token_id=EOS,
    )
    model = PushdownForCausalLM(PushdownConfig(decoder_config=config)).eval()
    with torch.no_grad():
        whole = model(IDS, attachments=ATTACHMENTS).logits
        cache = PushdownCache(config=config)
        for token in range(6):
            logits = model.advance(cache, IDS[:, token], ATTACHMENTS[:, token])
            torch.testing.assert_close(logits, whole[:, token], rtol=1e-4, atol=1e-5)
