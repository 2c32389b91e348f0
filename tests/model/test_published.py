"""The authors' released form: equality with their outputs, import, and both modes."""

from __future__ import annotations

import json
import pickle
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from pushdown_lm.model.attention import tape_features
from pushdown_lm.model.cache import PushdownCache
from pushdown_lm.model.configuration import PushdownConfig
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.model.published import (
    build_model,
    import_published,
    read_weights,
)
from pushdown_lm.search.beam import log_joint, search
from pushdown_lm.search.pushdown_scorer import PushdownScorer, UnknownTokenError
from pushdown_lm.trees import Tree
from pushdown_lm.trees.oracle import attachments_from_tree, stack_tape
from tests.command_line import run_pushdown
from tests.model.test_modeling import histories
from tests.models import decoder_config, pushdown_model
from tests.published_checkpoint import DEPTHS, pickled_vocabulary, write_checkpoint

TOLERANCE = {"rtol": 0.0, "atol": 1e-4}


# ------------------------------------------------------------------ the authors' outputs


@dataclass
class Golden:
    """The checkpoint that the authors' code was run on, and what it gave."""

    weights: dict[str, Tensor]
    expected: dict[str, Tensor]
    examples: list[dict[str, Any]]
    words: dict[str, int]

    def model(self, **options: Any) -> PushdownForCausalLM:
        return build_model(self.weights, self.words, "golden", **options)


@pytest.fixture(scope="module")
def golden(shared_data: Path) -> Golden:
    folder = shared_data.parent / "golden" / "authors-tiny"
    if not folder.is_dir():
        pytest.skip("no ../golden/authors-tiny beside PUSHDOWN_DATA")
    described = json.loads((folder / "examples.json").read_text())
    words = ["<pad>", *(f"word{n}" for n in range(1, described["eos_word"])), "<eos>"]
    return Golden(
        read_weights(folder / "state_dict.safetensors"),
        load_file(folder / "expected.safetensors"),
        described["examples"],
        {word: number for number, word in enumerate(words)},
    )


def by_position(scores: Tensor, decision: int) -> Tensor:
    """Scores of the slots of every position, in order of position, the shift last."""
    return torch.cat([scores[1 : decision + 2].flip(0), scores[:1]])


@torch.no_grad()
def test_golden_in_parallel(golden: Golden) -> None:
    """Rows of words; that of `<eos>` predicts `</s>`, which no sentence here has."""
    model = golden.model(probabilities="as_published")
    for number, example in enumerate(golden.examples):
        ids, labels = example["input_ids"], example["attachment_labels"]
        assert stack_tape(torch.tensor(labels))[:-1].tolist() == example["stack_tape"][:-1]
        output = model(torch.tensor([ids]), attachments=torch.tensor([labels]))
        logits, scores = output.logits[0], output.attachment_logits[0]
        end = len(ids) - 1
        torch.testing.assert_close(
            logits[:end], golden.expected[f"logits_{number}"][:end], **TOLERANCE
        )
        for decision in range(end):
            expected = golden.expected[f"attachment_logits_{number}"][decision, : decision + 2]
            torch.testing.assert_close(
                by_position(scores[decision], decision), expected, **TOLERANCE
            )


@torch.no_grad()
def test_golden_decoder_and_head_on_the_authors_tape(golden: Golden) -> None:
    """All rows, that of `<eos>` too, whose tape repeats the row before it in their code."""
    model = golden.model(probabilities="as_published")
    assert model.head is not None
    for number, example in enumerate(golden.examples):
        ids, following = torch.tensor([example["input_ids"]]), torch.tensor([example["next_ids"]])
        tape = tape_features(torch.tensor([example["stack_tape"]]), None, 50, 0)
        decoded = model.decoder(ids, tape=tape, output_hidden_states=True)
        expected = golden.expected[f"logits_{number}"]
        torch.testing.assert_close(decoded.logits[0], expected, **TOLERANCE)
        size = ids.shape[1]
        position = torch.arange(size)
        index = torch.cat([position[:, None] + 1, position.expand(size, -1)], 1)[None]
        hidden = decoded.hidden_states[-1]
        scores = model.head(
            hidden,
            model.get_input_embeddings()(following),
            model.head.keys(hidden),
            index,
            index <= position[:, None] + 1,
            tape,
            (position[:, None] + 1 - index).clamp(min=0),
        )[0]
        for row in range(size):
            ours = torch.cat([scores[row, 1 : row + 2], scores[row, :1]])
            expected = golden.expected[f"attachment_logits_{number}"][row, : row + 2]
            torch.testing.assert_close(ours, expected, **TOLERANCE)


