"""Trees to token ids and attachments, a chunk of trees at a time.

A sentence is `<s> tokens </s>` with the attachments `[0, r_1, ..., r_n, 0]`; no tape is stored,
since a model builds it from the attachments. Where labels are kept, the actions that build the
labeled tree stand beside them (:mod:`pushdown_lm.trees.linearization`), BOS and EOS being tokens.
Nothing here depends on the process that runs it.
"""

from __future__ import annotations

import json
import multiprocessing
import os
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import accumulate, chain
from pathlib import Path
from threading import Thread
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from pushdown_lm.data.tokenization import EncoderSettings, UnusableTreeError, WordEncoder
from pushdown_lm.errors import PushdownError
from pushdown_lm.files import atomic_write
from pushdown_lm.trees import Errors, Span, Tree, drop_words
from pushdown_lm.trees.linearization import TOKEN, actions_from_tree
from pushdown_lm.trees.oracle import attachments_from_tree, join_windows

Binarization = Literal["right", "left"]
Integers = NDArray[np.int32]


class DataError(PushdownError):
    """A dataset that cannot be built or read."""


class Sentence(NamedTuple):
    """Token ids and attachments of a sentence or a window."""

    input_ids: Sequence[int]
    attachments: Sequence[int]
    actions: Sequence[int] = ()
    """What builds the labeled tree, where labels are kept."""


class ParseShape(NamedTuple):
    """How much of its stack and tape a sentence needs."""

    depth: int
    """The largest entry of the tape, after EOS has closed the sentence."""
    stack_size: int
    """The largest number of constituents on the stack above ROOT."""


def attach_pieces(attachments: Sequence[int], piece_counts: Sequence[int]) -> list[int]:
    """Attachments of tokens from those of words, whose tokens form right-branching subtrees.

    All tokens of a word but the last shift. The last closes the word: it attaches where the word
    does, to the last token there, or, where the word shifts, to the word's own first token.
    The result equals `attachments_from_tree` of the tree from `trees.split_words`.

    "The un|happ|y dog", with the parse (The (unhappy dog)):

    >>> attach_pieces([0, 1, 2, 1, 0], [1, 3, 1])
    [0, 1, 2, 3, 2, 1, 0]
    """
    last = list(accumulate(piece_counts, initial=0))
    tokens = [0]
    for word in range(1, len(last)):
        first = last[word - 1] + 1
        tokens.extend(range(first, last[word]))
        attachment = attachments[word]
        tokens.append(first if attachment == word else last[attachment])
    tokens.append(0)
    return tokens


def attach_tokens(
    tree: Tree, piece_counts: Sequence[int], binarize: Binarization = "right"
) -> list[int]:
    """Attachments of the tokens of a tree; words without tokens of their own are left out."""
    if not all(piece_counts):
        tree = drop_words(tree, [count > 0 for count in piece_counts])
        piece_counts = [count for count in piece_counts if count]
    return attach_pieces(attachments_from_tree(tree, binarize), piece_counts)


def check_spans(spans: Sequence[Span], num_words: int) -> None:
    """Refuse spans that are not those of one tree over the words, in post-order."""
    maximal: list[Span] = []
    for start, end in spans:
        fits = 0 <= start <= end - 2 < num_words - 1
        if not fits or (maximal and (end < maximal[-1][1] or maximal[-1] == (start, end))):
            raise _no_tree((start, end))
        while maximal and maximal[-1][0] >= start:
            maximal.pop()
        if maximal and maximal[-1][1] > start:
            raise _no_tree((start, end))
        maximal.append((start, end))
    if num_words > 1 and maximal != [(0, num_words)]:
        raise UnusableTreeError(
            "spans that do not form a tree",
            f"expected a constituent over all {num_words} words, found {maximal}",
        )


def _no_tree(span: Span) -> UnusableTreeError:
    return UnusableTreeError(
        "spans that do not form a tree",
        f"expected nested spans in post-order, found {span} out of place",
    )


def parse_shape(attachments: Sequence[int]) -> ParseShape:
    """Depth and stack size of a sentence, in time linear in its length.

    A reduce adds one to every token of the two constituents that it joins, so the largest entry of
    the tape over a constituent is its height. EOS adds a reduce for every constituent that is left
    and one for ROOT.

    >>> parse_shape([0, 1, 1, 3, 2, 0])
    ParseShape(depth=4, stack_size=2)
    """
    ends: list[int] = []
    heights: list[int] = []
    stack_size = 0
    for position in range(1, len(attachments) - 1):
        attachment = attachments[position]
        height = 0
        if attachment != position:
            while ends and ends[-1] >= attachment:
                ends.pop()
                height = max(height, heights.pop()) + 1
        ends.append(position)
        heights.append(height)
        stack_size = max(stack_size, len(ends))
    closed = 0
    while heights:
        closed = max(closed, heights.pop()) + 1
    return ParseShape(closed + 1, stack_size)


# ------------------------------------------------------------------ chunks and shards


