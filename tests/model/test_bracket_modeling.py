"""PLM, PLM-mask and Transformer Grammars against the decoder under masks made step by step."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from transformers import AutoModelForCausalLM, AutoTokenizer

from pushdown_lm.data.bracketing import Nonterminals
from pushdown_lm.data.tokenization import train_word_vocabulary
from pushdown_lm.errors import ConfigError
from pushdown_lm.model.bracket_configuration import BracketConfig
from pushdown_lm.model.bracket_modeling import BracketForCausalLM
from pushdown_lm.model.factory import build_model
from pushdown_lm.model.settings import ModelSettings
from pushdown_lm.trees import Tree, parse_tree
from tests import strategies
from tests.models import bracket_model, decoder_config, plain_model
from tests.reference_brackets import EOS, FIRST_WORD, Automaton, symbols_of

KINDS = ("plm", "plm-mask", "tg")
WORDS = 3
LABELS = strategies.LABELS


def sentence(model: BracketForCausalLM, tree: Tree) -> list[int]:
    words = [FIRST_WORD + number % WORDS for number in range(len(tree.words))]
    return symbols_of(tree, model.config.nonterminals, words)


def reference_logits(model: BracketForCausalLM, symbols: list[int]) -> Tensor:
    """Transformers' eager attention under the masks of the automaton: ``(T, V)``."""
    kind, heads = model.config.kind, model.config.decoder.num_attention_heads
    automaton = Automaton(model.config.nonterminals)
    size = len(symbols)
    mask = torch.full((heads, size, size), -torch.inf, dtype=torch.float64)
    positions = torch.arange(size)
    legal = torch.zeros(size, model.config.decoder.vocab_size, dtype=torch.bool)
    for now, symbol in enumerate(symbols):
        seen, depth, constrained = automaton.read(symbol)
        if kind == "tg":
            positions[now] = depth
            mask[:, now, sorted(seen)] = 0.0
        else:
            mask[:, now, : now + 1] = 0.0
        if kind == "plm-mask":
            for head, visible in enumerate(constrained):
                mask[head, now] = -torch.inf
                mask[head, now, sorted(visible)] = 0.0
        legal[now, sorted(automaton.legal(WORDS))] = True
    name = model.decoder.config._attn_implementation
    model.decoder.set_attn_implementation("eager")
    logits = model.decoder(
        input_ids=torch.tensor([symbols]), attention_mask=mask[None], position_ids=positions[None]
    ).logits[0]
    model.decoder.set_attn_implementation(name)
    return logits.masked_fill(~legal, -torch.inf)


def scored_positions(model: BracketForCausalLM, symbols: list[int]) -> list[int]:
    """The positions that predict: all but EOS and the first copies of closers."""
    automaton, positions = Automaton(model.config.nonterminals), []
    for now, symbol in enumerate(symbols[:-1]):
        automaton.read(symbol)
        if model.config.kind != "tg" or not automaton.composed:
            positions.append(now)
    return positions


MODELS = {
    (kind, decoder): bracket_model(kind, decoder=decoder, labels=LABELS, padding=2)
    for kind in KINDS
    for decoder in ("llama", "qwen3", "gpt2")
    if (kind, decoder) != ("tg", "gpt2")
}