@torch.no_grad()
@pytest.mark.parametrize("probabilities", ["normalized", "as_published"])
def test_golden_token_by_token(golden: Golden, probabilities: str) -> None:
    model = golden.model(probabilities=probabilities)
    follow = [token for token in range(62) if token not in model.forbidden.ids]
    assert model.forbidden.ids == ({0, 60, 61} if probabilities == "normalized" else set())
    for number, example in enumerate(golden.examples):
        cache = PushdownCache(config=model.config.decoder)
        pairs = zip(example["input_ids"][:-1], example["attachment_labels"][:-1], strict=True)
        for row, (token, attachment) in enumerate(pairs):
            if row:
                scores, index = model.attachment_scores(cache, torch.tensor([token]))
                expected = golden.expected[f"attachment_logits_{number}"][row - 1, : row + 1]
                legal = scores[0].isfinite()
                chosen = expected[index[0, legal]]  # column row is the shift, as in the slots
                total = expected if probabilities == "as_published" else chosen
                torch.testing.assert_close(
                    scores[0, legal], chosen - total.logsumexp(0), **TOLERANCE
                )
            logits = model.advance(cache, torch.tensor([token]), torch.tensor([attachment]))
            expected = golden.expected[f"logits_{number}"][row]
            torch.testing.assert_close(logits[0, follow], expected[follow], **TOLERANCE)


@torch.no_grad()
def test_golden_probabilities_as_published(golden: Golden) -> None:
    """log p(x, r) by the authors' code: their log-softmaxes over all tokens and all positions."""
    model = golden.model(probabilities="as_published")
    for number, example in enumerate(golden.examples):
        words, labels = example["input_ids"][1:-1], example["attachment_labels"]
        tokens = golden.expected[f"logits_{number}"].log_softmax(-1)
        total = sum(float(tokens[row, token]) for row, token in enumerate([*words, 59]))
        for row in range(len(words)):
            scores = golden.expected[f"attachment_logits_{number}"][row, : row + 2]
            total += float(scores.log_softmax(-1)[labels[row + 1]])
        assert log_joint(model, words, labels) == pytest.approx(total, abs=1e-3)


# ------------------------------------------------------------------ the two modes


@torch.no_grad()
def test_as_published_loses_what_is_illegal() -> None:
    """Probabilities of a sentence and its parses: smaller by what each decision gives away."""
    options = {"attachment_head": "published", "vocabulary": 6}
    proper = pushdown_model("relative", **options)
    published = pushdown_model("relative", **options, attachment_probabilities="as_published")
    published.load_state_dict(proper.state_dict())
    sentence = [3, 5, 2, 4]
    shares = []
    for history in histories(4):
        attachments = [*history, 0]
        cache = PushdownCache(config=published.config.decoder)
        published.advance(cache, torch.tensor([0]), torch.tensor([0]))
        lost = 0.0
        for token, attachment in zip(sentence, history[1:], strict=True):
            scores, _ = published.attachment_scores(cache, torch.tensor([token]))
            lost += float(scores.logsumexp(-1))
            published.advance(cache, torch.tensor([token]), torch.tensor([attachment]))
        proper.forbidden.ids.clear()  # so that only attachments differ
        difference = log_joint(published, sentence, attachments)
        difference -= log_joint(proper, sentence, attachments)
        assert difference == pytest.approx(lost)
        shares.append(log_joint(published, sentence, attachments))
    assert max(shares) < 0
    found = search(published, [sentence], beam=1000)[0]
    assert found.log_prob == pytest.approx(float(torch.tensor(shares).logsumexp(0)))
    assert found.log_prob < search(proper, [sentence], beam=1000)[0].log_prob


def test_first_scores_of_a_new_head_are_small() -> None:
    """They are not scaled by the width, so that the first weights must be small enough."""
    torch.manual_seed(0)
    decoder = decoder_config("relative", width=128, layers=1)
    config = PushdownConfig(
        decoder_config=decoder, attachment_head="published", tape_init_std=1.0, num_depths=50
    )
    model = PushdownForCausalLM(config).eval()
    ids = torch.tensor([[0, *[5, 6, 7, 8, 9] * 4, 1]])
    attachments = torch.arange(22)[None].clone()
    attachments[0, -1] = 0
    with torch.no_grad():
        scores = model(ids, attachments=attachments).attachment_logits
    assert 0.1 < float(scores[scores.isfinite()].std()) < 2


def test_losses_as_published_count_every_word() -> None:
    model = pushdown_model(
        "relative", attachment_head="published", attachment_probabilities="as_published"
    )
    ids, attachments = torch.tensor([[0, 5, 6, 7, 1]]), torch.tensor([[0, 1, 1, 3, 0]])
    output = model(ids, attachments=attachments, labels=ids)
    assert output.attachment_targets.tolist() == [[0, 1, 0, -100, -100]]
    assert model.count_targets(ids, ids).tolist() == [4, 3]
    rows = output.attachment_logits[0, :3].log_softmax(-1)
    expected = -(rows[0, 0] + rows[1, 1] + rows[2, 0]) / 3
    torch.testing.assert_close(output.attachment_loss, expected)
    assert output.attachment_logits[0, 2].isfinite().tolist() == [True] * 4 + [False] * 2
    output.loss.backward()