@dataclass(frozen=True)
class Chunk:
    """Trees that are encoded together."""

    source: str
    indices: Sequence[int]
    """The number of each tree in its source, from 1."""
    trees: Sequence[tuple[Sequence[str], Sequence[Span]]]
    labels: Sequence[Sequence[str] | None] | None = None
    """Of each tree, where labels are kept."""


@dataclass
class Tally:
    """What was counted while encoding."""

    trees: int = 0
    sentences: int = 0
    words: int = 0
    tokens: int = 0
    unknown_words: int = 0
    differing_sentences: int = 0
    """Sentences whose ids differ from those of their whole text."""
    merged_words: int = 0
    """Words without a token of their own: the one of the word before contains them."""
    skipped: Counter[str] = field(default_factory=Counter)
    depths: Counter[int] = field(default_factory=Counter)
    stack_sizes: Counter[int] = field(default_factory=Counter)

    def add(self, other: Tally) -> None:
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass(frozen=True)
class Shard:
    """The encoded sentences of a chunk, in order."""

    input_ids: Integers
    attachments: Integers
    lengths: Integers
    tally: Tally
    actions: Integers
    action_lengths: Integers
    """Of each sentence, all 0 where labels are not kept."""
    labels: Sequence[str]
    """What the actions number."""

    def __iter__(self) -> Iterator[Sentence]:
        ids, attachments = (_cut(run, self.lengths) for run in (self.input_ids, self.attachments))
        actions = _cut(self.actions, self.action_lengths)
        for columns in zip(ids, attachments, actions, strict=True):
            yield Sentence(columns[0], columns[1], columns[2] or ())

    def renumber(self, numbers: Mapping[str, int]) -> Shard:
        """The same with labels by these numbers."""
        table = _integers([0, *(numbers.get(label, -1) + 1 for label in self.labels)])
        actions = np.where(self.actions > 0, table[self.actions.clip(0)], self.actions)
        return replace(self, actions=actions, labels=tuple(numbers))

    def used_labels(self) -> list[str]:
        """The labels of its sentences, in the order in which they first occur."""
        numbers, first = np.unique(self.actions[self.actions > 0], return_index=True)
        return [self.labels[number - 1] for number in numbers[first.argsort()]]

    def save(self, path: Path) -> None:
        tally, labels = (np.array(json.dumps(note)) for note in (vars(self.tally), self.labels))
        arrays = {name: getattr(self, name) for name in _SHARD_COLUMNS}
        with atomic_write(path, "wb") as file:
            np.savez(file, tally=tally, labels=labels, **arrays)

    @classmethod
    def load(cls, path: Path) -> Shard:
        with np.load(path, allow_pickle=False) as arrays:
            counts = json.loads(str(arrays["tally"]))
            counts["skipped"] = Counter(counts["skipped"])
            for name in ("depths", "stack_sizes"):
                counts[name] = Counter({int(key): count for key, count in counts[name].items()})
            columns = {name: arrays[name] for name in _SHARD_COLUMNS}
            labels = json.loads(str(arrays["labels"]))
            return cls(tally=Tally(**counts), labels=labels, **columns)


_SHARD_COLUMNS = ("input_ids", "attachments", "lengths", "actions", "action_lengths")


def _cut(values: Integers, lengths: Integers) -> Iterator[list[int]]:
    """Runs of values, of these lengths."""
    run, start = values.tolist(), 0
    for length in lengths.tolist():
        yield run[start : start + length]
        start += length


@dataclass(frozen=True)
class ChunkEncoder:
    """How chunks become shards; plain values, so that it travels between processes."""

    settings: EncoderSettings
    binarize: Binarization
    max_length: int | None
    """Longest sentence in tokens, BOS and EOS included; longer ones are skipped and counted."""
    errors: Errors

    def start(self) -> ChunkEncoding:
        return ChunkEncoding(self)


