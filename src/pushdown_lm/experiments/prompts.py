"""Examples of a classification task as windows of a model's tokens, with their parses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from pushdown_lm.corpora.glue import Example, Task
from pushdown_lm.data.encoding import Sentence, pack_windows
from pushdown_lm.errors import PushdownError
from pushdown_lm.search.parse_cache import ParseCache
from pushdown_lm.search.pushdown_scorer import PushdownScorer


class FinetuneError(PushdownError):
    """Fine-tuning cannot start or continue."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """A window of sentences, the last of which ends with the label."""

    input_ids: Sequence[int]
    attachments: Sequence[int]
    answer: int
    """The position of the label's first token; for a regression, the length of the window."""
    label: float


class PromptEncoder:
    """Turns examples of a task into windows of a model's tokens."""

    def __init__(self, scorer: PushdownScorer, task: Task) -> None:
        self.scorer, self.task = scorer, task
        self.question = () if task.question is None else self._ids(task.question, task.title)
        self.labels = [self._label(label) for label in task.labels]
        if len(set(self.first_tokens)) < len(self.labels):
            raise FinetuneError(
                f"{task.title}: expected a tokenizer that begins each of the labels "
                f"{', '.join(task.labels)} with another token, got {self.first_tokens}"
            )

    @property
    def first_tokens(self) -> list[int]:
        """The first token of each class."""
        return [tokens[0] for tokens in self.labels]

    def _ids(self, text: str, place: str) -> tuple[int, ...]:
        try:
            return self.scorer.encode(text).ids
        except PushdownError as error:
            raise FinetuneError(f"{place}: {error}") from error

    def _label(self, label: str) -> tuple[int, ...]:
        """The tokens that a label adds to the question."""
        whole = self._ids(f"{self.task.question} {label}", self.task.title)
        count = len(self.question)
        if whole[:count] != self.question or len(whole) == count:
            raise FinetuneError(
                f"{self.task.title}: expected a tokenizer that keeps {self.task.question!r} and "
                f"{label!r} apart"
            )
        return whole[count:]

    def encode(self, examples: Sequence[Example], parses: ParseCache | None) -> list[Prompt]:
        """The prompts of examples, their sentences parsed, or left without a parse."""
        texts = [
            [self._ids(text, example.place) for text in self.task.sentences(example)]
            for example in examples
        ]
        distinct = list(dict.fromkeys(ids for sentences in texts for ids in sentences))
        if self.question:
            distinct.append(self.question)
        shifts = [[*range(len(ids) + 1), 0] for ids in distinct]
        found = shifts if parses is None else parses.parse(distinct)
        attachments = dict(zip(distinct, found, strict=True))
        return [
            self._prompt(example, [(ids, attachments[ids]) for ids in sentences], attachments)
            for example, sentences in zip(examples, texts, strict=True)
        ]

    def _prompt(
        self,
        example: Example,
        parsed: list[tuple[tuple[int, ...], list[int]]],
        attachments: Mapping[tuple[int, ...], list[int]],
    ) -> Prompt:
        config = self.scorer.model.config
        label: tuple[int, ...] = ()
        if self.question:
            label = self.labels[int(example.label)]
            length = len(self.question) + 1
            shifts = range(length, length + len(label))
            answered = [*attachments[self.question][:-1], *shifts, 0]
            parsed = [*parsed, (self.question + label, answered)]
        sentences = [
            Sentence([config.bos_id, *ids, config.eos_id], history) for ids, history in parsed
        ]
        total = sum(len(sentence.input_ids) for sentence in sentences)
        (window,) = pack_windows(iter(sentences), total, shared_boundary=config.shared_boundary)
        size = len(window.input_ids)
        if config.max_positions is not None and size > config.max_positions:
            raise FinetuneError(
                f"{example.place}: expected a prompt of at most {config.max_positions} tokens, the "
                f"model's positions, got {size}"
            )
        answer = size - 1 - len(label) if self.question else size
        return Prompt(window.input_ids, window.attachments, answer, example.label)
