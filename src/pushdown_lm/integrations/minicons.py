"""A Pushdown model as a scorer of minicons (`pip install pushdown-lm[minicons]`).

    scorer = PushdownLMScorer("runs/demo/seed0/demo/model")
    scorer.token_score("the dog is happy .", surprisal=True, base_two=True)
    scorer.sequence_score(["the dog is happy ."], reduction=lambda x: x.sum(0).item())
    scorer.conditional_score(["the dog"], ["is happy ."])

Methods, arguments and defaults are those of `minicons.scorer.IncrementalLMScorer` for a model whose
tokenizer adds BOS: scores are natural logs unless told otherwise, BOS comes first with score 0 and
is in no mean, and EOS is scored only with ``eos_token=True``. So for a plain language model the
numbers are minicons' own with ``bos_token=True``. Search sums over parses and keeps no
distribution over the vocabulary, hence there are no ranks and no correction for word boundaries.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from minicons.scorer import LMScorer

from pushdown_lm.errors import PushdownError
from pushdown_lm.search.loading import EvaluationScorer, load_scorer
from pushdown_lm.search.scorer import Token


class Prepared(NamedTuple):
    """Texts that are ready to be scored."""

    texts: list[str]
    offsets: list[int]
    """How many tokens of each text are not scored, BOS aside."""
    eos_token: bool


class PushdownLMScorer(LMScorer):
    """Scores sentences with a Pushdown model, or with any causal language model.

    Args:
        model: a model's folder, or a scorer.
        options: beam, threshold and allow_unknown, as for :func:`load_scorer`.
    """

    def __init__(
        self, model: str | Path | EvaluationScorer, device: str = "cpu", **options: Any
    ) -> None:
        self.scorer = (
            load_scorer(model, device=device, **options) if isinstance(model, str | Path) else model
        )
        super().__init__(self.scorer.name, device=device, tokenizer=self.scorer.tokenizer)
        self.model = self.scorer.model

    def prepare_text(
        self, text: str | Sequence[str], bos_token: bool = True, eos_token: bool = False
    ) -> Prepared:
        if not bos_token:
            raise PushdownError("bos_token: a Pushdown model reads BOS always, got False")
        texts = [text] if isinstance(text, str) else list(text)
        return Prepared(texts, [0] * len(texts), eos_token)

    def prime_text(
        self,
        preamble: str | Sequence[str],
        stimuli: str | Sequence[str],
        separator: str | Sequence[str] = " ",
        bos_token: bool = True,
        eos_token: bool = False,
    ) -> Prepared:
        """Preambles joined with stimuli; the offsets leave the preambles' tokens out."""
        preambles = [preamble] if isinstance(preamble, str) else list(preamble)
        stimuli = [stimuli] if isinstance(stimuli, str) else list(stimuli)
        separators = [separator] * len(preambles) if isinstance(separator, str) else list(separator)
        joined = map("".join, zip(preambles, separators, stimuli, strict=True))
        texts, _, eos_token = self.prepare_text(list(joined), bos_token, eos_token)
        return Prepared(texts, list(map(self._count_tokens, preambles)), eos_token)

    def _count_tokens(self, text: str) -> int:
        return self.scorer.count_tokens(text) if text.strip() else 0

    def compute_stats(
        self,
        batch: Prepared,
        rank: bool = False,
        prob: bool = False,
        base_two: bool = False,
        return_tensors: bool = False,
        bow_correction: bool = False,
    ) -> list[Any]:
        """The scores of the tokens after BOS and the offset, a tensor or a list for each text."""
        _check(prob, base_two, rank or bow_correction)
        tokens = self._tokens(batch)
        return [
            score if return_tensors else score.tolist()
            for score in self._scores(tokens, batch.offsets, prob, base_two)
        ]

    def token_score(
        self,
        batch: str | Sequence[str],
        surprisal: bool = False,
        prob: bool = False,
        base_two: bool = False,
        rank: bool = False,
        decode: bool = False,
        bow_correction: bool = False,
        **options: Any,
    ) -> list[list[tuple[str, float]]]:
        """A list of (token, score) for each sentence, BOS first with score 0."""
        if surprisal and prob:
            raise PushdownError("expected surprisal or prob, got both")
        _check(prob, base_two, rank or bow_correction)
        prepared = self.prepare_text(batch, **options)
        sentences = self._tokens(prepared)
        scores = self._scores(sentences, prepared.offsets, prob, base_two)
        result = []
        for tokens, score in zip(sentences, scores, strict=True):
            texts = [self.tokenizer.bos_token, *(token.text for token in tokens)]
            if decode:
                texts = self.decode(self.tokenizer.convert_tokens_to_ids(texts))
            values = (-score if surprisal else score).tolist()
            result.append(list(zip(texts, [0.0, *values], strict=True)))
        return result

    def _tokens(self, batch: Prepared) -> list[list[Token]]:
        scored = self.scorer.surprisals(batch.texts)
        return scored if batch.eos_token else [tokens[:-1] for tokens in scored]

    def _scores(
        self,
        sentences: Sequence[Sequence[Token]],
        offsets: Sequence[int],
        prob: bool,
        base_two: bool,
    ) -> list[torch.Tensor]:
        scores = []
        for tokens, offset in zip(sentences, offsets, strict=True):
            bits = torch.tensor([token.surprisal for token in tokens[offset:]])
            score = -bits if base_two else -bits * math.log(2)
            scores.append(score.exp() if prob else score)
        return scores


def _check(prob: bool, base_two: bool, needs_distribution: bool) -> None:
    if base_two and prob:
        raise PushdownError("expected base_two or prob, got both: a probability has no base")
    if needs_distribution:
        raise PushdownError(
            "rank and bow_correction need the distribution over the vocabulary, which a sum over "
            "parses does not keep"
        )
