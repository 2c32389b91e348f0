"""Word-synchronous beam search for models that read brackets (Stern, Fried and Klein, 2017).

Shapes: B sentences, N entries (:mod:`pushdown_lm.search.bracket_cells`), M successors, L labels.

Prefixes of different numbers of brackets cannot be compared by their probabilities, so entries meet
at words: from the entries that have read word t - 1, brackets are read until enough entries can
read word t, and the best of these go on. While brackets are read, all successors of a sentence's
entries compete for the *action beam*. Successors that read the word have its small probability on
them and would lose against brackets, so the best of them bypass the competition on a *fast track*.
The round of a sentence ends when as many entries as the action beam holds have arrived at the word,
or none is left, or the limit of brackets is reached; then the *word beam* cuts the arrivals.

The arrivals at word t, before they are cut, sum to the prefix probability Z_t, so the surprisal of
the word is ``log Z_{t-1} - log Z_t``. EOS is the last word, read when all is closed, and Z_{n+1} is
p(x). With wide beams this is exact for trees of at most ``max_actions`` brackets between two words.

What is dropped is added up as in :mod:`pushdown_lm.search.beam`: p(x) lies between the beam's sum
and that plus all that was dropped. ``lost_nats`` estimates the loss from shares: of what was
dropped before a word, in the probability that the round started with; of dropped arrivals, in Z_t.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from pushdown_lm.model.bracket_modeling import BracketForCausalLM
from pushdown_lm.model.packed_linear import packed_linears
from pushdown_lm.search.beam import (
    MAX_BEAM,
    ScoredTree,
    SearchError,
    SearchResult,
    _best_by_sentence,
    _log_add,
    _sum_by_sentence,
    check_sentence,
)
from pushdown_lm.search.bracket_cells import UNUSED, CellDecoder, Entries, join_entries
from pushdown_lm.trees import Tree, merge_pieces
from pushdown_lm.trees.linearization import CLOSE, TOKEN, tree_from_actions

DEFAULT_BATCH_ENTRIES = 300
"""Entries that are decoded at once, as far as that is known beforehand."""


@dataclass(frozen=True)
class WordBeam:
    """How much search keeps of a sentence."""

    actions: int = 100
    """Entries while brackets are read."""
    words: int = 10
    """Entries after each word."""
    fast: int = 5
    """Entries that may read the word after each bracket, whatever their rank."""
    max_actions: int = 50
    """Brackets between two words, and after the last."""

    def __post_init__(self) -> None:
        for name in ("actions", "words", "fast"):
            if not 1 <= getattr(self, name) <= MAX_BEAM:
                raise SearchError(
                    f"beam: expected 1 to {MAX_BEAM:,} {name}, got {getattr(self, name)}"
                )

    @classmethod
    def of(cls, beam: int) -> WordBeam:
        """An action beam of this size, with the others in the proportions of the default."""
        return cls(beam, max(1, beam // 10), max(1, beam // 20))


@dataclass(frozen=True, slots=True)
class BracketResult(SearchResult):
    """The beam of one sentence after EOS.

    ``histories`` are the actions of each entry (:mod:`pushdown_lm.trees.linearization`), filled up
    with ``UNUSED``. After the last closer EOS has probability 1, so ``log_open_joints`` are the
    joints themselves; ``hidden`` is empty.
    """

    labels: tuple[str, ...] = ()

    def actions(self, entry: int) -> list[int]:
        """The actions of an entry."""
        return [action for action in self.histories[entry].tolist() if action != UNUSED]

    def trees(
        self, words: Sequence[str], piece_counts: Sequence[int] | None = None
    ) -> list[ScoredTree]:
        """The distinct labeled trees of the beam, best first; pieces of words are merged."""
        found: dict[Tree, float] = defaultdict(lambda: -math.inf)
        for entry, log_joint in enumerate(self.log_joints):
            pieces = words if piece_counts is None else None
            tree = tree_from_actions(self.actions(entry), self.labels, pieces)
            if piece_counts is not None:
                tree = merge_pieces(tree, piece_counts, words)
            found[tree] = _log_add(found[tree], log_joint)
        best_first = sorted(found.items(), key=lambda item: -item[1])
        return [ScoredTree(tree, log_prob) for tree, log_prob in best_first]


def word_search(
    model: BracketForCausalLM,
    sentences: Sequence[Sequence[int]],
    *,
    beam: WordBeam | None = None,
    threshold: float | None = None,
    batch_entries: int = DEFAULT_BATCH_ENTRIES,
) -> list[BracketResult]:
    """Search the bracketings of sentences, given as token ids without BOS and EOS.

    Args:
        threshold: drop entries whose log-probability is further than this below the best one: of
            the entries that the round started with while brackets are read, of the arrivals when
            these are cut.
        batch_entries: about how many entries are decoded at once.
    """
    results: dict[int, BracketResult] = {}
    for batch in word_search_batches(
        model, sentences, beam=beam, threshold=threshold, batch_entries=batch_entries
    ):
        results.update(batch)
    return [results[number] for number in range(len(sentences))]


def word_search_batches(
    model: BracketForCausalLM,
    sentences: Sequence[Sequence[int]],
    *,
    beam: WordBeam | None = None,
    threshold: float | None = None,
    batch_entries: int = DEFAULT_BATCH_ENTRIES,
) -> Iterator[dict[int, BracketResult]]:
    """As :func:`word_search`, batch by batch, results by the sentence's number."""
    if threshold is not None and not threshold >= 0:
        raise SearchError(f"threshold: expected 0 nats or more, got {threshold}")
    beam = beam or WordBeam()
    for number, sentence in enumerate(sentences, start=1):
        check_sentence(sentence, model.config.max_positions, f"sentence {number}")
    waiting = sorted(range(len(sentences)), key=lambda number: -len(sentences[number]))
    entries = float(beam.actions if threshold is None else beam.words)
    model.eval()
    while waiting:
        size = max(1, int(batch_entries / entries))
        batch, waiting = waiting[:size], waiting[size:]
        search = _Search(model, [sentences[number] for number in batch], beam, threshold)
        with packed_linears(model):
            results = search.run()
        yield dict(zip(batch, results, strict=True))
        entries = max(1.0, search.decoder.num_read / search.decoder.num_steps / len(batch))


