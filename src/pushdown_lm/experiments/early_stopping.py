"""Early stopping: the weights of the best epoch are the ones kept."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn


class EarlyStopping:
    """Watches a loss after every epoch and keeps a copy of the weights where it was lowest.

    Args:
        model: only its weights that are trained are copied.
        loss: the loss of the model as it is now.
        patience: epochs without a lower loss after which training is over.
    """

    def __init__(self, model: nn.Module, loss: Callable[[], float], patience: int) -> None:
        self.model, self.loss, self.patience = model, loss, patience
        self.lowest, self.worse = math.inf, 0
        self.best: dict[str, Tensor] = {}

    def is_over(self) -> bool:
        """Look at the model after an epoch; whether to stop."""
        loss = self.loss()
        if loss < self.lowest:
            self.lowest, self.worse = loss, 0
            self.best = {name: value.detach().clone() for name, value in self._trained()}
        else:
            self.worse += 1
        return self.worse >= self.patience

    @torch.no_grad()
    def restore(self) -> None:
        """Give the model the best weights back."""
        for name, parameter in self._trained():
            if name in self.best:
                parameter.copy_(self.best[name])

    def _trained(self) -> Iterator[tuple[str, nn.Parameter]]:
        return ((n, p) for n, p in self.model.named_parameters() if p.requires_grad)
