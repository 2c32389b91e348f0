"""The decoder as search needs it: many parses of many sentences, one position after another.

Shapes: B sentences, T positions, N entries (parses of the batch's sentences), L positions read,
C candidate slots, d hidden width, G key heads, V vocabulary.

Parses that branch from a common past share its cells (:mod:`pushdown_lm.search.cells`).

Layers below the first pushdown layer do not see the parse. They run once a sentence, in parallel,
and while entries are decoded they only hand out what they have computed. In a model without
pushdown layers that is the whole decoder, and only the attachment head is left to each entry.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Protocol

import torch
from torch import Tensor

from pushdown_lm.model.layers import lower_output, replaced_layers
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.model.packed_linear import packed_linears
from pushdown_lm.search.cells import CellCache, Store
from pushdown_lm.trees.oracle import Stack

PARALLEL_TOKENS = 2048
"""Tokens whose logits are computed at once where they do not depend on the parse."""


class EntryDecoder(Protocol):
    """Decodes the entries of a beam, position by position."""

    def step(self, sentence: Tensor, parent: Tensor, stack: Stack) -> tuple[Tensor, Tensor]:
        """Read the token at the stack's newest position.

        Args:
            sentence: ``(N,)``, the sentence of each entry.
            parent: ``(N,)``, the entry of the step before that each entry continues.
            stack: the entries' stacks after that token.

        Returns:
            The last hidden states ``(N, d)`` and the log-probabilities ``(N,)`` of the sentences'
            next tokens.
        """

    def next_tokens(self, sentence: Tensor, position: int) -> Tensor:
        """What the head sees of the tokens at a position that is not read yet: ``(N, e)``."""

    def keys(self, position: Tensor) -> Tensor:
        """The head's keys of each entry at positions ``(N, C)``: ``(N, C, d)``."""

    def prediction(self, weights: Tensor) -> Tensor:
        """The probabilities ``(V,)`` of the next token after the last step, averaged over its
        entries with weights ``(N,)``; only where predictions are kept."""


@contextmanager
def entry_decoder(
    model: PushdownForCausalLM, input_ids: Tensor, *, keep_predictions: bool = False
) -> Iterator[EntryDecoder]:
    """A decoder of entries for the sentences ``(B, T)``, ROOT first, padded on the right.

    The last position is predicted, never read. Until the block is left, the model serves this
    search only. ``keep_predictions`` keeps those of the last step, which takes memory.
    """
    with packed_linears(model):
        if not model.config.pushdown_layers:
            yield _SharedDecoder(model, input_ids, keep_predictions)
            return
        decoder = _BranchingDecoder(model, input_ids, keep_predictions)
        with replaced_layers(model.decoder, model.config.num_lower_layers, decoder.replay):
            yield decoder


