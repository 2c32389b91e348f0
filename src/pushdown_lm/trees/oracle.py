"""Trees, attachments and the stack tape: three views of one parse.

Shapes: B sentences, T positions; every function takes a single sequence ``(T,)`` or a batch
``(B, T)`` (written ``(..., T)``), as a NumPy array or a torch tensor, and answers in kind.

Position 0 is ROOT (the BOS token), then come the words 1..n, then EOS at n + 1. The attachment
``r[k]`` of token k is k itself (*shift*) or the right end of a constituent on the stack, which
token k is reduced with, together with everything above it (the paper's Algorithm 1). Row k of
the tape holds, for every position j <= k, in how many reduces j has taken part.

"The dog is happy" with the parse ((The dog) (is happy)), words only:

    attachments    r = [1, 1, 3, 2]        (The shifts, dog -> The, is shifts, happy -> dog)
    tape rows      [0], [1 1], [1 1 0], [2 2 2 2]

Algorithm 1 is kept as written (:func:`algorithm1`) and defines correctness; :func:`stack_tape` is
the closed form, a few cumulative sums over the whole batch. It rests on two facts:

* the constituent that token e completes starts at ``S[e] = S[r[e]]``, and ``S[e] = e`` at a shift;
* position j starts a constituent of the stack at time k as long as no token e in j..k has
  completed a constituent that starts before j (``S[e] < j``).

Several sentences may share a window. Every sentence has its own ROOT, and its EOS attaches to that
ROOT, which closes it. Where one token is both the end of a sentence and the ROOT of the next
(a *separator*, as in GPT-2), it closes the sentence before it without becoming part of it.

What a token may attach to is a property of the language (:data:`Legality`). In general these are
the right ends of all ``constituents`` on the stack. In a Dyck language a bracket can only close
one that is still open, so its parses attach to ``open_tokens`` alone: tokens that no reduce has
touched, each a constituent by itself. A token may always shift. After "(1 (2 2) (3" the stack is

    ROOT  (1  [(2 2)]  (3            constituents: 1, 3, 4        open tokens: 1, 4
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeAlias

import numpy as np

from pushdown_lm.errors import PushdownError
from pushdown_lm.trees.tree import Tree

Array: TypeAlias = Any
"""A NumPy array or a torch tensor."""

Legality: TypeAlias = Literal["constituents", "open_tokens"]
"""What a token may attach to, besides itself."""

SHIFT_SLOT = 0
"""The candidate slot that stands for shifting; slot 1 is the legal attachment nearest the top of
the stack, 2 the next one."""


class OracleError(PushdownError):
    """Attachments or a tape that no parse gives."""


# ------------------------------------------------------------------ one sentence, plain Python


def attachments_from_tree(tree: Tree, direction: str = "right") -> list[int]:
    """Attachments of ROOT, the words 1..n and EOS: ``[0, r_1, ..., r_n, 0]``.

    The tree may be n-ary; it is binarized to the right (the paper's choice) or to the left on the
    way. One pass over the post-order spans: when a span closes, ``end_of[s]`` is still the right
    end of the largest constituent found so far that starts at s, its first child.

    >>> attachments_from_tree(Tree(["The", "dog", "is", "happy"], [(0, 2), (2, 4), (0, 4)]))
    [0, 1, 1, 3, 2, 0]
    """
    count = len(tree.words)
    attachments = list(range(count + 1))
    end_of = list(range(1, count + 1))
    if direction == "right":
        for start, end in tree.spans:
            attachments[end] = end_of[start]
            end_of[start] = end
    elif direction == "left":
        for start, end in tree.spans:
            child_end = end_of[start]
            while child_end < end:
                next_end = end_of[child_end]
                attachments[next_end] = child_end
                child_end = next_end
            end_of[start] = end
    else:
        raise ValueError(f"direction must be 'right' or 'left', got {direction!r}")
    attachments.append(0)
    return attachments


def tree_from_attachments(attachments: Sequence[int], words: Sequence[str]) -> Tree:
    """The binary tree of a sentence ``[0, r_1, ..., r_n, 0]``.

    A parse need not be one tree when EOS comes: what is left on the stack is closed by EOS, from
    the top downwards, as EOS's own reduces do.
    """
    count = len(words)
    if len(attachments) != count + 2 or attachments[0] != 0 or attachments[-1] != 0:
        raise OracleError(
            f"{count} words need {count + 2} attachments that begin and end with 0 (ROOT and EOS), "
            f"got {list(attachments)}"
        )
    spans: list[tuple[int, int]] = []
    starts = [0]
    ends = [0]
    for position in range(1, count + 1):
        attachment = attachments[position]
        start = position
        if attachment != position:
            if attachment < 1 or attachment not in ends:
                raise OracleError(
                    f"token {position} attaches to {attachment}, but the constituents on the "
                    f"stack end at {ends[1:]}"
                )
            while ends[-1] >= attachment:
                ends.pop()
                start = starts.pop()
                spans.append((start - 1, position))
        starts.append(start)
        ends.append(position)
    spans.extend((start - 1, count) for start in reversed(starts[1:-1]))
    return Tree(tuple(words), tuple(spans))


def join_windows(
    sentences: Iterable[Sequence[int]], *, shared_boundary: bool = False
) -> tuple[list[int], list[bool]]:
    """Attachments of several sentences in one window, and which positions are separators.

    With ``shared_boundary`` the EOS of a sentence is also the ROOT of the next.

    >>> join_windows([[0, 1, 1, 0], [0, 1, 0]])
    ([0, 1, 1, 0, 4, 5, 4], [False, False, False, False, False, False, False])
    >>> join_windows([[0, 1, 1, 0], [0, 1, 0]], shared_boundary=True)
    ([0, 1, 1, 0, 4, 3], [False, False, False, True, False, True])
    """
    window: list[int] = []
    separators: list[bool] = []
    for sentence in sentences:
        if shared_boundary and window:
            root, body = len(window) - 1, sentence[1:]
        else:
            root, body = len(window), sentence
        window.extend(attachment + root for attachment in body)
        separators.extend([False] * (len(body) - 1) + [shared_boundary])
    return window, separators


def algorithm1(
    attachments: Sequence[int], separators: Sequence[bool] | None = None
) -> list[list[int]]:
    """The rows of the stack tape by Algorithm 1 of the paper, reduce by reduce.

    Slow and obvious, the definition that :func:`stack_tape` is tested against.

    >>> algorithm1([0, 1, 1, 3, 2])[1:]
    [[0, 0], [0, 1, 1], [0, 1, 1, 0], [0, 2, 2, 2, 2]]
    """
    tape: list[int] = []
    stack: list[list[int]] = []
    rows = []
    for position, attachment in enumerate(attachments):
        tape.append(0)
        constituent = [position]
        if attachment != position:
            taken_in = False
            while not taken_in:
                top = stack.pop()
                taken_in = top[-1] == attachment
                constituent = top + constituent
                for token in constituent:
                    tape[token] += 1
        if separators is not None and separators[position] and attachment != position:
            tape[position] = 0
            stack.append(constituent[:-1])
            constituent = [position]
        stack.append(constituent)
        rows.append(list(tape))
    return rows


# ------------------------------------------------------------------ closed forms, batched


def _namespace(array: Array) -> Any:
    return np if isinstance(array, np.ndarray) else importlib.import_module("torch")


def _positions(array: Array) -> Array:
    """``arange(T)`` on the array's device."""
    if isinstance(array, np.ndarray):
        return np.arange(array.shape[-1])
    return _namespace(array).arange(array.shape[-1], device=array.device)


def _take(array: Array, index: Array) -> Array:
    """``array[..., index]`` along the last axis."""
    if isinstance(array, np.ndarray):
        return np.take_along_axis(array, index, -1)
    return array.gather(-1, index)


def _count(mask: Array, axis: int) -> Array:
    """Running count of the true entries along an axis, in small integers."""
    return mask.cumsum(axis, dtype=_namespace(mask).int16)


def _flip_last(array: Array) -> Array:
    return np.flip(array, -1) if isinstance(array, np.ndarray) else array.flip(-1)


def _count_from_right(mask: Array) -> Array:
    return _flip_last(_count(_flip_last(mask), -1))


def _distance(opens: Array) -> Array:
    """How many constituents start to the right of each position."""
    reached = _count_from_right(opens)
    return _namespace(opens).where(opens, reached - 1, reached)


def _open_distance(is_open: Array) -> Array:
    """How many open tokens lie to the right of each position."""
    return _count_from_right(is_open) - 1 * is_open


def constituent_starts(attachments: Array, separators: Array | None = None) -> Array:
    """``S[..., e]``: where the largest constituent that token e completes starts. ``(..., T)``

    Follows ``S[e] = S[r[e]]`` by pointer doubling. A separator starts the next sentence for all
    that come after it, while it closes the sentence before it back to that sentence's ROOT.
    """
    xp = _namespace(attachments)
    position = _positions(attachments)
    starts = attachments
    if separators is not None:
        starts = xp.where(separators, position, attachments)
    for _ in range(max(1, math.ceil(math.log2(max(2, attachments.shape[-1]))))):
        starts = _take(starts, starts)
    if separators is not None:
        starts = xp.where(separators, attachments, starts)
    return starts


@dataclass(frozen=True, slots=True)
class ParseState:
    """What the parse looks like after every token, for all positions at once.

    Row k of each ``(..., T, T)`` array describes the stack after token k's attachment; columns
    above k are zero.
    """

    tape: Array
    """``W[k, j]``: how many reduces token j has taken part in."""
    opens: Array
    """``opens[k, j]``: whether token j starts a constituent of the stack."""

    @property
    def distance(self) -> Array:
        """Stack distance: how many constituents lie to the right of the one that holds j."""
        return _distance(self.opens) * self._is_read

    @property
    def open_distance(self) -> Array:
        """How many open tokens, those that no reduce has touched, lie to the right of j."""
        return _open_distance((self.tape == 0) & self._is_read) * self._is_read

    @property
    def _is_read(self) -> Array:
        position = _positions(self.opens)
        return position <= position[:, None]


def parse_state(attachments: Array, separators: Array | None = None) -> ParseState:
    """The stack tape in closed form, with the positions that start a constituent.

    Each reduce at time k covers s..k for a constituent start s on the stack, so

        W_k[j] = number of reduces (s, e) with s <= j <= e <= k,

    a cumulative sum along the row (how many of token k's reduces reach j) and one down the rows.
    """
    position = _positions(attachments)
    row, column = position[:, None], position  # (T, 1), (T,)
    starts = constituent_starts(attachments, separators)[..., None]  # (..., T, 1)
    within = column <= row
    if separators is not None:
        within = within & ~(separators[..., None] & (column == row))

    buried = (starts < column) & within  # token e = row completes a constituent over j = column
    opens = (_count(buried, -2) == 0) & (column <= row)

    opens_before = opens[..., :-1, :]
    reduces = (attachments != position)[..., 1:, None]
    taken_in = opens_before & (starts[..., 1:, :] <= column) & reduces
    tape = _count(taken_in, -1) * within[..., 1:, :]
    tape = _pad_first_row(tape).cumsum(-2, dtype=tape.dtype)
    return ParseState(tape=tape * (column <= row), opens=opens)


def _pad_first_row(array: Array) -> Array:
    xp = _namespace(array)
    return xp.concatenate([xp.zeros_like(array[..., -1:, :]), array], -2)


def stack_tape(attachments: Array, separators: Array | None = None) -> Array:
    """``W``, the rows of the stack tape: ``(..., T)`` attachments to ``(..., T, T)``."""
    return parse_state(attachments, separators).tape


def stack_distance(attachments: Array, separators: Array | None = None) -> Array:
    """The number of constituents on the stack to the right of the one that holds j, at time k."""
    return parse_state(attachments, separators).distance


def attachments_from_tape(tape: Array) -> Array:
    """Attachments ``(..., T)`` from the rows of a tape ``(..., T, T)`` of one sentence.

    Token k has shifted when ``W_k[k] = 0``. Otherwise the deepest constituent that it takes in is
    the one whose tokens the step raises by exactly one; it attaches to the last of them.
    """
    xp = _namespace(tape)
    position = _positions(tape)
    raised = tape - xp.roll(tape, 1, -2)
    by_one = (raised == 1) & (position < position[:, None])
    last = ((position + 1) * by_one).max(-1)
    last = last if isinstance(tape, np.ndarray) else last.values
    depth_of_self = xp.diagonal(tape, 0, -2, -1)
    return xp.where(depth_of_self == 0, position, last - 1)


@dataclass(frozen=True, slots=True)
class Candidates:
    """The legal attachments of every next token, as padded slots.

    Row k is the decision of token k + 1 after the stack of row k: slot 0 shifts, slot 1 attaches
    to the top of the stack, slot 2 to the constituent below it, and so on; what is not legal has
    no slot. ``(B, T, C)``
    """

    index: Array
    """Right end of the candidate constituent, k + 1 for the shift, 0 in unused slots."""
    legal: Array
    """Which slots are candidates. The shift always is."""
    scored: Array
    """Which slots the softmax runs over: the legal ones, or all earlier positions."""
    target: Array
    """The slot that token k + 1 really takes. ``(B, T)``"""
    decided: Array
    """Whether the head has a choice: the next token is a word and may attach. ``(B, T)``"""


def candidates(
    attachments: Array,
    state: ParseState,
    roots: Array,
    words: Array,
    size: int | None = None,
    legality: Legality = "constituents",
    every_position: bool = False,
) -> Candidates:
    """Legal attachments of each next token, for torch tensors of one batch.

    Args:
        attachments: ``(B, T)``.
        state: of these attachments, from :func:`parse_state`.
        roots: ``(B, T)`` bool, the ROOT tokens (separators among them).
        words: ``(B, T)`` bool, the tokens that the head decides: neither ROOT, EOS nor padding.
        size: number of slots; by default as many as the fullest stack of the batch needs.
        legality: what a token may attach to.
        every_position: whether all earlier positions have slots, legal or not, as in the authors'
            softmax. The head then decides about the first word of a sentence too.

    Raises:
        OracleError: where a word attaches to what it may not attach to.
    """
    xp = _namespace(attachments)
    position = _positions(attachments)
    root = (position * roots).cummax(-1).values  # of the sentence at row k
    ends = _legal_ends(state.opens, state.tape, root, position, legality)
    listed = (position <= position[:, None]).expand_as(ends) if every_position else ends
    slot = _count_from_right(listed)
    index, scored = _slots(listed, slot, position + 1, size)
    legal = scored
    if every_position:
        legal = scored & _take(ends, index.clamp(max=ends.shape[-1] - 1))
        legal[..., SHIFT_SLOT] = True

    following = attachments.roll(-1, -1)
    chosen = following.clamp(max=attachments.shape[-1] - 1)[..., None]
    target = xp.where(following > position, SHIFT_SLOT, slot.gather(-1, chosen)[..., 0]).long()
    is_word = words.roll(-1, -1)
    is_word[..., -1] = False
    illegal = is_word & (following <= position) & ~ends.gather(-1, chosen)[..., 0]
    if illegal.any():
        _refuse(attachments, ends, illegal, legality)
    decided = is_word & (slot[..., 0] > 0)
    return Candidates(index=index, legal=legal, scored=scored, target=target, decided=decided)


def _refuse(attachments: Array, ends: Array, illegal: Array, legality: Legality) -> None:
    row, before = illegal.nonzero()[0].tolist()
    legal = ends[row, before].nonzero()[:, 0].tolist()
    raise OracleError(
        f"row {row} of the batch: token {before + 1} attaches to "
        f"{int(attachments[row, before + 1])}, but the model's legality is {legality!r}, by which "
        f"it may shift or attach to {legal}"
    )


def _legal_ends(opens: Array, tape: Array, root: Array, now: Array, legality: Legality) -> Array:
    """What the next token may attach to, as a mask over positions.

    Args:
        opens, tape: ``(..., T)`` rows.
        root, now: ``(...)``, the ROOT and the newest token of each row.
    """
    if legality == "open_tokens":
        position = _positions(opens)
        return (tape == 0) & (position > root[..., None]) & (position <= now[..., None])
    return _right_ends(opens, root, now)


def _right_ends(opens: Array, root: Array, now: Array) -> Array:
    """Right ends of the constituents above ROOT, from the positions that start one."""
    position = _positions(opens)
    starts_next = _namespace(opens).zeros_like(opens)
    starts_next[..., :-1] = opens[..., 1:]
    return (starts_next | (position == now[..., None])) & (position > root[..., None])


def _slots(ends: Array, slot: Array, shift: Array, size: int | None) -> tuple[Array, Array]:
    """Right ends ``(..., T)`` as padded slots ``(..., C)``, counted from the top of the stack."""
    xp = _namespace(ends)
    count = slot[..., :1]
    if size is None:
        size = int(count.max()) + 1
    index = xp.zeros((*ends.shape[:-1], size + 1), dtype=xp.long, device=ends.device)
    where = xp.where(ends, slot, size).long().clamp(max=size)  # column `size` is thrown away
    index.scatter_(-1, where, _positions(ends).expand_as(where))
    index = index[..., :size]
    index[..., SHIFT_SLOT] = shift
    return index, xp.arange(size, device=ends.device) <= count


# ------------------------------------------------------------------ one token at a time


@dataclass(frozen=True, slots=True)
class Stack:
    """The stacks of N parses after the same number of tokens, as plain torch tensors.

    The incremental twin of :func:`parse_state`: its tensors are the last rows of that state. A
    step makes a new Stack, so that search may keep, drop and copy entries with :meth:`select`.
    """

    opens: Array
    """``(N, L)`` bool: the positions that start a constituent of the stack."""
    depth: Array
    """``(N, L)``: the newest row of the tape."""
    root: Array
    """``(N,)``: the position of the sentence's ROOT."""

    @classmethod
    def start(cls, size: int, device: Any = None) -> Stack:
        """N stacks that hold ROOT alone, at position 0."""
        torch = importlib.import_module("torch")
        return cls(
            opens=torch.ones(size, 1, dtype=torch.bool, device=device),
            depth=torch.zeros(size, 1, dtype=torch.int16, device=device),
            root=torch.zeros(size, dtype=torch.long, device=device),
        )

    def __len__(self) -> int:
        """The number of tokens read, ROOT included: the position of the next token."""
        return int(self.opens.shape[-1])

    def step(self, attachment: Array, separator: Array | None = None) -> Stack:
        """Read the next token with its attachments ``(N,)``, a position of a right end or its own.

        EOS attaches to ROOT. Where ``separator`` ``(N,)`` is true, the token closes the sentence
        and is the ROOT of the next.
        """
        xp = _namespace(self.opens)
        position = _positions(self.opens)
        attachment = attachment[:, None]
        reduces = attachment < len(self)
        start = (position * (self.opens & (position <= attachment))).amax(-1, keepdim=True)
        taken_in = self.opens & (position >= start) & reduces
        raised = _count(taken_in, -1)
        own_depth, own_open, root = raised[:, -1:], ~reduces, self.root
        if separator is not None:
            own_depth = own_depth * ~separator[:, None]
            own_open = own_open | separator[:, None]
            root = xp.where(separator, len(self), root)
        return Stack(
            opens=xp.cat([self.opens & ((position <= start) | ~reduces), own_open], -1),
            depth=xp.cat([self.depth + raised, own_depth], -1),
            root=root,
        )

    def select(self, index: Array) -> Stack:
        """The entries at ``index``, for reordering a beam."""
        return Stack(self.opens[index], self.depth[index], self.root[index])

    @property
    def distance(self) -> Array:
        """``(N, L)``: constituents to the right of the one that holds each position."""
        return _distance(self.opens)

    @property
    def open_distance(self) -> Array:
        """``(N, L)``: open tokens to the right of each position."""
        return _open_distance(self.depth == 0)

    def candidates(
        self,
        size: int | None = None,
        legality: Legality = "constituents",
        every_position: bool = False,
    ) -> tuple[Array, Array]:
        """Legal attachments of the next token: right ends and legality, both ``(N, C)``.

        The slots are those of :class:`Candidates`.
        """
        xp = _namespace(self.opens)
        now = self.root.new_full(self.root.shape, len(self) - 1)
        ends = _legal_ends(self.opens, self.depth, self.root, now, legality)
        shift = self.root.new_full(self.root.shape, len(self))
        if every_position:
            index = xp.arange(len(self), -1, -1, device=shift.device).expand(len(shift), -1)
            return index, xp.cat([xp.ones_like(ends[:, :1]), ends.flip(-1)], -1)
        return _slots(ends, _count_from_right(ends), shift, size)