# ------------------------------------------------------------------ import


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("published")
    write_checkpoint(folder)
    return folder


@pytest.fixture(scope="module")
def scorer(checkpoint: Path) -> PushdownScorer:
    out = checkpoint / "out"
    done = import_published(checkpoint, None, out, tokenizer=checkpoint / "bpe")
    assert done.unknown_token is None
    assert done.escaped == "()[]{}"
    assert done.outside_pieces > 0
    return PushdownScorer.from_pretrained(out, beam=50)


def test_imported_model_computes_what_the_checkpoint_says(
    scorer: PushdownScorer, checkpoint: Path
) -> None:
    weights = read_weights(checkpoint / "model.pt")
    words = scorer.model.config.bos_token_id - 1
    own = scorer.model.state_dict()
    attention = "trafo.encoder.layers.1.self_attn"
    keys_and_values = weights[f"{attention}.data_to_kv.weight"]
    place = "decoder.model.layers.1.self_attn"
    assert torch.equal(own[f"{place}.k_proj.weight"][2:4], keys_and_values[4:6])  # second head
    assert torch.equal(own[f"{place}.v_proj.weight"][2:4], keys_and_values[6:8])
    assert own["decoder.lm_head.weight"].shape[0] == words + 2
    config = scorer.model.config
    assert (config.num_depths, config.decoder.num_attention_heads) == (DEPTHS, 8)
    assert scorer.model.forbidden.ids == {0, words, words + 1}


def test_text_is_penn_tokenized_and_cut_leaf_by_leaf(scorer: PushdownScorer) -> None:
    text = 'The old man saw a dog "again" (twice).'
    encoded = scorer.encode(text)
    words = ["The", "old", "man", "saw", "a", "dog", "``", "again", "''", "(", "twice", ")", "."]
    assert list(encoded.leaves) == words
    assert encoded.ids == scorer.encode(words).ids
    assert "".join(encoded.tokens) == "TheĠoldĠmanĠsawĠaĠdogĠ``ĠagainĠ''Ġ-LRB-ĠtwiceĠ-RRB-Ġ."
    assert max(encoded.ids) < scorer.model.config.bos_token_id - 1
    analysis = scorer.analyse([text])[0]
    assert [word for word, _ in analysis.words] == [*text.split(), "<eos>"]
    assert analysis.trees()[0].tree.words == tuple(words)
    assert scorer.attention(text).weights.shape[:2] == (2, 8)


def test_pieces_outside_the_vocabulary(scorer: PushdownScorer, tmp_path: Path) -> None:
    with pytest.raises(UnknownTokenError, match=r"vocabulary, found 'Ġz.*' in the word 'zebras'"):
        scorer.encode("The zebras saw a dog .")
    assert scorer.parse([["The", "zebras"], ["The", "dog"]])[0] is None
    words = write_checkpoint(tmp_path, extra=["<unk>"])
    import_published(
        tmp_path / "model.pt", tmp_path / "vocab.pkl", tmp_path / "out", tokenizer=tmp_path / "bpe"
    )
    reader = PushdownScorer.from_pretrained(tmp_path / "out", beam=50)
    encoded = reader.encode("The zebras saw a dog .")
    assert words["<unk>"] in encoded.ids
    assert "<unk>" in encoded.tokens
    assert reader.log_prob("The zebras saw a dog .") < 0
    assert words["<unk>"] not in reader.model.forbidden.ids


def test_depths_above_the_table_are_clamped(scorer: PushdownScorer) -> None:
    """A sentence that branches to the left is as deep as it is long."""
    words = ["The", *["dog"] * (2 * DEPTHS)]
    spans = tuple((0, end) for end in range(2, len(words) + 1))
    tree = Tree(tuple(words), spans)
    assert int(stack_tape(torch.tensor(attachments_from_tree(tree))).max()) > 2 * DEPTHS
    assert -1e4 < scorer.log_joint(tree) < 0


