"""A plain language model reading: what it expects, and nothing about a tree."""

from __future__ import annotations

from collections.abc import Generator, Sequence

from pushdown_lm import viz
from pushdown_lm.errors import PushdownError
from pushdown_lm.explorer.reading import SHOWN, Reading
from pushdown_lm.search.steps import plain_steps


class PlainReading(Reading):
    """What a model without Pushdown Layers and attachment head makes of a sentence. Its
    probabilities are exact."""

    def take_steps(self) -> Generator[int, None, None]:
        self.steps = plain_steps(self.scorer.model, self.encoded.ids, shown=SHOWN)
        yield from range(1, len(self.steps) + 1)

    def best_history(self) -> Sequence[int]:
        return range(1, len(self.tokens) + 1)  # no layer sees it

    def picture(self, position: int, rank: int = 0, *, whole_tape: bool = False) -> str:
        bits, entropies = self._expectations(position)
        return viz.surprisals(self.tokens, bits, entropies, num_read=self._num_read(position))

    def tape_picture(self, position: int, rank: int = 0) -> str:
        raise PushdownError(f"{self.scorer.name}: a plain language model has no stack tape")