@torch.no_grad()
@pytest.mark.parametrize(("kind", "decoder"), MODELS)
@settings(max_examples=15)
@given(trees=st.lists(strategies.trees(labels=True, max_words=8), min_size=1, max_size=2))
def test_logits_and_loss(kind: str, decoder: str, trees: list[Tree]) -> None:
    model = MODELS[kind, decoder]
    rows = [sentence(model, tree) for tree in trees]
    width = max(map(len, rows))
    batch = torch.tensor([symbols + [EOS] * (width - len(symbols)) for symbols in rows])
    is_symbol = torch.arange(width) < torch.tensor(list(map(len, rows)))[:, None]
    output = model(batch, labels=batch, attention_mask=is_symbol.long())
    total, count = 0.0, 0
    for row, symbols in enumerate(rows):
        logits = reference_logits(model, symbols)
        positions = scored_positions(model, symbols)
        torch.testing.assert_close(  # eager attention has a softmax in float32
            output.logits[row, positions], logits[positions], rtol=1e-5, atol=1e-5
        )
        targets = torch.tensor(symbols)[1:]
        chosen = logits[:-1].log_softmax(-1).gather(1, targets[:, None])[positions]
        total, count = total - float(chosen.sum()), count + len(positions)
    assert float(output.loss) == pytest.approx(total / count, rel=1e-5)
    inputs = {"input_ids": batch, "labels": batch, "attention_mask": is_symbol.long()}
    assert model.count_targets(**inputs).tolist() == [count, 0]
    assert float(model(**inputs, num_items_in_batch=7).loss) == pytest.approx(total / 7, rel=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_seen_before_it_comes(kind: str) -> None:
    model = bracket_model(kind)
    one = sentence(model, parse_tree("(S (NP a b) (NP a (NP b c)))", labels=True))
    other = sentence(model, parse_tree("(S (NP a b) (NP a b) a)", labels=True))
    shared = next(n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b)
    assert shared >= 8
    logits = [model(torch.tensor([symbols])).logits[0, :shared] for symbols in (one, other)]
    torch.testing.assert_close(*logits)


@pytest.mark.parametrize("kind", KINDS)
def test_bfloat16(kind: str) -> None:
    model = bracket_model(kind, scale=0.1).float()
    symbols = sentence(model, parse_tree("(S (NP a b) (NP a (NP b c)))", labels=True))
    batch = torch.tensor([symbols])
    exact = model(batch, labels=batch).loss
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(batch, labels=batch).loss
    loss.backward()
    assert loss.item() == pytest.approx(exact.item(), rel=0.02)
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_auto_classes_open_what_is_saved(kind: str, tmp_path: Path) -> None:
    model = bracket_model(kind, padding=1)
    model.save_pretrained(tmp_path)
    again = AutoModelForCausalLM.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert isinstance(again, BracketForCausalLM)
    assert again.config.nonterminals == model.config.nonterminals
    batch = torch.tensor([sentence(model, parse_tree("(S (NP a b) a)", labels=True))])
    torch.testing.assert_close(again(batch).logits, model(batch).logits)


def test_attention_weights_keep_to_the_masks() -> None:
    model = bracket_model("tg")
    symbols = sentence(model, parse_tree("(S (NP a b) a)", labels=True))
    weights = torch.stack(model(torch.tensor([symbols]), output_attentions=True).attentions)
    automaton = Automaton(model.config.nonterminals)
    for now, symbol in enumerate(symbols):
        seen = sorted(automaton.read(symbol)[0])
        assert weights[:, 0, :, now, seen].sum(-1).allclose(torch.ones(()).double())


@pytest.mark.parametrize("decoder", ["gpt2", "nope"])
def test_tg_needs_rotary_positions(decoder: str) -> None:
    with pytest.raises(ConfigError, match="kind: tg needs a decoder with rotary positions in all"):
        bracket_model("tg", decoder=decoder)


def test_bad_configurations() -> None:
    with pytest.raises(ConfigError, match="kind: expected one of plm, plm-mask, tg, got 'rnng'"):
        BracketConfig(kind="rnng")
    with pytest.raises(ConfigError, match="within the decoder's vocabulary of 11, got 10 to 12"):
        BracketConfig(decoder_config=decoder_config(), labels=["S", "NP"], first_nonterminal=10)


def test_a_pretrained_decoder_gets_nonterminals(tmp_path: Path) -> None:
    words = train_word_vocabulary([["the", "dog", "barks"]])
    plain = plain_model(len(words))
    plain.save_pretrained(tmp_path)
    words.save_pretrained(tmp_path)
    tokenizer = Nonterminals.add_to(
        AutoTokenizer.from_pretrained(tmp_path), ["S", "NP"], typed=False
    )
    model = build_model(ModelSettings(kind="plm", pretrained=str(tmp_path)), tokenizer)
    assert isinstance(model, BracketForCausalLM)
    embeddings = model.get_input_embeddings().weight
    assert len(embeddings) == len(words) + 3
    torch.testing.assert_close(embeddings[: len(words)], plain.transformer.wte.weight)
    model.save_pretrained(tmp_path / "plm")
    with pytest.raises(ConfigError, match=r"plm starts from a plain language model, .* bracket_lm"):
        build_model(ModelSettings(kind="plm", pretrained=str(tmp_path / "plm")), tokenizer)
    other = Nonterminals.add_to(train_word_vocabulary([["a", "cat"]]), ["S"], typed=False)
    with pytest.raises(ConfigError, match="the data was made with another tokenizer"):
        build_model(ModelSettings(kind="plm", pretrained=str(tmp_path)), other)
