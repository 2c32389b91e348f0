from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch

from pushdown_lm.errors import PushdownError
from pushdown_lm.search.scorer import (
    CausalLMScorer,
    ScoreCache,
    Scorer,
    Token,
    score_distinct,
    weights_fingerprint,
)
from pushdown_lm.trees import Tree
from tests.evals.conftest import RecordedScorer, build_tokenizer
from tests.models import plain_model

SENTENCES = [
    "The dog is happy .",
    "Who",
    "The author that the senators like has praised himself , and the dogs are here .",
    "a  double space and a café 🎉",
    "",
]


def brute_force(scorer: CausalLMScorer, sentence: str) -> list[float]:
    """Natural log-probabilities, one forward pass of the model per token, no padding."""
    ids = scorer.tokenizer(sentence, add_special_tokens=False)["input_ids"]
    log_probs = []
    for position, target in enumerate([*ids, scorer.tokenizer.eos_token_id]):
        prefix = torch.tensor([[scorer.tokenizer.bos_token_id, *ids[:position]]])
        with torch.no_grad():
            logits = scorer.model(prefix).logits[0, -1].double()
        log_probs.append((logits[target] - logits.logsumexp(0)).item())
    return log_probs


def greedy(scorer: CausalLMScorer, sentence: str) -> list[bool]:
    """Whether each token has the greatest logit, in one pass without padding."""
    ids = scorer.tokenizer(sentence, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        logits = scorer.model(torch.tensor([[scorer.tokenizer.bos_token_id, *ids]])).logits[0]
    return (logits.argmax(-1) == torch.tensor([*ids, scorer.tokenizer.eos_token_id])).tolist()


class TestCausalLMScorer:
    def test_satisfies_the_protocol(self, tiny_scorer: CausalLMScorer) -> None:
        assert isinstance(tiny_scorer, Scorer)
        assert not isinstance(tiny_scorer.model, Scorer)

    @pytest.mark.parametrize("max_batch_tokens", [1, 40, 4096])
    def test_equals_brute_force_whatever_the_batches(
        self, tiny_scorer: CausalLMScorer, max_batch_tokens: int
    ) -> None:
        scorer = CausalLMScorer(
            tiny_scorer.model, tiny_scorer.tokenizer, max_batch_tokens=max_batch_tokens
        )
        log_probs = scorer.log_probs(SENTENCES)
        surprisals = scorer.surprisals(SENTENCES)
        for sentence, log_prob, tokens in zip(SENTENCES, log_probs, surprisals, strict=True):
            expected = brute_force(scorer, sentence)
            assert log_prob == pytest.approx(math.fsum(expected), rel=1e-5)
            bits = [token.surprisal for token in tokens]
            assert bits == pytest.approx([-value / math.log(2) for value in expected], rel=1e-4)
            assert math.fsum(bits) == pytest.approx(-log_prob / math.log(2), rel=1e-9)

    def test_offsets_cut_the_sentence_and_end_with_eos(self, tiny_scorer: CausalLMScorer) -> None:
        sentence = SENTENCES[2]
        *tokens, eos = tiny_scorer.surprisals([sentence])[0]
        assert "".join(sentence[token.start : token.end] for token in tokens) == sentence
        assert (eos.text, eos.start, eos.end) == ("</s>", len(sentence), len(sentence))

    def test_batches_respect_the_budget(self, tiny_scorer: CausalLMScorer) -> None:
        scorer = CausalLMScorer(tiny_scorer.model, tiny_scorer.tokenizer, max_batch_tokens=10)
        lengths = [3, 12, 5, 4, 5, 2]
        batches = list(scorer._batches(lengths))
        assert batches == [[5, 0], [3, 2], [4], [1]]

    def test_dropout_is_off(self, tiny_scorer: CausalLMScorer) -> None:
        model = plain_model(len(tiny_scorer.tokenizer)).train()
        scorer = CausalLMScorer(model, tiny_scorer.tokenizer)
        assert scorer.log_probs(SENTENCES) == scorer.log_probs(SENTENCES)

    def test_from_pretrained_reads_what_was_saved(
        self, tiny_scorer: CausalLMScorer, tmp_path: Path
    ) -> None:
        tiny_scorer.model.save_pretrained(tmp_path)
        tiny_scorer.tokenizer.save_pretrained(tmp_path)
        scorer = CausalLMScorer.from_pretrained(tmp_path)
        assert scorer.log_probs(SENTENCES) == pytest.approx(tiny_scorer.log_probs(SENTENCES))
        assert scorer.describe()["weights"] == tiny_scorer.describe()["weights"]

    def test_description_is_json_and_tells_checkpoints_apart(
        self, tiny_scorer: CausalLMScorer
    ) -> None:
        description = tiny_scorer.describe()
        assert json.loads(json.dumps(description)) == description
        assert {"model", "tokenizer", "beam", "versions"} <= description.keys()
        other = plain_model(len(tiny_scorer.tokenizer), seed=1)
        assert weights_fingerprint(other) != description["weights"]

    def test_words_are_read_as_running_text(self, tiny_scorer: CausalLMScorer) -> None:
        words, text = ("The", "dog", "does", "n't", "bark", "."), "The dog doesn't bark."
        tiny_scorer.check(words)
        [of_words], [of_text] = tiny_scorer.surprisals([words]), tiny_scorer.surprisals([text])
        assert [(token.text, token.surprisal) for token in of_words] == [
            (token.text, token.surprisal) for token in of_text
        ]
        joined = " ".join(words)
        assert (of_words[-1].start, of_words[-1].end) == (len(joined), len(joined))
        assert {joined[token.start : token.end] for token in of_words[:-1]} <= set(words)
        assert tiny_scorer.log_probs([words]) == tiny_scorer.log_probs([text])
        assert tiny_scorer.count_tokens(words) == tiny_scorer.count_tokens(text)

    def test_likeliest_tokens(self, tiny_scorer: CausalLMScorer) -> None:
        """After its embedding is made longer, a token is the likeliest wherever it is likely."""
        model = plain_model(len(tiny_scorer.tokenizer))
        dog = tiny_scorer.tokenizer.convert_tokens_to_ids("Ġdog")
        with torch.no_grad():
            model.get_output_embeddings().weight[dog] *= 30
        scorer = CausalLMScorer(model, tiny_scorer.tokenizer)
        texts = [f"{text} dog dog" for text in SENTENCES]
        marked = scorer.mark_likeliest(texts)
        assert [[token for token, _ in tokens] for tokens in marked] == scorer.surprisals(texts)
        found = [best for tokens in marked for _, best in tokens]
        assert found == [best for text in texts for best in greedy(scorer, text)]
        assert 0 < sum(found) < len(found)  # neither all nor none

    def test_what_it_cannot_do(self, tiny_scorer: CausalLMScorer) -> None:
        assert not tiny_scorer.parses
        assert not tiny_scorer.scores_trees
        with pytest.raises(PushdownError, match="expected a model that parses, got 'tiny'"):
            tiny_scorer.parse([["The", "dog"]])
        with pytest.raises(PushdownError, match="expected a model that predicts trees, got 'tiny'"):
            tiny_scorer.score_trees([Tree(("The", "dog"), ((0, 2),))])

    def test_too_long_a_sentence(self, tiny_scorer: CausalLMScorer) -> None:
        with pytest.raises(PushdownError, match=r"at most 255 tokens .* got 300: '!!!"):
            tiny_scorer.log_probs(["The dog", "!" * 300])

    def test_missing_special_token(self, tiny_scorer: CausalLMScorer) -> None:
        tokenizer = build_tokenizer()
        tokenizer.bos_token = None
        with pytest.raises(PushdownError, match="bos token or the option bos_token_id"):
            CausalLMScorer(tiny_scorer.model, tokenizer)
        scorer = CausalLMScorer(tiny_scorer.model, tokenizer, bos_token_id=0)
        assert scorer.log_probs(SENTENCES) == tiny_scorer.log_probs(SENTENCES)


class TestScoreDistinct:
    def test_each_sentence_once_in_chunks(self) -> None:
        scorer = RecordedScorer({})
        steps: list[tuple[int, int]] = []
        scores = score_distinct(
            scorer.log_probs,
            ["a", "b c", "a", "d", "b c"],
            chunk_size=2,
            progress=lambda done, total: steps.append((done, total)),
        )
        assert scorer.calls == [["a", "b c"], ["d"]]
        assert steps == [(2, 3), (3, 3)]
        assert scores["b c"] == pytest.approx(-7 * math.log(2))

    def test_bad_chunk_size(self) -> None:
        with pytest.raises(PushdownError, match="at least 1, got 0"):
            score_distinct(RecordedScorer({}).log_probs, ["a"], chunk_size=0)


class TestScoreCache:
    def test_restart_computes_nothing_twice(self, tmp_path: Path) -> None:
        path = tmp_path / "folder" / "scores.jsonl"
        words = [("a", "b"), ("<unk>",)]
        first = ScoreCache(RecordedScorer({"a": 2.0}), path)
        assert isinstance(first, Scorer)
        expected = first.log_probs(["a b"]), first.surprisals(["a b", "a"]), first.parse(words)

        again = RecordedScorer({"a": 2.0})
        cache = ScoreCache(again, path)
        assert (
            cache.log_probs(["a b"]),
            cache.surprisals(["a b", "a"]),
            cache.parse(words),
        ) == expected
        assert again.calls == []
        assert expected[1][1] == [Token("a", 0, 1, 2.0), Token("</s>", 1, 1, 1.0)]
        assert expected[2] == [Tree(("a", "b"), ((0, 2),)), None]
        cache.log_probs(["a b", "c"])
        assert again.calls == [["c"]]

    def test_surprisals_come_with_parses(self, tmp_path: Path) -> None:
        path, words = tmp_path / "scores.jsonl", [("a", "b"), ("<unk>",)]
        scorer = RecordedScorer({"a": 2.0})
        expected = scorer.surprisals([("a", "b")])
        scorer.calls.clear()
        cache = ScoreCache(scorer, path)
        cache.parse(words)
        assert cache.surprisals([("a", "b")]) == expected
        assert scorer.calls == [[["a", "b"], ["<unk>"]]]
        assert ScoreCache(scorer, path).surprisals([("a", "b")]) == expected
        assert len(path.read_text().splitlines()) == 3  # two parses, one sentence with surprisals

    def test_surprisals_are_not_written_twice(self, tmp_path: Path) -> None:
        cache = ScoreCache(RecordedScorer({"a": 2.0}), tmp_path / "scores.jsonl")
        cache.surprisals([("a", "b")])
        cache.parse([("a", "b")])
        kinds = [json.loads(line)["kind"] for line in cache.path.read_text().splitlines()]
        assert kinds == ["surprisals", "parse"]

    def test_another_model_shares_the_file_but_not_the_scores(self, tmp_path: Path) -> None:
        path = tmp_path / "scores.jsonl"
        cheap = ScoreCache(RecordedScorer({"a": 2.0}), path).log_probs(["a"])
        dear = ScoreCache(RecordedScorer({"a": 9.0}), path).log_probs(["a"])
        assert cheap != dear
        assert ScoreCache(RecordedScorer({"a": 2.0}), path).log_probs(["a"]) == cheap

    def test_a_line_cut_short_is_dropped(self, tmp_path: Path) -> None:
        path = tmp_path / "scores.jsonl"
        ScoreCache(RecordedScorer({}), path).log_probs(["a", "b"])
        path.write_text(path.read_text()[:-10])
        scorer = RecordedScorer({})
        ScoreCache(scorer, path).log_probs(["a", "b"])
        assert scorer.calls == [["b"]]
        assert len(path.read_text().splitlines()) == 2

    def test_a_bad_line_is_an_error(self, tmp_path: Path) -> None:
        path = tmp_path / "scores.jsonl"
        ScoreCache(RecordedScorer({}), path).log_probs(["a"])
        path.write_text(path.read_text() + '{"kind": "log_prob"}\n')
        with pytest.raises(PushdownError, match=r"scores\.jsonl:2: expected a cached score"):
            ScoreCache(RecordedScorer({}), path)
