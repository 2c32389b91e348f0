"""Perplexity of treebank sentences: summed over parses, and with the gold tree.

All figures are over the same tokens, EOS included, as a Pushdown model reads the trees' words. For
a sentence x_1 .. x_n, EOS as x_{n+1}, and the attachments r of its gold tree, binarized to the
right:

    marginal      log p(x)            = log sum_r p(x, r), over the beam
    joint         log p(x, r)         = conditional + sum_t log p(r_t | x_<=t, r_<t)
    conditional   sum_t log p(x_t | x_<t, r_<t)

The conditional is each token's probability given the gold tree of the words before it, the paper's
"perplexity given the ground-truth parse". It is not the probability of the whole sentence, since r
tells something of the words to come. For a model without Pushdown Layers it equals the marginal.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from rich.table import Table

from pushdown_lm.errors import PushdownError
from pushdown_lm.evals.perplexity import _perplexity
from pushdown_lm.search.scorer import Progress, Scorer, score_distinct
from pushdown_lm.search.search_scorer import UnknownTokenError
from pushdown_lm.trees import Tree


@dataclass(frozen=True, slots=True)
class TreePerplexityReport:
    scorer: dict[str, Any]
    sentences: int
    tokens: int
    """Tokens, one EOS per sentence among them."""
    words: int
    """Leaves of the trees and one EOS per sentence."""
    unknown_words: int
    """Sentences left out because of a word outside the vocabulary."""
    log_probs: dict[str, float]
    """Natural logs over all sentences, by name: marginal, and joint and conditional if known."""

    def token_perplexity(self, name: str) -> float:
        return _perplexity(self.log_probs[name], self.tokens)

    def word_perplexity(self, name: str) -> float:
        return _perplexity(self.log_probs[name], self.words)

    def to_json(self) -> dict[str, Any]:
        return {
            "evaluation": "tree perplexity",
            "scorer": self.scorer,
            "words_are": "leaves of the trees; one EOS per sentence counts as token and word",
            "items": self.sentences,
            "tokens": self.tokens,
            "words": self.words,
            "failures": self.unknown_words,
            "perplexities": {
                name: {
                    "log_prob": log_prob,
                    "token_perplexity": self.token_perplexity(name),
                    "word_perplexity": self.word_perplexity(name),
                }
                for name, log_prob in self.log_probs.items()
            },
        }

    def table(self) -> Table:
        table = Table(
            title=f"Perplexity of {self.scorer.get('model')}, {self.sentences} trees "
            "(EOS counted once per sentence; words are leaves)"
        )
        table.add_column("of")
        table.add_column(f"per token ({self.tokens:,})", justify="right")
        table.add_column(f"per word ({self.words:,})", justify="right")
        titles = {
            "marginal": "x, summed over parses",
            "joint": "x and the gold tree, jointly",
            "conditional": "x, each token given the gold tree so far",
        }
        for name in self.log_probs:
            figures = (self.token_perplexity(name), self.word_perplexity(name))
            table.add_row(f"{name}: {titles[name]}", *(f"{figure:.2f}" for figure in figures))
        return table


def evaluate_tree_perplexity(
    scorer: Scorer,
    trees: Sequence[Tree],
    *,
    chunk_size: int = 256,
    progress: Progress | None = None,
) -> TreePerplexityReport:
    """Perplexities over trees.

    Sentences with words outside a closed vocabulary are left out and counted. A model that does not
    score trees, as a plain language model, which reads their words as running text, and one that
    reads brackets, knows the marginal only.
    """
    if not trees:
        raise PushdownError("expected at least one tree, got none")
    readable = [tree for tree in trees if _is_readable(scorer, tree)]
    if not readable:
        raise PushdownError(
            f"expected words of the vocabulary, but all {len(trees)} trees have unknown words"
        )
    sentences = [tuple(tree.words) for tree in readable]
    scored = score_distinct(scorer.surprisals, sentences, chunk_size=chunk_size, progress=progress)
    bits = [token.surprisal for sentence in sentences for token in scored[sentence]]
    log_probs = {"marginal": -math.log(2) * math.fsum(bits)}
    if scorer.scores_trees:
        scores = scorer.score_trees(readable)
        conditional = math.fsum(score.tokens for score in scores)
        structure = math.fsum(score.structure for score in scores)
        log_probs |= {"joint": conditional + structure, "conditional": conditional}
    return TreePerplexityReport(
        scorer=scorer.describe(),
        sentences=len(readable),
        tokens=len(bits),
        words=sum(len(tree.words) + 1 for tree in readable),
        unknown_words=len(trees) - len(readable),
        log_probs=log_probs,
    )


def _is_readable(scorer: Scorer, tree: Tree) -> bool:
    try:
        scorer.check(tree.words)
    except UnknownTokenError:
        return False
    return True
