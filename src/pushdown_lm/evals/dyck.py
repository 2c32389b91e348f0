"""Closing brackets after long and deep prefixes of Dyck strings (the paper's Table 1).

Shapes: B prefixes or parses of prefixes, T positions, K closing brackets.

A prefix is answered rightly if, among the closing brackets, the right one is the most probable next
symbol. The parse of the prefix is the model's own, by beam search over its attachments:

    p(x | prefix) ~ sum_r p(prefix, r) p(x | prefix, r)        r: the entries of the beam

or, as in the authors' code, by p(x | prefix, r) of the best entry alone.

The same is asked with the gold parse, so that one sees whether parsing or prediction fails.

**Search only where it matters.** One parallel pass over the gold parse also gives the model's own
probabilities of all attachments along it. Where each gold attachment beats every other by more than
the threshold, search could keep no other entry, so its result is known without searching. This is
exact, and the gold parse decides nothing but the time it takes: all other prefixes are searched.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from pushdown_lm.console import Advance
from pushdown_lm.corpora.dyck import Integers, Prefix
from pushdown_lm.data.batching import IGNORED, Collator
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.search.beam import SearchError, SearchResult, search_batches

PAIRS = 1 << 22
"""Pairs of positions, B x T x T, of one parallel pass."""
SEARCH_CELLS = 1 << 17
"""Enough sentences at once that the cost of a step is the entries' and not Python's."""

Answer: TypeAlias = Literal["mixture", "best"]
"""Whether all parses of a beam answer together, or the best alone."""


@dataclass(frozen=True)
class DyckScores:
    """What a model made of each of N prefixes."""

    correct: NDArray[np.bool_]
    """``(N,)``: right with the model's own parse."""
    correct_with_gold: NDArray[np.bool_]
    """``(N,)``: right with the gold parse."""
    right_attachments: NDArray[np.int64]
    """``(N,)``: in the best parse of the beam, of the symbols after the first."""
    num_attachments: NDArray[np.int64]
    """``(N,)``."""
    searched: NDArray[np.bool_]
    """``(N,)``: whether beam search was needed."""
    first_wrong_nesting: NDArray[np.int64]
    """``(N,)``: how many brackets were open where the best parse went wrong; -1 if it did not."""

    @property
    def accuracy(self) -> float:
        return float(self.correct.mean())

    @property
    def accuracy_with_gold(self) -> float:
        return float(self.correct_with_gold.mean())

    @property
    def attachment_accuracy(self) -> float:
        return float(self.right_attachments.sum() / self.num_attachments.sum())

    @property
    def whole_parses(self) -> float:
        """The share of the prefixes whose best parse is the gold one."""
        return float((self.right_attachments == self.num_attachments).mean())


@torch.inference_mode()
def evaluate_dyck(
    model: PushdownForCausalLM,
    prefixes: Sequence[Prefix],
    symbol_ids: NDArray[np.int64],
    *,
    beam: int = 10,
    threshold: float = 5.0,
    answer: Answer = "mixture",
    search_cells: int = SEARCH_CELLS,
    advance: Advance | None = None,
) -> DyckScores:
    """Ask a model for the closing bracket after each prefix.

    Args:
        symbol_ids: the token of each symbol, opening brackets first: ``(2K,)``.
        beam, threshold, search_cells: of the search, as in :func:`pushdown_lm.search.beam.search`;
            ``search_cells`` is its ``batch_cells``.
        answer: who answers where the beam holds several parses.
        advance: is told the number of prefixes done.
    """
    if model.head is None:
        raise SearchError("expected a model with an attachment head, which parses; it has none")
    task = _Task(model.eval(), prefixes, symbol_ids)
    scores = DyckScores(
        correct=np.zeros(len(prefixes), bool),
        correct_with_gold=np.zeros(len(prefixes), bool),
        right_attachments=np.array([len(prefix.symbols) - 1 for prefix in prefixes]),
        num_attachments=np.array([len(prefix.symbols) - 1 for prefix in prefixes]),
        searched=np.zeros(len(prefixes), bool),
        first_wrong_nesting=np.full(len(prefixes), -1),
    )
    for batch in task.batches(range(len(prefixes))):
        log_probs, margin = task.read(batch, [prefixes[n].attachments.tolist() for n in batch])
        scores.correct_with_gold[batch] = task.is_right(batch, log_probs)
        scores.searched[batch] = (margin <= threshold).numpy()
        _report(advance, int((~scores.searched[batch]).sum()))
    scores.correct[:] = scores.correct_with_gold

    waiting = np.flatnonzero(scores.searched).tolist()
    for found in search_batches(
        model,
        [task.tokens[number] for number in waiting],
        beam=beam,
        threshold=threshold,
        batch_cells=search_cells,
    ):
        for row, result in found.items():
            number = waiting[row]
            gold = prefixes[number].attachments
            best = int(torch.tensor(result.log_open_joints).argmax())
            is_right = result.histories[best].cpu().numpy() == gold
            scores.right_attachments[number] = is_right[1:].sum()
            scores.first_wrong_nesting[number] = _nesting_at_first_error(gold, is_right)
            log_prob = task.continuations(result)
            log_prob = log_prob[best] if answer == "best" else task.mixture(result, log_prob)
            scores.correct[number] = task.is_right([number], log_prob[None])[0]
            _report(advance, 1)
    return scores


