"""Beam search over parses: marginals, prefix probabilities, parses and posteriors (section 3.3).

Shapes: B sentences, N entries (the beams of all sentences, one after another), M expansions,
C candidate slots, L positions read.

A *history* is the attachments r_1 .. r_n of a sentence x_1 .. x_n. With EOS as x_{n+1},

    p(x, r) = prod_t p(x_t | x_<t, r_<t)  prod_t p(r_t | x_<=t, r_<t)
    p(x)    = sum_r p(x, r),  approximated by the sum over the beam

Step t first multiplies every entry by the probability of x_t. At this point, before x_t's
attachment is chosen, the beam sums to the prefix probability Z_t, so the surprisal of x_t is
``log Z_{t-1} - log Z_t`` and the surprisals of a sentence add up to ``-log p(x)``. Then every entry
branches into its legal attachments, and each sentence keeps its best. Entries have distinct
histories from the start, since each one branches into distinct attachments.

**What is left out.** An expansion of probability m that is dropped at step t can add at most m to
p(x), since all later factors are at most 1. Hence ``beam <= p(x) <= beam + dropped``, where
``dropped`` adds up all that was dropped. This holds always, but is far from tight: the longer the
rest of the sentence, the smaller is p(x) beside a prefix's probability. ``lost_nats`` therefore
also tells the *share* of the prefix probability that was dropped, as nats of log p(x): an estimate,
right if the dropped parses predict the rest of the sentence as well as the kept ones do.

A wider beam keeps more of each step, but no beam search is monotone: an entry that the wider beam
admits may push out a better one later. Only a beam that drops nothing is exact.
"""

from __future__ import annotations

import html
import math
from collections import defaultdict
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pushdown_lm import viz
from pushdown_lm.errors import PushdownError
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.search.decoder import EntryDecoder, entry_decoder
from pushdown_lm.search.defaults import DEFAULT_BEAM
from pushdown_lm.trees import Span, Tree, merge_pieces, to_brackets
from pushdown_lm.trees.oracle import Stack, tree_from_attachments

MAX_BEAM = 10**9
DEFAULT_BATCH_CELLS = 65536
"""Cells, (sentence, entry, token), that are searched at once."""
SHOWN_TREES = 5
"""Trees that notebooks list."""


class SearchError(PushdownError):
    """A sentence or a model that cannot be searched."""


@dataclass(frozen=True, slots=True)
class ScoredTree:
    """A tree with its log-probability (natural log)."""

    tree: Tree
    log_prob: float
    """log p(x, tree), summed over the histories of the beam that close to this tree."""
    history: tuple[int, ...] = field(default=(), compare=False, repr=False)
    """The most probable of these histories."""

    def _repr_html_(self) -> str:
        """What notebooks show."""
        bits = self.log_prob / math.log(2)
        return f"{self.tree._repr_html_()}<div>log2 p(x, tree) = {bits:.2f}</div>"


