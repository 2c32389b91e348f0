"""The protocol through which every evaluation sees a model, and two implementations of it.

An evaluation asks a model for the log-probability of a sentence, the surprisal of each of its
tokens, and, if the model says that it can tell, a parse of its words, the probability of a given
tree, or what it attends to. `CausalLMScorer` answers for any plain causal language model;
`ScoreCache` wraps any scorer and remembers on disk what it has answered, so that an interrupted
evaluation resumes where it left off.

Conventions that every scorer keeps:

- A sentence is raw text, or a sequence of words; a plain language model reads words as running
  text.
- BOS is prepended and never scored; EOS is scored, once, as the last token.
- Log-probabilities are natural logs; surprisals are bits. For every sentence
  ``log_prob == -ln 2 * sum(token.surprisal for token in tokens)``.
- A token's offsets are half-open character offsets into the sentence, words being joined by single
  spaces. The space that joins two words belongs to the token on its right, whether or not the
  offsets include it. EOS has ``start == end == len(sentence)``.
"""

from __future__ import annotations

import hashlib
import json
import math
import time
from bisect import bisect_right
from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from itertools import accumulate
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
    NamedTuple,
    Protocol,
    TypeAlias,
    TypeVar,
    runtime_checkable,
)

from pushdown_lm.data.text import detokenize
from pushdown_lm.errors import PushdownError
from pushdown_lm.files import read_appended
from pushdown_lm.trees import Tree

if TYPE_CHECKING:
    import torch
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from pushdown_lm.search.read_attention import ReadAttention

Progress = Callable[[int, int], None]
"""Called with (sentences scored so far, sentences in all) after every chunk."""

Sentence: TypeAlias = str | Sequence[str]
"""Raw text, or words."""

Item = TypeVar("Item", bound=Hashable)
Score = TypeVar("Score")


@dataclass(frozen=True, slots=True)
class Token:
    """A token of a sentence with its surprisal.

    >>> Token("Ġdog", start=3, end=7, surprisal=4.0)  # " dog" in "The dog"
    Token(text='Ġdog', start=3, end=7, surprisal=4.0)
    """

    text: str
    """The piece as the tokenizer's vocabulary writes it."""
    start: int
    """First character in the sentence; may or may not include the space on the left."""
    end: int
    """One past the last character."""
    surprisal: float
    """-log2 p(token | everything before it)."""


class Reading(NamedTuple):
    """What one search tells of a sentence; None for both where a word is unknown."""

    tree: Tree | None
    tokens: list[Token] | None


class TreeScore(NamedTuple):
    """Natural logs, EOS included; their sum is log p(x, y) of a sentence and its tree."""

    tokens: float
    """sum_t log p(x_t | x_<t, y so far)."""
    structure: float
    """The rest: of the attachments, each given the tokens and attachments before it."""


@runtime_checkable
class Scorer(Protocol):
    """What an evaluation may ask of a model; results come in the order of the input."""

    name: str

    @property
    def parses(self) -> bool:
        """Whether the model can :meth:`parse`."""

    @property
    def scores_trees(self) -> bool:
        """Whether the model can :meth:`score_trees`."""

    @property
    def attends(self) -> bool:
        """Whether the model can :meth:`read_attention`."""

    @property
    def is_exact(self) -> bool:
        """Whether log-probabilities are exact, not sums over the parses that a search keeps."""

    def describe(self) -> dict[str, Any]:
        """Model, tokenizer, beam and versions: all that decides the scores, ready for JSON."""

    def check(self, sentence: Sentence) -> None:
        """Raise :class:`PushdownError` unless the model can read a sentence."""

    def log_probs(self, sentences: Sequence[Sentence]) -> list[float]:
        """Natural log-probability of each whole sentence, EOS included."""

    def surprisals(self, sentences: Sequence[Sentence]) -> list[list[Token]]:
        """The tokens of each sentence with their surprisals in bits, EOS last."""

    def parse(self, sentences: Sequence[Sequence[str]]) -> list[Tree | None]:
        """A binary tree over the words of each sentence; None where a word is unknown."""

    def parse_and_score(self, sentences: Sequence[Sequence[str]]) -> list[Reading]:
        """What :meth:`parse` and :meth:`surprisals` tell of each sentence, searched once."""

    def score_trees(self, trees: Sequence[Tree]) -> list[TreeScore]:
        """How probable the tokens and the structure of each tree are."""

    def read_attention(self, text: str) -> ReadAttention:
        """What the model attends to while it reads a text that may go on."""


