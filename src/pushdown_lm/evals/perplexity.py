"""Perplexity per token and per word.

Both divide the same total: the log-probability of all sentences, EOS included. A sentence of n
tokens and m whitespace-separated words counts n + 1 tokens and m + 1 words, the one being EOS:

    token perplexity = exp(-log p / sum(n + 1))      word perplexity = exp(-log p / sum(m + 1))

Per-token figures compare models of one tokenizer only; per-word figures compare all.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from pushdown_lm.errors import PushdownError
from pushdown_lm.search.scorer import Progress, Scorer, score_distinct


@dataclass(frozen=True, slots=True)
class PerplexityReport:
    scorer: dict[str, Any]
    sentences: int
    tokens: int
    """Tokens, one EOS per sentence among them."""
    words: int
    """Whitespace-separated words and one EOS per sentence."""
    log_prob: float
    """Natural log-probability of all sentences."""
    failures: int
    """Sentences without a finite log-probability; with one, both perplexities are infinite."""

    @property
    def token_perplexity(self) -> float:
        return _perplexity(self.log_prob, self.tokens)

    @property
    def word_perplexity(self) -> float:
        return _perplexity(self.log_prob, self.words)

    def to_json(self) -> dict[str, Any]:
        """Figures that are not finite become None."""
        figures = {
            "log_prob": self.log_prob,
            "token_perplexity": self.token_perplexity,
            "word_perplexity": self.word_perplexity,
        }
        return {
            "evaluation": "perplexity",
            "scorer": self.scorer,
            "words_are": "separated by whitespace; one EOS per sentence counts as token and word",
            "items": self.sentences,
            "tokens": self.tokens,
            "words": self.words,
            "failures": self.failures,
            **{name: value if math.isfinite(value) else None for name, value in figures.items()},
        }

    def table(self) -> Table:
        table = Table(
            title=f"Perplexity of {self.scorer.get('model')}, {self.sentences} sentences "
            "(EOS counted once per sentence; words by whitespace)"
        )
        table.add_column("unit")
        table.add_column("count", justify="right")
        table.add_column("perplexity", justify="right")
        table.add_row("token", str(self.tokens), f"{self.token_perplexity:.2f}")
        table.add_row("word", str(self.words), f"{self.word_perplexity:.2f}")
        return table


def evaluate_perplexity(
    scorer: Scorer,
    sentences: Sequence[str],
    *,
    chunk_size: int = 256,
    progress: Progress | None = None,
) -> PerplexityReport:
    """Perplexity over sentences, each scored by itself; repeated sentences count each time."""
    if not sentences:
        raise PushdownError("expected at least one sentence, got none")
    tokens = score_distinct(scorer.surprisals, sentences, chunk_size=chunk_size, progress=progress)
    bits = {
        sentence: math.fsum(token.surprisal for token in scored)
        for sentence, scored in tokens.items()
    }
    failures = sum(not math.isfinite(bits[sentence]) for sentence in sentences)
    return PerplexityReport(
        scorer=scorer.describe(),
        sentences=len(sentences),
        tokens=sum(len(tokens[sentence]) for sentence in sentences),
        words=sum(len(sentence.split()) + 1 for sentence in sentences),
        log_prob=-math.inf
        if failures
        else -math.log(2) * math.fsum(bits[sentence] for sentence in sentences),
        failures=failures,
    )


def _perplexity(log_prob: float, count: int) -> float:
    """exp(-log_prob / count), infinite where it overflows."""
    try:
        return math.exp(-log_prob / count)
    except OverflowError:
        return math.inf