def _report(advance: Advance | None, count: int) -> None:
    if advance is not None:
        advance(count)


def _nesting_at_first_error(gold: Integers, is_right: NDArray[np.bool_]) -> int:
    """The open brackets before the first wrong attachment ``(n,)``; -1 if all are right."""
    if is_right.all():
        return -1
    before = gold[: int(is_right.argmin())]
    num_opening = int((before == np.arange(1, len(before) + 1)).sum())  # these shift
    return 2 * num_opening - len(before)


class _Task:
    """A model before the prefixes that it is to continue."""

    def __init__(
        self,
        model: PushdownForCausalLM,
        prefixes: Sequence[Prefix],
        symbol_ids: NDArray[np.int64],
    ) -> None:
        self.model = model
        self.tokens = [symbol_ids[prefix.symbols].tolist() for prefix in prefixes]
        num_types = len(symbol_ids) // 2
        self.closing = torch.from_numpy(symbol_ids[num_types:]).to(model.device)
        self.answers = np.array([prefix.answer - num_types for prefix in prefixes])
        self.collate = Collator(model.config.pad_id)

    def batches(self, numbers: Sequence[int]) -> Iterator[list[int]]:
        """Prefixes of like length, longest first, as many as a parallel pass may have."""
        waiting = sorted(numbers, key=lambda number: -len(self.tokens[number]))
        while waiting:
            size = max(1, PAIRS // (len(self.tokens[waiting[0]]) + 1) ** 2)
            yield waiting[:size]
            waiting = waiting[size:]

    def read(
        self, numbers: Sequence[int], parses: Sequence[Sequence[int]]
    ) -> tuple[Tensor, Tensor]:
        """One parallel pass over prefixes with a parse of each.

        Returns:
            Log-probabilities of the closing brackets ``(B, K)``, and by how much, in nats, the
            parse's attachments beat the best others at the least certain position ``(B,)``.
        """
        examples = [
            {"input_ids": [self.model.config.bos_token_id, *self.tokens[n]], "attachments": [0, *r]}
            for n, r in zip(numbers, parses, strict=True)
        ]
        batch = {
            name: value.to(self.model.device) for name, value in self.collate(examples).items()
        }
        last = batch["attention_mask"].sum(-1) - 1
        del batch["labels"]
        output = self.model(**batch)
        assert output.logits is not None
        assert output.attachment_logits is not None
        assert output.attachment_targets is not None
        logits = output.logits[torch.arange(len(last)), last]
        log_probs = logits.double().log_softmax(-1)[:, self.closing]

        target = output.attachment_targets[..., None].clamp(min=0)  # (B, T, 1)
        chosen = output.attachment_logits.gather(-1, target)
        others = output.attachment_logits.scatter(-1, target, -torch.inf).amax(-1)
        margin = chosen[..., 0] - others
        margin = margin.masked_fill(output.attachment_targets == IGNORED, torch.inf)
        return log_probs.cpu(), margin.amin(-1).cpu()

    def continuations(self, result: SearchResult) -> Tensor:
        """Log-probabilities ``(N, K)`` of the closing brackets under each parse of a beam."""
        logits: Tensor = self.model.get_output_embeddings()(result.hidden)
        logits = self.model.forbidden.mask(logits)
        return logits.double().log_softmax(-1)[:, self.closing].cpu()

    def mixture(self, result: SearchResult, log_probs: Tensor) -> Tensor:
        """Those of the beam ``(K,)``: the parses' ``(N, K)``, summed."""
        weights = torch.tensor(result.log_open_joints, dtype=torch.float64).log_softmax(0)
        return (log_probs + weights[:, None]).logsumexp(0)

    def is_right(self, numbers: Sequence[int], log_probs: Tensor) -> NDArray[np.bool_]:
        """Whether the answer is more probable than any other closing bracket: a tie is wrong."""
        answers = torch.from_numpy(self.answers[list(numbers)])[:, None]
        of_answer = log_probs.gather(1, answers)[:, 0]
        of_others = log_probs.scatter(1, answers, -torch.inf).amax(1)
        return (of_answer > of_others).numpy()


def wilson_interval(successes: int, trials: int, z: float = 1.959964) -> tuple[float, float]:
    """Wilson's score interval of a proportion, by default of 95%.

    >>> low, high = wilson_interval(500, 500)
    >>> round(low, 4), round(high, 4)
    (0.9924, 1.0)
    """
    if not 0 <= successes <= trials or trials == 0:
        raise ValueError(f"expected 0 <= successes <= trials, got {successes} of {trials}")
    share = successes / trials
    centre = share + z * z / (2 * trials)
    spread = z * math.sqrt(share * (1 - share) / trials + z * z / (4 * trials * trials))
    scale = 1 + z * z / trials
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)
