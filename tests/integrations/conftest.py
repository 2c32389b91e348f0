"""Tiny folders of a Pushdown-LM, a Base-LM, a PLM and a plain language model."""

from __future__ import annotations

from pathlib import Path

import pytest

from pushdown_lm.data.bracketing import Nonterminals
from pushdown_lm.data.tokenization import detokenize, train_bpe
from tests.evals.conftest import build_tokenizer
from tests.models import bracket_model, plain_model, random_model

WORDS = ["The", "the", "dog", "dogs", "that", "she", "knows", "bark", "barks", "loudly", "."]


@pytest.fixture(scope="session")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    found = {}
    tokenizer = train_bpe([detokenize(WORDS)] * 3, vocab_size=280)
    for name, layers in {"pushdown": None, "base": []}.items():
        found[name] = tmp_path_factory.mktemp(name)
        model = random_model(
            scale=0.3, vocabulary=len(tokenizer), positions=24, pushdown_layers=layers
        )
        model.float().save_pretrained(found[name])
        tokenizer.save_pretrained(found[name])
    found["plm"] = tmp_path_factory.mktemp("plm")
    model = bracket_model("plm", words=len(tokenizer) - 2, scale=0.3)
    model.float().save_pretrained(found["plm"])
    bracketed = Nonterminals.add_to(tokenizer, ["S", "NP"], typed=False)
    bracketed.save_pretrained(found["plm"])
    found["plain"] = tmp_path_factory.mktemp("plain")
    tokenizer = build_tokenizer()
    plain_model(len(tokenizer)).save_pretrained(found["plain"])
    tokenizer.save_pretrained(found["plain"])
    return found
