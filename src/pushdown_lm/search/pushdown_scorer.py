"""A trained Pushdown model behind one object: probabilities, surprisals, parses, attention.

    scorer = PushdownScorer.from_pretrained("runs/demo/seed0/demo/model")
    scorer.log_prob("the dog is happy .")
    [(token.text, token.surprisal) for token in scorer.surprisals("the dog is happy .")]
    print(to_brackets(scorer.parse("the dog is happy .")))

How sentences become tokens, words and leaves, :mod:`pushdown_lm.search.search_scorer` says.
`PushdownScorer` satisfies :class:`pushdown_lm.search.scorer.Scorer`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedTokenizerFast

from pushdown_lm import viz
from pushdown_lm.data.batching import Collator
from pushdown_lm.data.encoding import attach_tokens
from pushdown_lm.errors import PushdownError
from pushdown_lm.model.configuration import PushdownConfig
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.model.packed_linear import packed_linears
from pushdown_lm.search.beam import (
    DEFAULT_BATCH_CELLS,
    log_joint,
    search_batches,
)
from pushdown_lm.search.defaults import DEFAULT_BEAM
from pushdown_lm.search.read_attention import ReadAttention
from pushdown_lm.search.scorer import Sentence, TreeScore
from pushdown_lm.search.search_scorer import (
    Analysis,
    Encoded,
    SearchScorer,
    UnknownTokenError,
    leaves_of_text,
)
from pushdown_lm.trees import Tree, merge_pieces
from pushdown_lm.trees.oracle import stack_tape, tree_from_attachments

__all__ = ["Analysis", "AttentionMaps", "Encoded", "PushdownScorer", "UnknownTokenError"]

TREES_PER_BATCH = 32
"""Trees that are scored at once."""


@dataclass(frozen=True, slots=True)
class AttentionMaps:
    """What the model attends to while it reads a sentence under one parse."""

    tokens: tuple[str, ...]
    """BOS and the sentence's, T of them; EOS is predicted, not read."""
    attachments: tuple[int, ...]
    tape: Tensor
    """``(T, T)``, the rows of the stack tape."""
    weights: Tensor
    """``(layers, heads, T, T)``."""

    def _repr_html_(self) -> str:
        """What notebooks show: the mean over layers and heads."""
        return viz.attention(self.tokens, self.weights.double().mean((0, 1)))