@dataclass(frozen=True, slots=True)
class SearchResult:
    """The beam of one sentence after EOS. All logarithms are natural."""

    log_prefixes: tuple[float, ...]
    """log Z_t for t = 1 .. n + 1; the last, EOS included, is the marginal log p(x)."""
    histories: Tensor
    """``(K, n)``: the attachments of the words of each entry, best entry first."""
    log_joints: tuple[float, ...]
    """log p(x, r) of each entry."""
    log_open_joints: tuple[float, ...]
    """The same without EOS: log p(x_1 .. x_n, r), for sentences that go on."""
    hidden: Tensor
    """``(K, d)``: of each entry, the last hidden state that its next token is predicted from."""
    log_dropped: float
    """Log of all probability that the beam and the threshold dropped; -inf if nothing was."""
    lost_nats: float
    """What was dropped, in nats of log p(x), if it predicts as well as what was kept."""
    num_cells: int
    """How many (entry, token) pairs were decoded."""

    @property
    def log_prob(self) -> float:
        """log p(x): the marginal over the beam."""
        return self.log_prefixes[-1]

    @property
    def log_prob_bound(self) -> float:
        """The exact log p(x) lies in ``log_prob .. log_prob + log_prob_bound``."""
        excess = self.log_dropped - self.log_prob
        return (
            excess + math.log1p(math.exp(-excess)) if excess > 0 else math.log1p(math.exp(excess))
        )

    @property
    def surprisals(self) -> tuple[float, ...]:
        """-log p(x_t | x_<t) in nats, t = 1 .. n + 1, EOS last."""
        before = (0.0, *self.log_prefixes[:-1])
        return tuple(a - b for a, b in zip(before, self.log_prefixes, strict=True))

    def trees(
        self, words: Sequence[str], piece_counts: Sequence[int] | None = None
    ) -> list[ScoredTree]:
        """The distinct trees of the beam, best first.

        EOS closes what a history leaves open, so several histories may end as one tree; their
        probabilities add up. Where words are made of several tokens, ``piece_counts`` tells how
        many, and trees over tokens that agree on the words are one tree over words.
        """
        closed: dict[Tree, float] = defaultdict(lambda: -math.inf)
        best: dict[Tree, tuple[int, ...]] = {}
        pieces = words if piece_counts is None else [""] * sum(piece_counts)
        for history, log_joint in zip(self.histories.tolist(), self.log_joints, strict=True):
            tree = tree_from_attachments([0, *history, 0], pieces)
            if piece_counts is not None:
                tree = merge_pieces(tree, piece_counts, words)
            tree = Tree(tuple(words), tuple(tree.spans))
            closed[tree] = _log_add(closed[tree], log_joint)
            best.setdefault(tree, tuple(history))
        best_first = sorted(closed.items(), key=lambda item: -item[1])
        return [ScoredTree(tree, log_prob, best[tree]) for tree, log_prob in best_first]

    def _repr_html_(self) -> str:
        """What notebooks show; tokens have no names here, only their positions."""
        words = [str(position) for position in range(1, self.histories.shape[1] + 1)]
        return self.show(words, [nats / math.log(2) for nats in self.surprisals[:-1]])

    def show(
        self,
        words: Sequence[str],
        bits: Sequence[float],
        piece_counts: Sequence[int] | None = None,
    ) -> str:
        """HTML of the best tree over the words, with their surprisals, and a table of the others.

        ``piece_counts`` as in :meth:`trees`.
        """
        trees = self.trees(words, piece_counts)
        rows = "".join(
            f"<tr><td>{math.exp(scored.log_prob - self.log_prob):.3f}</td>"
            f"<td style='text-align:left'>{html.escape(to_brackets(scored.tree))}</td></tr>"
            for scored in trees[:SHOWN_TREES]
        )
        return (
            f"{viz.parse(trees[0].tree, bits)}<table><caption>log2 p(x) = "
            f"{self.log_prob / math.log(2):.2f}; the most probable of {len(trees)} parses</caption>"
            f"<tr><th>probability</th><th style='text-align:left'>parse</th></tr>{rows}</table>"
        )


def posteriors(trees: Sequence[ScoredTree]) -> dict[Span, float]:
    """The probability of each constituent, given the sentence and that its parse is in the beam.

    >>> left, right = Tree("abc", ((0, 2), (0, 3))), Tree("abc", ((1, 3), (0, 3)))
    >>> beam = [ScoredTree(left, math.log(0.06)), ScoredTree(right, math.log(0.02))]
    >>> {span: round(probability, 2) for span, probability in posteriors(beam).items()}
    {(0, 2): 0.75, (0, 3): 1.0, (1, 3): 0.25}
    """
    total = -math.inf
    for scored in trees:
        total = _log_add(total, scored.log_prob)
    constituents: dict[Span, float] = defaultdict(float)
    for scored in trees:
        for span in scored.tree.spans:
            constituents[span] += math.exp(scored.log_prob - total)
    return dict(sorted(constituents.items()))


