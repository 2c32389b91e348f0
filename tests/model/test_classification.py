"""`PushdownForSequenceClassification`: scores on top of a language model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForSequenceClassification

from pushdown_lm import PushdownForSequenceClassification
from pushdown_lm.model.modeling import PushdownForCausalLM
from tests.models import BOS, EOS, pushdown_model

IDS = torch.tensor([[BOS, 4, 5, 6, EOS], [BOS, 7, 8, EOS, EOS]])
ATTACHMENTS = torch.tensor([[0, 1, 1, 2, 0], [0, 1, 2, 0, 4]])
MASK = torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 1, 0]])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("lm")
    pushdown_model("llama").save_pretrained(path)
    return path


def load(folder: Path, labels: int) -> PushdownForSequenceClassification:
    torch.manual_seed(0)
    model = AutoModelForSequenceClassification.from_pretrained(
        folder, num_labels=labels, dtype=torch.float64
    )
    assert isinstance(model, PushdownForSequenceClassification)
    return model.eval()


def test_scores_are_of_the_last_token(folder: Path) -> None:
    model = load(folder, 3)
    trunk = PushdownForCausalLM.from_pretrained(folder, dtype=torch.float64).eval()
    plain = trunk(IDS, ATTACHMENTS, attention_mask=MASK, output_hidden_states=True)
    output = model(IDS, ATTACHMENTS, attention_mask=MASK)
    last = plain.hidden_states[-1][[0, 1], [4, 3]]
    torch.testing.assert_close(output.logits, model.score(last))
    torch.testing.assert_close(output.lm_logits, plain.logits)


def test_padding_changes_no_score(folder: Path) -> None:
    model = load(folder, 3)
    batch = model(IDS, ATTACHMENTS, attention_mask=MASK).logits
    alone = model(IDS[1:, :4], ATTACHMENTS[1:, :4]).logits
    torch.testing.assert_close(batch[1:], alone)


def test_the_parse_matters(folder: Path) -> None:
    model = load(folder, 2)
    shifts = torch.arange(5).expand(2, 5)
    one, other = (model(IDS, parse, attention_mask=MASK).logits for parse in (ATTACHMENTS, shifts))
    assert not torch.allclose(one, other)


def test_losses(folder: Path) -> None:
    regression = load(folder, 1)
    numbers = torch.tensor([1.0, 3.0])
    output = regression(IDS, ATTACHMENTS, labels=numbers, attention_mask=MASK)
    expected = ((output.logits[:, 0] - numbers) ** 2).mean()
    assert output.loss.item() == pytest.approx(expected.item(), rel=1e-6)
    classes = load(folder, 3)(IDS, ATTACHMENTS, labels=torch.tensor([2, 0]), attention_mask=MASK)
    log_probs = classes.logits.log_softmax(-1)
    expected = -(log_probs[0, 2] + log_probs[1, 0]) / 2
    assert classes.loss.item() == pytest.approx(expected.item(), rel=1e-6)


def test_saves_and_loads(folder: Path, tmp_path: Path) -> None:
    model = load(folder, 3)
    model.save_pretrained(tmp_path)
    again = AutoModelForSequenceClassification.from_pretrained(tmp_path, dtype=torch.float64).eval()
    assert again.config.num_labels == 3
    torch.testing.assert_close(
        again(IDS, ATTACHMENTS).logits, model(IDS, ATTACHMENTS).logits, rtol=0, atol=0
    )


def test_pushdown_layers_need_a_parse(folder: Path) -> None:
    with pytest.raises(ValueError, match="attachments: expected the parses of the texts"):
        load(folder, 2)(IDS)
    base = PushdownForSequenceClassification(pushdown_model(pushdown_layers=[]).config).eval()
    torch.testing.assert_close(base(IDS).logits, base(IDS, ATTACHMENTS).logits)