class PushdownScorer(SearchScorer):
    """Answers questions about sentences with a Pushdown model.

    Args:
        beam: entries that search keeps for a sentence.
        batch_cells: the budget of a batch, as in :func:`pushdown_lm.search.beam.search`.
        options: name, threshold and allow_unknown, as for :class:`SearchScorer`.
    """

    model: PushdownForCausalLM
    model_class = PushdownForCausalLM
    model_type = PushdownConfig.model_type
    kind = "a Pushdown model"

    def __init__(
        self,
        model: PushdownForCausalLM,
        tokenizer: PreTrainedTokenizerFast,
        *,
        beam: int = DEFAULT_BEAM,
        batch_cells: int = DEFAULT_BATCH_CELLS,
        **options: Any,
    ) -> None:
        super().__init__(model, tokenizer, beam=beam, **options)
        self.batch_cells = batch_cells

    @property
    def depends_on_parse(self) -> bool:
        return bool(self.model.config.pushdown_layers)

    @property
    def parses(self) -> bool:
        return self.model.head is not None

    @property
    def scores_trees(self) -> bool:
        return self.model.head is not None

    @property
    def attends(self) -> bool:
        return True

    def analyse_batches(self, encoded: Sequence[Encoded]) -> Iterator[dict[int, Analysis]]:
        """The same batch by batch, longest sentences first, by the sentence's number."""
        for batch in search_batches(
            self.model,
            [sentence.ids for sentence in encoded],
            beam=self.beam,
            threshold=self.threshold,
            batch_cells=self.batch_cells,
        ):
            yield {
                number: self.analysis(encoded[number], result) for number, result in batch.items()
            }

    def read_back(self, tokens: Sequence[int], history: Sequence[int]) -> tuple[str, Tree | None]:
        """The text of tokens, and the tree that their attachments make of it.

        The tree is over the leaves of the text, or over the tokens where the text would become
        other tokens; there is none over nothing.
        """
        text = self._backend.decode(list(tokens)).strip()
        if not tokens:
            return text, None
        leaves = self._pieces(tokens)
        tree = tree_from_attachments([0, *history, 0], leaves)
        encoding = self._backend.encode(text, add_special_tokens=False)
        if encoding.ids == list(tokens):
            words, counts = leaves_of_text(text, encoding.word_ids, encoding.offsets)
            tree = merge_pieces(tree, counts, words)
        return text, tree

    def log_joint(self, tree: Tree) -> float:
        """log p(x, y) of a sentence and its tree, as training sees it: every constituent is closed
        by its last word, none is left for EOS to close. N-ary trees are binarized to the right."""
        encoded = self.encode(tree.words)
        attachments = attach_tokens(tree, encoded.leaf_counts)
        return log_joint(self.model, encoded.ids, attachments)

    @torch.inference_mode()
    def score_trees(self, trees: Sequence[Tree]) -> list[TreeScore]:
        """The log-probabilities of tokens and attachments of each tree, EOS included, in nats."""
        if self.model.head is None:
            raise PushdownError(f"{self.name}: expected a model with an attachment head")
        config = self.model.config
        results: list[TreeScore] = []
        collate = Collator(config.eos_id)
        for start in range(0, len(trees), TREES_PER_BATCH):
            examples = []
            for tree in trees[start : start + TREES_PER_BATCH]:
                encoded = self.encode(tree.words)
                ids = [config.bos_token_id, *encoded.ids, config.eos_token_id]
                attachments = attach_tokens(tree, encoded.leaf_counts)
                examples.append({"input_ids": ids, "attachments": attachments})
            batch = {key: value.to(self.model.device) for key, value in collate(examples).items()}
            labels = batch.pop("labels")
            with packed_linears(self.model):
                output = self.model(**batch)
            tokens = _sum_log_probs(output.logits[:, :-1], labels[:, 1:])
            attached = _sum_log_probs(output.attachment_logits, output.attachment_targets)
            results += map(TreeScore, tokens.tolist(), attached.tolist())
        return results

    @torch.inference_mode()
    def is_likeliest(self, analysis: Analysis) -> list[bool]:
        config, device, ids = self.model.config, self.model.device, analysis.sentence.ids
        history = analysis.result.histories[0].tolist()
        output = self.model(
            torch.tensor([[config.bos_id, *ids]], device=device),
            attachments=torch.tensor([[0, *history]], device=device),
        )
        targets = torch.tensor([*ids, config.eos_id], device=device)
        return (output.logits[0].argmax(-1) == targets).tolist()

    def read_attention(self, text: str) -> ReadAttention:
        """What the model attends to under its most probable parse of the text so far, which EOS has
        no say in."""
        encoded = self.encode(text)
        history = list(range(1, len(encoded.ids) + 1))
        if self.depends_on_parse:
            result = self.analyse([text])[0].result
            best = int(torch.tensor(result.log_open_joints).argmax())
            history = result.histories[best].tolist()
        maps = self.attend(encoded.ids, history)
        return ReadAttention(maps.tokens, encoded.offsets, maps.weights.float())

    def attention(self, sentence: Sentence) -> AttentionMaps:
        """Attention weights and tape under the most probable history."""
        analysis = self.analyse([sentence])[0]
        return self.attend(analysis.sentence.ids, analysis.result.histories[0].tolist())

    @torch.inference_mode()
    def attend(self, tokens: Sequence[int], history: Sequence[int]) -> AttentionMaps:
        """Attention weights and tape under a history of the tokens."""
        attachments = [0, *history]
        ids = [self.model.config.bos_id, *tokens]
        output = self.model(
            torch.tensor([ids], device=self.model.device),
            attachments=torch.tensor([attachments], device=self.model.device),
            output_attentions=True,
        )
        return AttentionMaps(
            tokens=self._pieces(ids),
            attachments=tuple(attachments),
            tape=stack_tape(torch.tensor(attachments)),
            weights=torch.cat(output.attentions).cpu(),
        )


def _sum_log_probs(logits: Tensor, targets: Tensor) -> Tensor:
    """The summed log-probabilities of the targets of each row; negative ones do not count."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    chosen = logits.gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    log_probs = chosen.double() - logits.logsumexp(-1).double()
    return log_probs.masked_fill(targets < 0, 0.0).sum(-1)
