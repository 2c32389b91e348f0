"""Which models the explorer shows."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from transformers import PreTrainedTokenizerFast

from pushdown_lm.data.tokenization import train_word_vocabulary
from pushdown_lm.errors import PushdownError
from pushdown_lm.explorer.launch import load_library, load_model
from tests.explorer.conftest import WORDS, save
from tests.models import bracket_model, plain_model

TEXT = "the dog is here ."


@pytest.fixture
def tokenizer(tmp_path: Path) -> PreTrainedTokenizerFast:
    tokenizer = train_word_vocabulary([WORDS])
    tokenizer.save_pretrained(tmp_path)
    return tokenizer


def test_any_plain_model_reads(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    """As GPT-2 itself, but for tokens that can never come next."""
    model = plain_model(len(tokenizer)).eval()
    model.save_pretrained(tmp_path)
    library = load_library([tmp_path], threshold=None)
    assert not library.scorers[0].parses
    _, reading = library.open(0, TEXT, 1)
    *_, result = reading.read()
    library.close()

    ids = tokenizer.convert_tokens_to_ids(["<s>", *TEXT.split(), "</s>"])
    with torch.no_grad():
        logits = model(torch.tensor([ids[:-1]])).logits[0]
    never = {tokenizer.bos_token_id, tokenizer.pad_token_id, tokenizer.unk_token_id}
    logits[:, sorted(never - {tokenizer.eos_token_id})] = -torch.inf
    nats = torch.nn.functional.cross_entropy(logits, torch.tensor(ids[1:]), reduction="none")
    assert [word["word"] for word in result["words"]] == [*TEXT.split(), "</s>"]
    expected = (nats / math.log(2)).tolist()
    assert [word["surprisal"] for word in result["words"]] == pytest.approx(expected, abs=1e-4)


def test_names(word_folder: Path) -> None:
    assert load_model(word_folder).describe()["model"] == str(word_folder)


def test_layers_that_read_parses_that_nothing_chooses(tmp_path: Path) -> None:
    folder = save(tmp_path, train_word_vocabulary([WORDS]), seed=0, attachment_head=None)
    with pytest.raises(PushdownError, match="expected a model with an attachment head"):
        load_model(folder)


def test_models_that_read_brackets(tmp_path: Path, tokenizer: PreTrainedTokenizerFast) -> None:
    bracket_model("plm", words=len(tokenizer) - 2).float().save_pretrained(tmp_path)
    with pytest.raises(PushdownError, match="does not show models that read brackets"):
        load_model(tmp_path)
