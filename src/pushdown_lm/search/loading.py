"""From a model's folder to the scorer that evaluates it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from pushdown_lm.errors import PushdownError
from pushdown_lm.model.loading import ModelFolderError
from pushdown_lm.search.bracket_scorer import BracketScorer
from pushdown_lm.search.defaults import DEFAULT_BEAM, DEFAULT_THRESHOLD
from pushdown_lm.search.packaged import find_model
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from pushdown_lm.search.read_attention import ReadAttention
from pushdown_lm.search.scorer import CausalLMScorer, Sentence, TreeScore, _Encoding
from pushdown_lm.search.search_scorer import SearchScorer
from pushdown_lm.trees import Tree

EvaluationScorer = SearchScorer | CausalLMScorer
MODEL_TYPES = ("pushdown", "bracket_lm")
"""Of the models of this library."""


class BaseLMScorer(CausalLMScorer):
    """Scores with a model of this library that has no Pushdown Layers: the paper's Base-LM.

    No token depends on the parse then, so p(x) is exact in one parallel pass, where a beam would
    lose the parses it drops. Sentences become the tokens that a Pushdown-LM reads. Parses come from
    the attachment head, if the model has one.
    """

    def __init__(self, parser: SearchScorer) -> None:
        config = parser.model.config
        super().__init__(
            parser.model.decoder,
            parser.tokenizer,
            name=parser.name,
            bos_token_id=config.bos_token_id,
            eos_token_id=config.eos_token_id,
        )
        self.parser = parser

    def describe(self) -> dict[str, Any]:
        return {**self.parser.describe(), "probabilities": "exact: no layer reads the parse"}

    @property
    def parses(self) -> bool:
        return self.parser.parses

    @property
    def scores_trees(self) -> bool:
        return self.parser.scores_trees

    def parse(self, sentences: Sequence[Sequence[str]]) -> list[Tree | None]:
        return self.parser.parse(sentences)

    def score_trees(self, trees: Sequence[Tree]) -> list[TreeScore]:
        return self.parser.score_trees(trees)

    def read_attention(self, text: str) -> ReadAttention:
        return self.parser.read_attention(text)

    def count_tokens(self, sentence: Sentence) -> int:
        return self.parser.count_tokens(sentence)

    def _encode(self, sentences: Sequence[Sentence]) -> list[_Encoding]:
        encoded = map(self.parser.encode, sentences)
        return [_Encoding(one.text, list(one.ids), list(one.offsets)) for one in encoded]


def load_scorer(
    folder: str | Path,
    *,
    beam: int = DEFAULT_BEAM,
    threshold: float | None = DEFAULT_THRESHOLD,
    allow_unknown: bool = False,
    device: Any = None,
) -> EvaluationScorer:
    """The scorer of a model of this library, or of any causal language model of Transformers.

    ``config.json`` decides. A plain language model knows neither beam nor threshold, and its
    tokenizer alone says how it reads unknown words.
    """
    if model_type(find_model(folder)) in MODEL_TYPES:
        parser = load_parser(folder, beam=beam, threshold=threshold, allow_unknown=allow_unknown)
        parser.model.to(device)
        return fastest_scorer(parser)
    try:
        scorer = CausalLMScorer.from_pretrained(find_model(folder), name=str(folder))
    except PushdownError:
        raise
    except Exception as error:  # of whatever kind a damaged file makes it
        detail = " ".join(str(error).split())[:300] or type(error).__name__
        raise ModelFolderError(f"{folder}: cannot be loaded: {detail}") from error
    scorer.model.to(device)
    return scorer


def fastest_scorer(parser: SearchScorer) -> EvaluationScorer:
    """The parser itself, or the exact scorer of its model where no token depends on the parse."""
    return parser if parser.depends_on_parse else BaseLMScorer(parser)


def load_parser(
    folder: str | Path,
    *,
    beam: int = DEFAULT_BEAM,
    threshold: float | None = DEFAULT_THRESHOLD,
    allow_unknown: bool = False,
) -> SearchScorer:
    """The scorer of a Pushdown model, or of a model that reads brackets."""
    found = find_model(folder)
    is_bracketed = (found / "config.json").is_file() and model_type(found) == "bracket_lm"
    kind: type[SearchScorer] = BracketScorer if is_bracketed else PushdownScorer
    return kind.from_pretrained(folder, beam=beam, threshold=threshold, allow_unknown=allow_unknown)


def check_model_folder(folder: str | Path) -> None:
    """Raise an error unless a folder names its kind of model, before any work is done."""
    model_type(find_model(folder))


def model_type(folder: Path) -> str:
    """The kind of model that a folder says it holds."""
    path = folder / "config.json"
    try:
        return str(json.loads(path.read_text(encoding="utf-8"))["model_type"])
    except OSError:
        inside = folder / "model"
        hint = f"; did you mean {inside}?" if (inside / "config.json").is_file() else ""
        raise PushdownError(f"{folder}: expected a model, found no config.json{hint}") from None
    except (ValueError, KeyError, TypeError, RecursionError):
        raise PushdownError(f"{path}: expected a configuration that names its model_type") from None


def model_names(folders: Iterable[str | Path]) -> dict[str, Path]:
    """A short name for each folder: its own, or its parent's where that is just `model`.

    >>> list(model_names(["runs/demo/seed0/demo-base/model", "runs/demo/seed0/demo/model"]))
    ['demo-base', 'demo']
    """
    names: dict[str, Path] = {}
    for folder in map(Path, folders):
        name = folder.parent.name if folder.name == "model" else folder.name
        name = name or folder.resolve().name
        number = sum(other.split("~")[0] == name for other in names)
        names[f"{name}~{number + 1}" if number else name] = folder
    return names