def search(
    model: PushdownForCausalLM,
    sentences: Sequence[Sequence[int]],
    *,
    beam: int = DEFAULT_BEAM,
    threshold: float | None = None,
    batch_cells: int = DEFAULT_BATCH_CELLS,
) -> list[SearchResult]:
    """Search the parses of sentences, given as token ids without BOS and EOS.

    Args:
        beam: entries that a sentence keeps.
        threshold: drop entries whose log-probability is further than this below the best entry's.
        batch_cells: how many (sentence, entry, token) cells a batch of sentences of like length may
            have. Beams count as full, unless a threshold prunes them: then they count as the
            largest of the batch before.
    """
    results: dict[int, SearchResult] = {}
    for batch in search_batches(
        model, sentences, beam=beam, threshold=threshold, batch_cells=batch_cells
    ):
        results.update(batch)
    return [results[number] for number in range(len(sentences))]


def search_batches(
    model: PushdownForCausalLM,
    sentences: Sequence[Sequence[int]],
    *,
    beam: int = DEFAULT_BEAM,
    threshold: float | None = None,
    batch_cells: int = DEFAULT_BATCH_CELLS,
) -> Iterator[dict[int, SearchResult]]:
    """As :func:`search`, batch by batch, results by the sentence's number."""
    check_search(model, sentences, beam, threshold)
    waiting = sorted(range(len(sentences)), key=lambda number: -len(sentences[number]))
    entries = float(beam)
    training = model.training
    model.eval()
    try:
        while waiting:
            cells = entries * (len(sentences[waiting[0]]) + 1)
            size = max(1, int(batch_cells / cells))
            batch, waiting = waiting[:size], waiting[size:]
            found = _search_batch(model, [sentences[number] for number in batch], beam, threshold)
            yield dict(zip(batch, found, strict=True))
            if threshold is not None:
                entries = max(result.num_cells / len(result.log_prefixes) for result in found)
    finally:
        model.train(training)


def check_search(
    model: PushdownForCausalLM,
    sentences: Sequence[Sequence[int]],
    beam: int,
    threshold: float | None,
) -> None:
    """Raise :class:`SearchError` for what cannot be searched."""
    if model.head is None:
        raise SearchError(
            "expected a model with an attachment head, which chooses parses; this one has none"
        )
    if not 1 <= beam <= MAX_BEAM:
        raise SearchError(f"beam: expected 1 to {MAX_BEAM:,} entries, got {beam}")
    if threshold is not None and not threshold >= 0:
        raise SearchError(f"threshold: expected 0 nats or more, got {threshold}")
    limit = model.config.max_positions
    for number, sentence in enumerate(sentences, start=1):
        check_sentence(sentence, limit, f"sentence {number}")


def check_sentence(sentence: Sequence[int], max_positions: int | None, place: str) -> None:
    """Raise :class:`SearchError` for an empty sentence or one that is longer than the positions."""
    if len(sentence) == 0:
        raise SearchError(f"{place}: expected a sentence of at least one token, got an empty one")
    if max_positions is not None and len(sentence) + 1 > max_positions:
        raise SearchError(
            f"{place}: expected at most {max_positions - 1} tokens (the model's positions less "
            f"ROOT), got {len(sentence)}"
        )


@torch.inference_mode()
def log_joint(
    model: PushdownForCausalLM, sentence: Sequence[int], attachments: Sequence[int]
) -> float:
    """log p(x, r) of one sentence, EOS included, and its attachments ``[0, r_1, ..., r_n, 0]``."""
    check_search(model, [sentence], beam=1, threshold=None)
    config, device = model.config, model.device
    ids = torch.tensor([config.bos_token_id, *sentence, config.eos_token_id], device=device)
    history = torch.tensor(attachments, device=device)
    output = model.eval()(ids[None, :-1], attachments=history[None, :-1])
    assert output.logits is not None
    assert output.attachment_logits is not None
    assert output.attachment_targets is not None
    tokens = output.logits[0].double().log_softmax(-1).gather(-1, ids[1:, None])
    decided = output.attachment_targets[0] >= 0
    scores = output.attachment_logits[0, decided].double().log_softmax(-1)
    chosen = scores.gather(-1, output.attachment_targets[0, decided, None])
    return float(tokens.sum() + chosen.sum())


# ------------------------------------------------------------------ the beam of a batch