def score_distinct(
    score: Callable[[Sequence[Item]], list[Score]],
    sentences: Iterable[Item],
    *,
    chunk_size: int = 256,
    progress: Progress | None = None,
) -> dict[Item, Score]:
    """Scores every distinct sentence once, chunk by chunk.

    >>> score_distinct(lambda chunk: [len(s) for s in chunk], ["a", "bcd", "a"])
    {'a': 1, 'bcd': 3}
    """
    if chunk_size < 1:
        raise PushdownError(f"chunk_size: expected a number of at least 1, got {chunk_size}")
    distinct = list(dict.fromkeys(sentences))
    scores: dict[Item, Score] = {}
    for begin in range(0, len(distinct), chunk_size):
        chunk = distinct[begin : begin + chunk_size]
        scores.update(zip(chunk, score(chunk), strict=True))
        if progress is not None:
            progress(len(scores), len(distinct))
    return scores


def weights_fingerprint(model: torch.nn.Module) -> str:
    """A short hash of all weights, so that results of two checkpoints never mix."""
    import torch

    digest = hashlib.blake2b(digest_size=8)
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(name.encode())
        digest.update(tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy())
    return digest.hexdigest()


def model_versions() -> dict[str, str]:
    """Versions of the packages that a model's numbers come from."""
    return {package: version(package) for package in ("torch", "transformers", "tokenizers")}


class _Encoding(NamedTuple):
    """A sentence as the model sees it: BOS ids[0] ids[1] ... predicts ids[0] ids[1] ... EOS."""

    text: str
    ids: list[int]
    offsets: list[tuple[int, int]]

    def placed_in(self, words: Sequence[str], surfaces: Sequence[str]) -> _Encoding:
        """The encoding of running text with each token at the word in which it starts.

        >>> words, surfaces = ["He", "did", "n't"], ["He", " did", "n't"]
        >>> encoding = _Encoding("He didn't", [1, 2], [(0, 2), (2, 9)])
        >>> encoding.placed_in(words, surfaces)
        _Encoding(text="He did n't", ids=[1, 2], offsets=[(0, 2), (3, 6)])
        """
        starts = [0, *accumulate(len(word) + 1 for word in words)]
        ends = list(accumulate(map(len, surfaces)))  # the space before a word is the word's
        offsets = []
        for start, _ in self.offsets:
            word = min(bisect_right(ends, start), len(words) - 1)
            offsets.append((starts[word], starts[word] + len(words[word])))
        return _Encoding(" ".join(words), self.ids, offsets)