class _SharedDecoder:
    """Of a model without pushdown layers: all cells are known from one parallel pass."""

    def __init__(
        self, model: PushdownForCausalLM, input_ids: Tensor, keep_predictions: bool
    ) -> None:
        assert model.head is not None
        hidden, log_probs, predictions = [], [], []
        for rows in input_ids.split(max(1, PARALLEL_TOKENS // input_ids.shape[1])):
            decoded = model.decoder(
                input_ids=rows[:, :-1], use_cache=False, output_hidden_states=True
            )
            hidden.append(decoded.hidden_states[-1])
            log_prob, exponentials = _log_prob(decoded.logits, rows[:, 1:])
            log_probs.append(log_prob)
            if keep_predictions:
                predictions.append(exponentials / exponentials.sum(-1, keepdim=True))
        self.hidden = torch.cat(hidden)  # (B, T - 1, d)
        self.log_prob = torch.cat(log_probs)  # (B, T - 1)
        self.predictions = torch.cat(predictions) if predictions else None  # (B, T - 1, V)
        self.position = 0
        self.all_keys = model.head.keys(self.hidden)
        self.sentence = input_ids.new_empty(0)
        self.embeddings, self.input_ids = model.get_input_embeddings(), input_ids

    def step(self, sentence: Tensor, parent: Tensor, stack: Stack) -> tuple[Tensor, Tensor]:
        self.sentence, self.position = sentence, len(stack) - 1
        return self.hidden[sentence, self.position], self.log_prob[sentence, self.position]

    def next_tokens(self, sentence: Tensor, position: int) -> Tensor:
        return self.embeddings(self.input_ids[sentence, position])

    def keys(self, position: Tensor) -> Tensor:
        return self.all_keys[self.sentence[:, None], position]

    def prediction(self, weights: Tensor) -> Tensor:
        assert self.predictions is not None
        predicted = self.predictions[:, self.position]  # (B, V)
        by_sentence = weights.new_zeros(len(predicted)).index_add(0, self.sentence, weights)
        return by_sentence @ predicted.to(weights.dtype)


class _BranchingDecoder:
    """Of a model with pushdown layers: each entry has cells of its own."""

    def __init__(
        self, model: PushdownForCausalLM, input_ids: Tensor, keep_predictions: bool
    ) -> None:
        self.model, self.input_ids = model, input_ids
        self.keep_predictions = keep_predictions
        self.exponentials: Tensor | None = None
        self.lower_output: Tensor | None = None
        if count := model.config.num_lower_layers:
            self.lower_output = lower_output(
                model.decoder, count, input_ids=input_ids[:, :-1], use_cache=False
            )
        self.cache = CellCache(model.config.decoder.num_hidden_layers, input_ids.device)
        self.head_keys = Store()
        self.replayed: Tensor | None = None

    def replay(self, *_: Any, **__: Any) -> Tensor:
        """What a layer below the first pushdown layer does while entries are decoded."""
        assert self.replayed is not None
        return self.replayed

    def step(self, sentence: Tensor, parent: Tensor, stack: Stack) -> tuple[Tensor, Tensor]:
        assert self.model.head is not None
        position = len(stack) - 1
        self.cache.branch(parent)
        if self.lower_output is not None:
            self.replayed = self.lower_output[sentence, position, None]
        decoded = self.model.decoder(
            input_ids=self.input_ids[sentence, position, None],
            position_ids=sentence.new_full((len(sentence), 1), position),
            past_key_values=self.cache,
            use_cache=True,
            tape=self.model.tape_row(stack),
            output_hidden_states=True,
        )
        hidden = decoded.hidden_states[-1][:, 0]
        self.head_keys.append(self.model.head.keys(hidden))
        following = self.input_ids[sentence, position + 1]
        log_prob, exponentials = _log_prob(decoded.logits[:, 0], following)
        if self.keep_predictions:
            self.exponentials = exponentials
        return hidden, log_prob

    def next_tokens(self, sentence: Tensor, position: int) -> Tensor:
        if self.model.config.head_input == "embedding":
            return self.model.get_input_embeddings()(self.input_ids[sentence, position])
        assert self.lower_output is not None
        return self.lower_output[sentence, position]

    def keys(self, position: Tensor) -> Tensor:
        return self.head_keys.rows(self.cache.cells.gather(1, position))

    def prediction(self, weights: Tensor) -> Tensor:
        assert self.exponentials is not None
        total = self.exponentials.sum(-1).to(weights.dtype)
        return (weights / total) @ self.exponentials.to(weights.dtype)


def _log_prob(logits: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Log-probabilities ``(...)`` of tokens under logits ``(..., V)``, which it uses up, and their
    exponentials ``(..., V)``, probabilities but for a factor."""
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    largest = logits.amax(-1)
    chosen = logits.gather(-1, tokens[..., None])[..., 0] - largest
    exponentials = logits.sub_(largest[..., None]).exp_()
    return chosen - exponentials.sum(-1).log(), exponentials