@dataclass(slots=True)
class _Successors:
    """What the entries of a step may do next; all tensors are ``(M,)``."""

    entry: Tensor
    action: Tensor
    score: Tensor
    """The entry's, and the action's log-probability."""
    sentence: Tensor

    def select(self, index: Tensor) -> _Successors:
        return _Successors(
            self.entry[index], self.action[index], self.score[index], self.sentence[index]
        )


class _Search:
    """The search of one batch."""

    def __init__(
        self,
        model: BracketForCausalLM,
        sentences: Sequence[Sequence[int]],
        beam: WordBeam,
        threshold: float | None,
    ) -> None:
        self.model, self.beam, self.threshold = model, beam, threshold
        self.count, device = len(sentences), model.device
        self.ends = torch.tensor(list(map(len, sentences)), device=device)
        shape = self.count, int(self.ends.max()) + 1
        tokens = torch.full(shape, model.config.eos_token_id or 0, device=device)
        for row, sentence in enumerate(sentences):
            tokens[row, : len(sentence)] = torch.tensor(sentence, device=device)
        self.decoder = CellDecoder(model, tokens)
        self.log_prefixes = torch.zeros(shape, dtype=torch.float64, device=device)
        self.log_dropped = torch.full((self.count,), -torch.inf, dtype=torch.float64, device=device)
        self.lost_nats = torch.zeros_like(self.log_dropped)
        self.num_cells = torch.zeros_like(self.ends)

    @torch.inference_mode()
    def run(self) -> list[BracketResult]:
        results: dict[int, BracketResult] = {}
        entries = self.decoder.start()
        for word in range(self.log_prefixes.shape[1]):
            is_last = self.ends == word
            arrived = self._round(entries, is_last)
            self.log_prefixes[:, word] = self._sum(arrived)
            if not self.log_prefixes[self.ends >= word, word].isfinite().all():
                raise SearchError(
                    f"expected a bracketing of at most {self.beam.max_actions} brackets between "
                    "two words, found none"
                )
            for number in is_last.nonzero()[:, 0].tolist():
                own = arrived.select(arrived.sentence == number)
                results[number] = self._result(own, number)
            arrived = arrived.select(~is_last[arrived.sentence])
            if not len(arrived.sentence):
                break
            kept = self._best(arrived, self.beam.words, self.threshold)
            self._drop(arrived, kept, self.log_prefixes[:, word])
            entries = self._step(arrived.select(kept), torch.full_like(kept, TOKEN))
            entries = self.decoder.drop_cells(entries)
        return [results[number] for number in range(self.count)]

    def _round(self, entries: Entries, is_last: Tensor) -> Entries:
        """The entries that arrive at the next word, with its probability but before reading it."""
        mass = self._sum(entries)
        best = mass.new_full((self.count,), -torch.inf)
        best = best.scatter_reduce(0, entries.sentence, entries.score, "amax")
        num_arrived = torch.zeros_like(self.ends)
        arrived: list[Entries] = []
        losers: list[_Successors] = []
        for number in range(self.beam.max_actions + 1):
            read, brackets = self._successors(entries, is_last)
            reading, acting = self._compete(read, brackets)
            arrivals = read.select(reading)
            arrived.append(replace(entries.select(arrivals.entry), score=arrivals.score))
            losers.append(read.select(_others(reading, len(read.score))))
            num_arrived += arrivals.sentence.bincount(minlength=self.count)
            if number == self.beam.max_actions:
                acting = acting[:0]
            acting = acting[self._may_go_on(brackets.select(acting), best, num_arrived)]
            self._drop(brackets, acting, mass)
            if not len(acting):
                break
            chosen = brackets.select(acting)
            entries = replace(entries.select(chosen.entry), score=chosen.score)
            entries = self._step(entries, chosen.action)
        found = join_entries(arrived)
        none = self.ends[:0]
        for lost in losers:
            self._drop(lost, none, self._sum(found))
        return found

    def _successors(self, entries: Entries, is_last: Tensor) -> tuple[_Successors, _Successors]:
        """What reads the next word, and what opens or closes a constituent.

        After the last word nothing is opened: it could never be closed.
        """
        opens = entries.opens.masked_fill(is_last[entries.sentence, None], -torch.inf)
        scores = torch.cat([opens, entries.closes[:, None]], 1) + entries.score[:, None]
        entry, slot = scores.isfinite().nonzero(as_tuple=True)
        brackets = _Successors(
            entry=entry,
            action=torch.where(slot < opens.shape[1], slot + 1, CLOSE),
            score=scores[entry, slot],
            sentence=entries.sentence[entry],
        )
        score = entries.reads + entries.score
        entry = score.isfinite().nonzero()[:, 0]
        read = _Successors(
            entry, torch.full_like(entry, TOKEN), score[entry], entries.sentence[entry]
        )
        return read, brackets

    def _compete(self, read: _Successors, brackets: _Successors) -> tuple[Tensor, Tensor]:
        """Which of both kinds are kept: by the fast track, or among the best of all others."""
        fast = self._best(read, self.beam.fast)
        slow = _others(fast, len(read.score))
        both = _Successors(
            *(
                torch.cat([getattr(read, name)[slow], getattr(brackets, name)])
                for name in ("entry", "action", "score", "sentence")
            )
        )
        kept = self._best(both, self.beam.actions)
        is_read = kept < len(slow)
        return torch.cat([fast, slow[kept[is_read]]]), kept[~is_read] - len(slow)

    def _may_go_on(self, brackets: _Successors, best: Tensor, num_arrived: Tensor) -> Tensor:
        """Whether each bracket is read: its round is not over, and it is not below the threshold.

        Before anything has arrived, the threshold is below the best of the step.
        """
        waits = num_arrived[brackets.sentence] < self.beam.actions
        if self.threshold is None:
            return waits
        here = torch.full_like(best, -torch.inf)
        here = here.scatter_reduce(0, brackets.sentence, brackets.score, "amax")
        reference = torch.where(num_arrived > 0, best, here)
        return waits & (brackets.score >= reference[brackets.sentence] - self.threshold)

    def _step(self, entries: Entries, action: Tensor) -> Entries:
        limit = self.model.config.max_positions
        if limit is not None and int(entries.length.max()) >= limit:
            raise SearchError(f"expected bracketings of at most {limit} symbols, found longer ones")
        self.num_cells += entries.sentence.bincount(minlength=self.count)
        return self.decoder.step(entries, action)

    def _best(
        self, entries: Entries | _Successors, size: int, threshold: float | None = None
    ) -> Tensor:
        return _best_by_sentence(entries.score, entries.sentence, self.count, size, threshold)

    def _sum(self, entries: Entries) -> Tensor:
        return _sum_by_sentence(entries.score, entries.sentence, self.count)

    def _drop(self, entries: Entries | _Successors, kept: Tensor, log_total: Tensor) -> None:
        """Count all but those kept as dropped, a share of the total ``(B,)`` of their sentence."""
        share = (entries.score - log_total[entries.sentence]).exp()
        share[kept] = 0.0
        share = torch.zeros_like(log_total).index_add(0, entries.sentence, share)
        log_share = share.log() + log_total
        self.log_dropped = torch.where(
            share > 0, torch.logaddexp(self.log_dropped, log_share), self.log_dropped
        )
        self.lost_nats -= torch.log1p(-share.clamp(max=1.0))

    def _result(self, entries: Entries, number: int) -> BracketResult:
        log_prefixes = self.log_prefixes[number, : int(self.ends[number]) + 1]
        order = entries.score.argsort(descending=True, stable=True)
        log_joints = tuple(entries.score[order].tolist())
        return BracketResult(
            log_prefixes=tuple(log_prefixes.tolist()),
            histories=entries.actions[order],
            log_joints=log_joints,
            log_open_joints=log_joints,
            hidden=entries.score.new_empty(len(order), 0),
            log_dropped=float(self.log_dropped[number]),
            lost_nats=float(self.lost_nats[number]),
            num_cells=int(self.num_cells[number]),
            labels=self.model.config.nonterminals.labels,
        )


def _others(index: Tensor, count: int) -> Tensor:
    """The numbers below ``count`` that are not in an index."""
    is_other = torch.ones(count, dtype=torch.bool, device=index.device)
    is_other[index] = False
    return is_other.nonzero()[:, 0]