class CausalLMScorer:
    """Scores sentences with any causal language model of Transformers.

    Each sentence is scored by itself: p(x_1 .. x_n EOS | BOS). Sentences are sorted by length
    and batched so that a padded batch holds at most `max_batch_tokens` tokens (a longer sentence
    makes a batch of its own); each batch is one forward pass with padding on the right and a
    log-softmax in float32. The model is put in evaluation mode.

    `bos_token_id` and `eos_token_id` are needed only where the tokenizer names none.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        name: str | None = None,
        max_batch_tokens: int = 4096,
        bos_token_id: int | None = None,
        eos_token_id: int | None = None,
    ) -> None:
        if not tokenizer.is_fast:
            raise PushdownError(
                "expected a fast tokenizer, which knows character offsets, "
                f"got the slow {type(tokenizer).__name__}"
            )
        self.model = model.eval()
        self.tokenizer = tokenizer
        self.name = name or model.config.name_or_path or type(model).__name__
        self.max_batch_tokens = max_batch_tokens
        self.bos_token_id = _special_id("bos", bos_token_id, tokenizer.bos_token_id)
        self.eos_token_id = _special_id("eos", eos_token_id, tokenizer.eos_token_id)

    @classmethod
    def from_pretrained(cls, model: str | Path, **options: Any) -> CausalLMScorer:
        """Loads model and tokenizer from a folder (or a name on the Hub); safetensors only."""
        from transformers import AutoModelForCausalLM, AutoTokenizer

        loaded = AutoModelForCausalLM.from_pretrained(
            model, use_safetensors=True, trust_remote_code=False
        )
        tokenizer = AutoTokenizer.from_pretrained(model, trust_remote_code=False)
        return cls(loaded, tokenizer, **options)

    @cached_property
    def _description(self) -> dict[str, Any]:
        vocabulary = self.tokenizer.name_or_path or type(self.tokenizer).__name__
        return {
            "model": self.name,
            "architecture": type(self.model).__name__,
            "weights": weights_fingerprint(self.model),
            "dtype": str(self.model.dtype).removeprefix("torch."),
            "tokenizer": f"{vocabulary} ({len(self.tokenizer)} entries)",
            "bos_token_id": self.bos_token_id,
            "eos_token_id": self.eos_token_id,
            "beam": None,
            "versions": model_versions(),
        }

    def describe(self) -> dict[str, Any]:
        return dict(self._description)

    @property
    def parses(self) -> bool:
        return False

    @property
    def scores_trees(self) -> bool:
        return False

    @property
    def attends(self) -> bool:
        return True

    @property
    def is_exact(self) -> bool:
        return True

    def check(self, sentence: Sentence) -> None:
        self._encode([sentence])

    def count_tokens(self, sentence: Sentence) -> int:
        """How many tokens a sentence has, which may be more than the model's positions."""
        return len(self._tokenize([sentence])[0].ids)

    def log_probs(self, sentences: Sequence[Sentence]) -> list[float]:
        encodings = self._encode(sentences)
        return [math.fsum(log_probs) for log_probs in self._token_log_probs(encodings)]

    def surprisals(self, sentences: Sequence[Sentence]) -> list[list[Token]]:
        encodings = self._encode(sentences)
        log_probs = self._token_log_probs(encodings)
        return list(map(self._tokens, encodings, log_probs))

    def mark_likeliest(self, sentences: Sequence[Sentence]) -> list[list[tuple[Token, bool]]]:
        """The tokens of each sentence, and whether each is the likeliest where it stands."""
        encodings = self._encode(sentences)
        results: list[list[tuple[Token, bool]]] = [[] for _ in encodings]
        for batch, log_probs, targets in self._read(encodings):
            chosen = log_probs.gather(-1, targets[..., None])[..., 0].tolist()
            likeliest = (log_probs.argmax(-1) == targets).tolist()
            for row, index in enumerate(batch):
                tokens = self._tokens(encodings[index], chosen[row])
                results[index] = list(zip(tokens, likeliest[row], strict=False))
        return results

    def parse(self, sentences: Sequence[Sequence[str]]) -> list[Tree | None]:
        raise self._refusal("that parses")

    def parse_and_score(self, sentences: Sequence[Sequence[str]]) -> list[Reading]:
        trees = self.parse(sentences)
        known = [words for words, tree in zip(sentences, trees, strict=True) if tree is not None]
        tokens = iter(self.surprisals(known))
        return [Reading(tree, None if tree is None else next(tokens)) for tree in trees]

    def score_trees(self, trees: Sequence[Tree]) -> list[TreeScore]:
        raise self._refusal("that predicts trees")

    def _refusal(self, expected: str) -> PushdownError:
        return PushdownError(
            f"expected a model {expected}, got {self.name!r}, a plain causal language model"
        )

    def read_attention(self, text: str) -> ReadAttention:
        import torch

        from pushdown_lm.search.read_attention import ReadAttention

        [encoding] = self._encode([text])
        ids = [self.bos_token_id, *encoding.ids]
        implementation = self.model.config._attn_implementation
        self.model.set_attn_implementation("eager")
        try:
            with torch.inference_mode():
                output = self.model(
                    torch.tensor([ids], device=self.model.device), output_attentions=True
                )
        finally:
            self.model.set_attn_implementation(implementation)
        return ReadAttention(
            tokens=tuple(self.tokenizer.convert_ids_to_tokens(ids)),
            offsets=tuple(encoding.offsets),
            weights=torch.cat(output.attentions).float().cpu(),
        )

    def _tokens(self, encoding: _Encoding, log_probs: Sequence[float]) -> list[Token]:
        """The tokens and EOS with their surprisals; what follows is padding."""
        texts = self.tokenizer.convert_ids_to_tokens([*encoding.ids, self.eos_token_id])
        end = len(encoding.text)
        offsets = [*encoding.offsets, (end, end)]
        return [
            Token(text, start, stop, -log_prob / math.log(2))
            for text, (start, stop), log_prob in zip(texts, offsets, log_probs, strict=False)
        ]

    def _tokenize(self, sentences: Sequence[Sentence]) -> list[_Encoding]:
        if not sentences:
            return []
        surfaces = [None if isinstance(one, str) else detokenize(one) for one in sentences]
        texts = [
            sentence if isinstance(sentence, str) else "".join(surface or ())
            for sentence, surface in zip(sentences, surfaces, strict=True)
        ]
        batch = self.tokenizer(texts, add_special_tokens=False, return_offsets_mapping=True)
        encodings = map(_Encoding, texts, batch["input_ids"], batch["offset_mapping"])
        return [
            encoding if surface is None else encoding.placed_in(sentence, surface)
            for encoding, sentence, surface in zip(encodings, sentences, surfaces, strict=True)
        ]

    def _encode(self, sentences: Sequence[Sentence]) -> list[_Encoding]:
        encodings = self._tokenize(sentences)
        limit = getattr(self.model.config, "max_position_embeddings", None)
        for text, ids, _ in encodings:
            if limit is not None and len(ids) + 1 > limit:
                raise PushdownError(
                    f"expected a sentence of at most {limit - 1} tokens (the context of "
                    f"{self.name!r} less BOS), got {len(ids)}: {text[:60]!r}..."
                )
        return encodings

    def _token_log_probs(self, encodings: Sequence[_Encoding]) -> list[list[float]]:
        """Natural log-probabilities of the tokens and EOS of each sentence."""
        results: list[list[float]] = [[] for _ in encodings]
        for batch, log_probs, targets in self._read(encodings):
            chosen = log_probs.gather(-1, targets[..., None])[..., 0].cpu()
            for index, row in zip(batch, chosen, strict=True):
                results[index] = row[: len(encodings[index].ids) + 1].tolist()
        return results

    def _read(
        self, encodings: Sequence[_Encoding]
    ) -> Iterator[tuple[list[int], torch.Tensor, torch.Tensor]]:
        """Batches: the sentences' numbers, log-probabilities ``(B, T, V)``, tokens ``(B, T)``."""
        import torch
        from torch.nn.functional import log_softmax

        from pushdown_lm.model.packed_linear import packed_linears

        device = self.model.device
        for batch in self._batches([len(encoding.ids) + 1 for encoding in encodings]):
            width = max(len(encodings[index].ids) for index in batch) + 1
            shape = (len(batch), width)
            inputs = torch.full(shape, self.eos_token_id)  # (B, T)
            targets = torch.full(shape, self.eos_token_id)  # (B, T)
            mask = torch.zeros(shape, dtype=torch.long)  # (B, T)
            for row, index in enumerate(batch):
                ids = torch.tensor(encodings[index].ids, dtype=torch.long)
                inputs[row, 0] = self.bos_token_id
                inputs[row, 1 : len(ids) + 1] = ids
                targets[row, : len(ids)] = ids
                mask[row, : len(ids) + 1] = 1
            with torch.inference_mode(), packed_linears(self.model):
                logits = self.model(
                    input_ids=inputs.to(device), attention_mask=mask.to(device), use_cache=False
                ).logits  # (B, T, V)
                log_probs = log_softmax(logits.float(), dim=-1)
            yield batch, log_probs, targets.to(device)

    def _batches(self, lengths: Sequence[int]) -> Iterator[list[int]]:
        """Indices grouped by length, each group within the token budget once padded."""
        batch: list[int] = []
        for index in sorted(range(len(lengths)), key=lengths.__getitem__):
            if batch and lengths[index] * (len(batch) + 1) > self.max_batch_tokens:
                yield batch
                batch = []
            batch.append(index)
        if batch:
            yield batch


