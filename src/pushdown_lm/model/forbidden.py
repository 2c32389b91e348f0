"""Tokens that can never come next, taken out of the distribution of the next token.

ROOT begins a sentence and is given, padding is never read, and a scorer that refuses unknown words
never reads the unknown token. Probability that such ids had could never be used, and strings would
not sum to one. So their logits are -inf wherever the decoder gives logits: in training, in search,
in the scorers of this library and in sampling, which all have the same distribution then. Where one
id is also EOS, it can come next and is left alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import PreTrainedTokenizerBase


class ForbiddenTokens:
    """The ids that cannot come next; a forward hook of the decoder."""

    def __init__(self, ids: Iterable[int | None], end: int | None) -> None:
        self.end = end
        self.ids: set[int] = set()
        self.add(ids)

    def add(self, ids: Iterable[int | None]) -> None:
        """Forbid further ids; None and EOS are passed over."""
        self.ids |= {token for token in ids if token is not None and token != self.end}

    def among(self, tokens: Tensor) -> Tensor:
        """Which of the tokens are forbidden."""
        return torch.isin(tokens, self._index(tokens))

    def mask(self, logits: Tensor) -> Tensor:
        """The logits ``(..., V)``, changed in place."""
        if not self.ids:
            return logits
        if torch.compiler.is_compiling():
            return logits.index_fill_(-1, self._index(logits), -torch.inf)
        masked: Tensor = _Fill.apply(logits, self._index(logits))
        return masked

    def _index(self, like: Tensor) -> Tensor:
        return torch.tensor(sorted(self.ids), dtype=torch.long, device=like.device)

    def __call__(self, _module: nn.Module, _inputs: Any, output: Any) -> None:
        if isinstance(getattr(output, "logits", None), Tensor):
            self.mask(output.logits)


class _Fill(torch.autograd.Function):
    """-inf in some columns, in place.

    PyTorch's own copies the whole gradient to set these columns to zero. After a cross-entropy they
    are zero already, and on a CPU looking costs less than a copy.
    """

    @staticmethod
    def forward(ctx: Any, logits: Tensor, index: Tensor) -> Tensor:
        ctx.mark_dirty(logits)
        ctx.save_for_backward(index)
        return logits.index_fill_(-1, index, -torch.inf)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        (gradient,), (index,) = gradients, ctx.saved_tensors
        if gradient.device.type != "cpu" or bool(gradient.index_select(-1, index).any()):
            gradient = gradient.index_fill(-1, index, 0)
        return gradient, None


def padding_id(tokenizer: PreTrainedTokenizerBase) -> int | None:
    """The tokenizer's padding, or EOS where that is the unknown token, which may come next."""
    is_unknown = tokenizer.pad_token_id == tokenizer.unk_token_id
    return tokenizer.eos_token_id if is_unknown else tokenizer.pad_token_id


def special_ids(tokenizer: PreTrainedTokenizerBase) -> dict[str, Any]:
    """What the configuration of a model takes over from its tokenizer."""
    return {
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": padding_id(tokenizer),
    }