@dataclass(slots=True)
class _Beam:
    """The entries of all sentences of a batch that have not ended, in order of sentence, then of
    score."""

    sentence: Tensor
    """``(N,)``."""
    score: Tensor
    """``(N,)`` float64: log p(x_<=t, r_<=t)."""
    stack: Stack
    history: Tensor
    """``(N, t)``: the attachments so far."""

    def select(self, index: Tensor) -> _Beam:
        return _Beam(
            self.sentence[index],
            self.score[index],
            self.stack.select(index),
            self.history[index],
        )


@dataclass(frozen=True, slots=True)
class Expansions:
    """The legal attachments of x_t by all entries, M of them."""

    score: Tensor
    """``(M,)``: log p(x_<=t, r_<=t)."""
    parent: Tensor
    """``(M,)``: the entry that each one continues."""
    attachment: Tensor
    """``(M,)``: r_t."""
    kept: Tensor
    """Those that are kept, in order of sentence, then of score."""


@dataclass(frozen=True, slots=True)
class Moment:
    """A search between two tokens: N entries have read x_t."""

    position: int
    """t."""
    decoder: EntryDecoder
    log_prefix: Tensor
    """``(B,)``: log Z_t."""
    log_before: Tensor
    """``(N,)``: log p(x_<t, r_<t)."""
    score: Tensor
    """``(N,)``: log p(x_<=t, r_<t)."""
    histories: Tensor
    """``(N, t - 1)``: r_<t."""
    expansions: Expansions | None
    """What x_t may attach to; None where the last sentence has ended."""


def _search_batch(
    model: PushdownForCausalLM,
    sentences: Sequence[Sequence[int]],
    beam_size: int,
    threshold: float | None,
) -> list[SearchResult]:
    moments = search_moments(model, sentences, beam_size, threshold)
    while True:
        try:
            next(moments)
        except StopIteration as end:
            return end.value


@torch.inference_mode()
def search_moments(
    model: PushdownForCausalLM,
    sentences: Sequence[Sequence[int]],
    beam_size: int,
    threshold: float | None,
    *,
    keep_predictions: bool = False,
) -> Generator[Moment, None, list[SearchResult]]:
    """The search of one batch, stopping after each token; it returns the results.

    ``keep_predictions`` makes the decoder's :meth:`EntryDecoder.prediction` of x_t available.
    """
    config, device = model.config, model.device
    count, width = len(sentences), max(map(len, sentences)) + 2
    input_ids = torch.full((count, width), config.eos_id, device=device)
    input_ids[:, 0] = config.bos_id
    for row, tokens in enumerate(sentences):
        input_ids[row, 1 : len(tokens) + 1] = torch.tensor(tokens, device=device)
    end = torch.tensor([len(tokens) + 1 for tokens in sentences], device=device)

    every = torch.arange(count, device=device)
    beam = _Beam(
        sentence=every,
        score=torch.zeros(count, dtype=torch.float64, device=device),
        stack=Stack.start(count, device),
        history=torch.empty(count, 0, dtype=torch.long, device=device),
    )
    log_prefixes = torch.zeros(count, width, dtype=torch.float64, device=device)
    dropped = torch.zeros_like(log_prefixes)  # share of Z_t
    num_cells = torch.zeros(count, dtype=torch.long, device=device)
    ended: dict[int, tuple[_Beam, Tensor, Tensor]] = {}

    with entry_decoder(model, input_ids, keep_predictions=keep_predictions) as decoder:
        parent = every
        for position in range(1, width):
            hidden, log_prob = decoder.step(beam.sentence, parent, beam.stack)
            num_cells += beam.sentence.bincount(minlength=count)
            open_score, beam.score = beam.score, beam.score + log_prob
            log_prefix = _sum_by_sentence(beam.score, beam.sentence, count)
            log_prefixes[:, position] = log_prefix

            ends = end[beam.sentence] == position
            for number in (end == position).nonzero()[:, 0].tolist():
                own = beam.sentence == number
                ended[number] = beam.select(own), open_score[own], hidden[own]
            if ends.all():
                yield Moment(
                    position, decoder, log_prefix, open_score, beam.score, beam.history, None
                )
                break
            following = decoder.next_tokens(beam.sentence, position)
            scores, index, legal = model.score_candidates(
                beam.stack, hidden, following, decoder.keys
            )
            expanded = beam.score[:, None] + scores
            choices = (legal & ~ends[:, None]).flatten().nonzero()[:, 0]  # (M,)
            score = expanded.flatten()[choices]
            entry = choices.div(legal.shape[1], rounding_mode="floor")
            attachment = index.flatten()[choices]
            sentence = beam.sentence[entry]
            kept = _best_by_sentence(score, sentence, count, beam_size, threshold)
            dropped[:, position] = _dropped_share(score, sentence, kept, log_prefix)
            yield Moment(
                position,
                decoder,
                log_prefix,
                open_score,
                beam.score,
                beam.history,
                Expansions(score, entry, attachment, kept),
            )

            parent, attachment = entry[kept], attachment[kept]
            beam = beam.select(parent)
            beam.score = score[kept]
            beam.stack = beam.stack.step(attachment)
            beam.history = torch.cat([beam.history, attachment[:, None]], 1)

    return [
        _result(*ended[number], log_prefixes[number], dropped[number], int(num_cells[number]))
        for number in range(count)
    ]