def _special_id(kind: str, given: int | None, of_tokenizer: int | None) -> int:
    chosen = of_tokenizer if given is None else given
    if chosen is None:
        raise PushdownError(
            f"expected a tokenizer with a {kind} token or the option {kind}_token_id, got neither"
        )
    return chosen


class ScorerWrapper:
    """A scorer in front of another one, of which it tells the same."""

    def __init__(self, scorer: Scorer) -> None:
        self.scorer, self.name = scorer, scorer.name

    @property
    def parses(self) -> bool:
        return self.scorer.parses

    @property
    def scores_trees(self) -> bool:
        return self.scorer.scores_trees

    @property
    def attends(self) -> bool:
        return self.scorer.attends

    @property
    def is_exact(self) -> bool:
        return self.scorer.is_exact

    def describe(self) -> dict[str, Any]:
        return self.scorer.describe()

    def check(self, sentence: Sentence) -> None:
        self.scorer.check(sentence)

    def parse_and_score(self, sentences: Sequence[Sequence[str]]) -> list[Reading]:
        return self.scorer.parse_and_score(sentences)

    def score_trees(self, trees: Sequence[Tree]) -> list[TreeScore]:
        return self.scorer.score_trees(trees)

    def read_attention(self, text: str) -> ReadAttention:
        return self.scorer.read_attention(text)


