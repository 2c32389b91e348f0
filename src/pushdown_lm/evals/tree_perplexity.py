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

import torch
from rich.table import Table

from pushdown_lm.data.batching import Collator
from pushdown_lm.data.encoding import attach_tokens
from pushdown_lm.data.text import detokenize
from pushdown_lm.errors import PushdownError
from pushdown_lm.evals.perplexity import _perplexity
from pushdown_lm.search.bracket_scorer import BracketScorer
from pushdown_lm.search.loading import BaseLMScorer, EvaluationScorer
from pushdown_lm.search.pushdown_scorer import PushdownScorer, UnknownTokenError
from pushdown_lm.search.scorer import CausalLMScorer, Progress, Scorer, score_distinct
from pushdown_lm.trees import Tree

BATCH = 32
"""Trees that are read at once."""


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
    scorer: EvaluationScorer,
    trees: Sequence[Tree],
    *,
    through: Scorer | None = None,
    chunk_size: int = 256,
    progress: Progress | None = None,
) -> TreePerplexityReport:
    """Perplexities over trees; `through` is a cached or sharded form of the scorer, if any.

    Sentences with words outside a closed vocabulary are left out and counted. A plain language
    model reads the trees' words as running text and knows the marginal only, as does a model that
    reads brackets.
    """
    if not trees:
        raise PushdownError("expected at least one tree, got none")
    parser = scorer.parser if isinstance(scorer, BaseLMScorer) else scorer
    readable = [tree for tree in trees if _is_readable(parser, tree)]
    if not readable:
        raise PushdownError(
            f"expected words of the vocabulary, but all {len(trees)} trees have unknown words"
        )
    sentences = [_sentence(parser, tree) for tree in readable]
    scored = score_distinct(
        (through or scorer).surprisals, sentences, chunk_size=chunk_size, progress=progress
    )
    bits = [token.surprisal for sentence in sentences for token in scored[sentence]]
    log_probs = {"marginal": -math.log(2) * math.fsum(bits)}
    if not isinstance(parser, BracketScorer | CausalLMScorer) and parser.parses:
        pairs = gold_log_probs(parser, readable)
        conditional = math.fsum(tokens for tokens, _ in pairs)
        attachments = math.fsum(attachments for _, attachments in pairs)
        log_probs |= {"joint": conditional + attachments, "conditional": conditional}
    return TreePerplexityReport(
        scorer=scorer.describe(),
        sentences=len(readable),
        tokens=len(bits),
        words=sum(len(tree.words) + 1 for tree in readable),
        unknown_words=len(trees) - len(readable),
        log_probs=log_probs,
    )


@torch.inference_mode()
def gold_log_probs(scorer: PushdownScorer, trees: Sequence[Tree]) -> list[tuple[float, float]]:
    """The log-probabilities of tokens and of attachments of each tree, EOS included, in nats.

    Their sum is :meth:`PushdownScorer.log_joint`.
    """
    model, config = scorer.model, scorer.model.config
    collate = Collator(config.eos_id)
    results: list[tuple[float, float]] = []
    for start in range(0, len(trees), BATCH):
        examples = []
        for tree in trees[start : start + BATCH]:
            encoded = scorer.encode(tree.words)
            attachments = attach_tokens(tree, encoded.leaf_counts)
            ids = [config.bos_token_id, *encoded.ids, config.eos_token_id]
            examples.append({"input_ids": ids, "attachments": attachments})
        batch = {name: tensor.to(model.device) for name, tensor in collate(examples).items()}
        labels = batch.pop("labels")
        output = model(**batch)
        tokens = _chosen(output.logits[:, :-1], labels[:, 1:])
        attached = _chosen(output.attachment_logits, output.attachment_targets)
        results += zip(tokens.tolist(), attached.tolist(), strict=True)
    return results


def _chosen(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The summed log-probabilities of the targets of each row; negative ones do not count."""
    log_probs = logits.double().log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])
    return log_probs[..., 0].masked_fill(targets < 0, 0.0).sum(-1)


def _is_readable(parser: EvaluationScorer, tree: Tree) -> bool:
    if isinstance(parser, PushdownScorer):
        try:
            parser.encode(tree.words)
        except UnknownTokenError:
            return False
    return True


def _sentence(parser: EvaluationScorer, tree: Tree) -> Any:
    """Words for the models of this library, running text for others."""
    if isinstance(parser, PushdownScorer):
        return tuple(tree.words)
    return "".join(detokenize(tree.words))