def test_commands_work_on_the_imported_model(scorer: PushdownScorer, tmp_path: Path) -> None:
    text = "The dog is happy .\nA happy dog saw the man .\n"
    for command in ("score", "surprisal", "parse"):
        done = run_pushdown(command, scorer.name, "-", "--beam", 20, stdin=text)
        assert done.exit_code == 0, done.error
        assert len(done.output.splitlines()) > 1
    done = run_pushdown("generate", scorer.name, "--count", 3, "--max-tokens", 6)
    assert done.exit_code == 0, done.error
    trees = tmp_path / "test.trees"
    trees.write_text("(S (NP (DT The) (NN dog)) (VP (VBZ is) (JJ happy)) (. .))\n" * 2)
    done = run_pushdown("eval", "parsing", "--model", scorer.name, "--data", trees, "--beam", 20)
    assert done.exit_code == 0, done.error
    data = tmp_path / "data"
    done = run_pushdown("data", "build", trees, "--tokenizer", scorer.name, "--out", data)
    assert done.exit_code == 0, done.error
    assert json.loads((data / "card.json").read_text())["vocab_size"] == len(
        scorer.model.get_input_embeddings().weight  # type: ignore[arg-type]
    )


def test_import_command(checkpoint: Path, tmp_path: Path) -> None:
    arguments = ("--tokenizer", checkpoint / "bpe", "--out", tmp_path / "out")
    done = run_pushdown("import-published", checkpoint, *arguments, "--as-published")
    assert done.exit_code == 0, done.error
    assert "attachments\tas published" in done.output
    model = PushdownScorer.from_pretrained(tmp_path / "out").model
    assert model.config.as_published
    assert model.forbidden.ids == set()
    again = run_pushdown("import-published", checkpoint, *arguments)
    assert again.exit_code == 2
    assert "expected a new or empty folder" in again.error


def import_error(source: object, vocabulary: object = None) -> str:
    """What the command says of files that it refuses, having written nothing."""
    with TemporaryDirectory() as folder:
        out = Path(folder, "out")
        given = [source] if vocabulary is None else [source, vocabulary]
        bpe = Path(str(vocabulary or source)).parent / "bpe"
        done = run_pushdown("import-published", *given, "--tokenizer", bpe, "--out", out)
        assert done.exit_code == 2, done.output + done.error
        assert not out.exists()
        assert done.error.count("\n") == 1
        return done.error


class Touches:
    """Pickles as a call that makes a file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> Any:
        return Path.touch, (self.path,)


def test_hostile_weights_are_not_executed(checkpoint: Path, tmp_path: Path) -> None:
    mark, path = tmp_path / "mark", tmp_path / "model.pt"
    torch.save({"state_dict": {"input_embedding.weight": Touches(mark)}}, path)
    assert "model.pt: not weights that can be read" in import_error(path, checkpoint / "vocab.pkl")
    path.write_bytes(pickle.dumps(Touches(mark), 2))
    assert "not weights that can be read" in import_error(path, checkpoint / "vocab.pkl")
    assert not mark.exists()
    torch.save([1, 2], path)
    assert "expected tensors by their names" in import_error(path, checkpoint / "vocab.pkl")


def test_files_that_are_not_there(checkpoint: Path, tmp_path: Path) -> None:
    assert "no such file or folder, nor a name of the Hub" in import_error(tmp_path / "absent")
    assert "expected a vocabulary (vocab.pkl) beside" in import_error(checkpoint / "model.pt")
    missing = tmp_path / "model.pt"
    assert f"{missing}: no such file" in import_error(missing, checkpoint / "vocab.pkl")
    assert "nobody/nothing: no such file or folder" in import_error("nobody/nothing")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"output_map.bias": None}, "missing decoder.lm_head.bias"),
        ({"surprise": torch.zeros(1)}, "not of the published form: unexpected surprise"),
        ({"input_embedding.weight": torch.zeros(5, 16)}, "5 embeddings, but the vocabulary has"),
        ({"input_embedding.weight": None}, "expected input_embedding.weight"),
        ({"trafo.encoder.layers.1.norm1.bias": torch.zeros(3)}, "expected the shape (16,), found"),
        ({"trafo.encoder.layers.0.self_attn.data_to_kv.weight": torch.zeros(3, 3)}, "data_to_kv"),
        ({"output_map.bias": "nan"}, "lm_head.bias: expected finite weights"),
    ],
)
def test_other_weights_are_refused(
    change: dict[str, Any], message: str, checkpoint: Path, tmp_path: Path
) -> None:
    weights = read_weights(checkpoint / "model.pt")
    for name, tensor in change.items():
        if tensor is None:
            del weights[name]
        else:
            weights[name] = weights[name] * torch.nan if isinstance(tensor, str) else tensor
    save_file(weights, tmp_path / "model.safetensors")
    assert message in import_error(tmp_path / "model.safetensors", checkpoint / "vocab.pkl")


def test_vocabulary_of_another_model(checkpoint: Path, tmp_path: Path) -> None:
    words = {"<pad>": 0, "<eos>": 1, "<s>": 2}
    (tmp_path / "vocab.pkl").write_bytes(pickled_vocabulary(words))
    (tmp_path / "bpe").symlink_to(checkpoint / "bpe")
    assert "<s> is among the words" in import_error(checkpoint / "model.pt", tmp_path / "vocab.pkl")