class ScoreCache(ScorerWrapper):
    """A scorer that appends every result to a JSON Lines file and never computes one twice.

    Each line holds the kind of result, the sentence, the result and a hash of the scorer's
    description, so one file may serve several models. A last line cut short by a crash is
    dropped; any other bad line is an error. Wrap the scorer and hand the wrapper on:

        evaluate_blimp(ScoreCache(scorer, Path("scores.jsonl")), pairs)
    """

    def __init__(self, scorer: Scorer, path: Path) -> None:
        super().__init__(scorer)
        self.path = path
        description = json.dumps(scorer.describe(), sort_keys=True, default=str)
        self._model = hashlib.blake2b(description.encode(), digest_size=8).hexdigest()
        self._known: dict[tuple[str, str], Any] = {}
        self._num_scored, self._seconds = 0, 0.0
        if path.exists():
            fields = ("model", "kind", "sentence", "value")
            for model, kind, sentence, value in read_appended(path, "a cached score", fields):
                if model == self._model:
                    self._known[kind, json.dumps(sentence)] = value

    @property
    def sentences_per_second(self) -> float | None:
        """How fast the scorer itself has been, on all that it was asked; None if on nothing."""
        return self._num_scored / self._seconds if self._num_scored else None

    def log_probs(self, sentences: Sequence[Sentence]) -> list[float]:
        return self._remember("log_prob", sentences, self.scorer.log_probs)

    def surprisals(self, sentences: Sequence[Sentence]) -> list[list[Token]]:
        def rows(missing: Sequence[Sentence]) -> list[list[_Row]]:
            return list(map(_rows, self.scorer.surprisals(missing)))

        known = self._remember("surprisals", sentences, rows)
        return [[Token(*row) for row in tokens] for tokens in known]

    def parse(self, sentences: Sequence[Sequence[str]]) -> list[Tree | None]:
        """Surprisals come with the parses and are remembered, too."""

        def spans(missing: Sequence[Sequence[str]]) -> list[list[tuple[int, int]] | None]:
            readings = self.scorer.parse_and_score(missing)
            self._keep(
                "surprisals",
                [
                    (words, _rows(reading.tokens))
                    for words, reading in zip(missing, readings, strict=True)
                    if reading.tokens is not None
                ],
            )
            return [None if tree is None else list(tree.spans) for tree, _ in readings]

        known = self._remember("parse", [list(words) for words in sentences], spans)
        return [
            None if spans is None else Tree(tuple(words), tuple((s, e) for s, e in spans))
            for words, spans in zip(sentences, known, strict=True)
        ]

    def _remember(
        self,
        kind: str,
        sentences: Sequence[Any],
        score: Callable[[Sequence[Any]], list[Any]],
    ) -> list[Any]:
        keys = [json.dumps(sentence) for sentence in sentences]
        missing = {
            key: sentence
            for key, sentence in zip(keys, sentences, strict=True)
            if (kind, key) not in self._known
        }
        if missing:
            began = time.monotonic()
            scores = score(list(missing.values()))
            self._seconds += time.monotonic() - began
            self._num_scored += len(missing)
            self._keep(kind, list(zip(missing.values(), scores, strict=True)))
        return [self._known[kind, key] for key in keys]

    def _keep(self, kind: str, scored: Sequence[tuple[Any, Any]]) -> None:
        """Remember the scores of sentences that have none of this kind yet."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with self.path.open("a", encoding="utf-8") as file:
            for sentence, value in scored:
                key = kind, json.dumps(sentence)
                if key not in self._known:
                    self._known[key] = value
                    record = {
                        "model": self._model,
                        "kind": kind,
                        "sentence": sentence,
                        "value": value,
                    }
                    file.write(json.dumps(record) + "\n")


_Row: TypeAlias = tuple[str, int, int, float]


def _rows(tokens: Sequence[Token]) -> list[_Row]:
    return [(token.text, token.start, token.end, token.surprisal) for token in tokens]