class ChunkEncoding:
    """A :class:`ChunkEncoder` at work, with its tokenizer and its cache of words."""

    def __init__(self, options: ChunkEncoder) -> None:
        self.options = options
        self.encoder = WordEncoder(options.settings)

    def __call__(self, chunk: Chunk) -> Shard:
        tally = Tally(trees=len(chunk.trees))
        sentences: list[Sentence] = []
        texts: list[str] = []
        numbers: dict[str, int] = {}
        for row, (index, (words, spans)) in enumerate(zip(chunk.indices, chunk.trees, strict=True)):
            try:
                sentence, surfaces, shape, counts = self._encode(words, spans)
            except UnusableTreeError as error:
                if self.options.errors == "raise":
                    raise DataError(f"{chunk.source}, tree {index}: {error}") from None
                tally.skipped[error.reason] += 1
                continue
            if self.options.max_length and len(sentence.input_ids) > self.options.max_length:
                tally.skipped[f"longer than {self.options.max_length} tokens"] += 1
                continue
            if chunk.labels is not None:
                tree = Tree(words, spans, chunk.labels[row])
                actions = actions_from_tree(
                    tree, lambda label: numbers.setdefault(label, len(numbers)), counts
                )
                sentence = sentence._replace(actions=[TOKEN, *actions, TOKEN])
            sentences.append(sentence)
            texts.append("".join(surfaces))
            tally.words += len(words)
            tally.merged_words += counts.count(0)
            tally.depths[shape.depth] += 1
            tally.stack_sizes[shape.stack_size] += 1
        if self.options.settings.rule.unit == "word":
            for sentence, ids in zip(sentences, self.encoder.encode_texts(texts), strict=True):
                tally.differing_sentences += sentence.input_ids[1:-1] != ids
        return self._shard(sentences, tally, list(numbers))

    def _encode(
        self, words: Sequence[str], spans: Sequence[Span]
    ) -> tuple[Sentence, list[str], ParseShape, list[int]]:
        if not words:
            raise UnusableTreeError("no words", "expected a tree with words, found none")
        check_spans(spans, len(words))
        surfaces = self.encoder.surfaces(words)
        pieces = self.encoder(surfaces)
        settings = self.options.settings
        counts = list(map(len, pieces))
        attachments = attach_tokens(Tree(words, spans), counts, self.options.binarize)
        shape = parse_shape(attachments)
        ids = [settings.bos_id, *chain.from_iterable(pieces), settings.eos_id]
        return Sentence(ids, attachments), surfaces, shape, counts

    def _shard(self, sentences: list[Sentence], tally: Tally, labels: Sequence[str]) -> Shard:
        ids, attachments, actions = (
            _integers(list(chain.from_iterable(getattr(sentence, name) for sentence in sentences)))
            for name in Sentence._fields
        )
        lengths = _integers([len(sentence.input_ids) for sentence in sentences])
        action_lengths = _integers([len(sentence.actions) for sentence in sentences])
        tally.sentences, tally.tokens = len(lengths), len(ids)
        if self.options.settings.unknown_id is not None:
            tally.unknown_words = int((ids == self.options.settings.unknown_id).sum())
        return Shard(ids, attachments, lengths, tally, actions, action_lengths, labels)


def _integers(values: list[int]) -> Integers:
    return np.array(values, dtype=np.int32)


def encode_chunks(
    encoder: ChunkEncoder, jobs: Iterable[tuple[Path, Chunk]], processes: int
) -> Iterator[int]:
    """Write the shard of every chunk that has none yet; the number of trees of each, in order.

    Chunks are handed out as workers need them, so that only a few are in memory.
    """
    if processes == 1:
        encoding = encoder.start()
        for path, chunk in jobs:
            if not path.exists():
                encoding(chunk).save(path)
            yield len(chunk.trees)
        return
    context = multiprocessing.get_context("spawn")
    pool = ProcessPoolExecutor(processes, context, _start_worker, (encoder,))
    waiting: deque[tuple[Future[None] | None, int]] = deque()
    try:
        for path, chunk in jobs:
            future = None if path.exists() else pool.submit(_work, path, chunk)
            waiting.append((future, len(chunk.trees)))
            if len(waiting) > 2 * processes:
                yield _await_first(waiting)
        while waiting:
            yield _await_first(waiting)
    finally:
        pool.shutdown(cancel_futures=True)


def _await_first(waiting: deque[tuple[Future[None] | None, int]]) -> int:
    future, count = waiting.popleft()
    if future is not None:
        future.result()
    return count


_encoding: ChunkEncoding | None = None


def _start_worker(encoder: ChunkEncoder) -> None:
    Thread(target=_leave_with_parent, daemon=True).start()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # one core a process
    global _encoding
    _encoding = encoder.start()


def _leave_with_parent() -> None:
    """End this worker when the parent is gone, even if it was killed."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _work(path: Path, chunk: Chunk) -> None:
    assert _encoding is not None
    _encoding(chunk).save(path)


# ------------------------------------------------------------------ windows


def pack_windows(
    sentences: Iterator[Sentence], length: int, *, shared_boundary: bool
) -> Iterator[Sentence]:
    """Windows of at most `length` tokens: whole sentences, in order, until the next does not fit.

    Every window starts with ROOT, and no attachment crosses a sentence (the paper's appendix B).
    Where one token is both BOS and EOS, sentences share the token between them.
    """
    window: list[Sentence] = []
    used = 0
    for sentence in sentences:
        added = len(sentence.input_ids) - (shared_boundary and bool(window))
        if window and used + added > length:
            yield _join(window, shared_boundary)
            window, used, added = [], 0, len(sentence.input_ids)
        window.append(sentence)
        used += added
    if window:
        yield _join(window, shared_boundary)


def _join(window: list[Sentence], shared_boundary: bool) -> Sentence:
    ids, actions = list(window[0].input_ids), list(window[0].actions)
    for sentence in window[1:]:
        ids.extend(sentence.input_ids[shared_boundary:])
        actions.extend(sentence.actions[shared_boundary:])
    attachments, _ = join_windows(
        (sentence.attachments for sentence in window), shared_boundary=shared_boundary
    )
    return Sentence(ids, attachments, actions or ())