def _sum_by_sentence(score: Tensor, sentence: Tensor, count: int) -> Tensor:
    """Log of the summed probabilities ``(B,)``; -inf for sentences without entries."""
    largest = score.new_full((count,), -torch.inf).scatter_reduce(0, sentence, score, "amax")
    shift = largest.nan_to_num(neginf=0.0)
    total = score.new_zeros(count).index_add(0, sentence, (score - shift[sentence]).exp())
    return total.log() + shift


def _best_by_sentence(
    score: Tensor, sentence: Tensor, count: int, size: int, threshold: float | None
) -> Tensor:
    """Which of the expansions ``(M,)`` to keep, in order of sentence, then of score."""
    order = score.argsort(descending=True, stable=True)
    order = order[sentence[order].argsort(stable=True)]
    sentence = sentence[order]
    first = torch.searchsorted(sentence, torch.arange(count, device=score.device))
    keep = torch.arange(len(order), device=score.device) - first[sentence] < size
    if threshold is not None:
        best = score[order][first[sentence]]
        keep &= score[order] >= best - threshold
    return order[keep]


def _dropped_share(score: Tensor, sentence: Tensor, kept: Tensor, log_prefix: Tensor) -> Tensor:
    """How much of the prefix probabilities ``(B,)`` the expansions have that are not kept."""
    share = (score - log_prefix[sentence]).exp()
    share[kept] = 0.0
    return torch.zeros_like(log_prefix).index_add(0, sentence, share)


def check_finite(log_prefixes: Tensor) -> None:
    """Raise :class:`SearchError` unless all prefixes have a probability."""
    if not log_prefixes.isfinite().all():
        raise SearchError(
            "expected finite probabilities, got NaN or infinity: the model's weights are broken"
        )


def _result(
    beam: _Beam,
    open_score: Tensor,
    hidden: Tensor,
    log_prefixes: Tensor,
    dropped: Tensor,
    num_cells: int,
) -> SearchResult:
    end = beam.history.shape[1] + 2
    log_prefixes, dropped = log_prefixes[1:end], dropped[1:end]
    check_finite(log_prefixes)
    order = beam.score.argsort(descending=True, stable=True)
    return SearchResult(
        log_prefixes=tuple(log_prefixes.tolist()),
        histories=beam.history[order],
        log_joints=tuple(beam.score[order].tolist()),
        log_open_joints=tuple(open_score[order].tolist()),
        hidden=hidden[order],
        log_dropped=float((dropped.log() + log_prefixes).logsumexp(0)),
        lost_nats=float((-torch.log1p(-dropped.clamp(max=1.0))).sum()),
        num_cells=num_cells,
    )


def _log_add(a: float, b: float) -> float:
    larger, smaller = max(a, b), min(a, b)
    return larger if smaller == -math.inf else larger + math.log1p(math.exp(smaller - larger))
