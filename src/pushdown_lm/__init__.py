"""Transformer language models with Pushdown Layers.

    >>> from pushdown_lm import parse_tree, to_brackets
    >>> tree = parse_tree("(S (NP The dog) (VP is happy))")
    >>> tree.spans
    ((0, 2), (2, 4), (0, 4))

Names are imported when first used, so that reading trees does not load torch, and
`AutoModelForCausalLM.from_pretrained` opens Pushdown models once this package is imported.
"""

from __future__ import annotations

import importlib
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

from pushdown_lm.registration import register_with_transformers

if TYPE_CHECKING:
    from pushdown_lm.errors import PushdownError, TreeError
    from pushdown_lm.model.cache import PushdownCache
    from pushdown_lm.model.classification import PushdownForSequenceClassification
    from pushdown_lm.model.configuration import PushdownConfig
    from pushdown_lm.model.modeling import PushdownForCausalLM
    from pushdown_lm.model.output import PushdownOutput
    from pushdown_lm.search.loading import load_scorer
    from pushdown_lm.search.pushdown_scorer import PushdownScorer
    from pushdown_lm.trees import Tree, draw, parse_tree, read_trees, to_brackets

__version__ = version("pushdown-lm")

_HOMES = {
    "PushdownCache": "model.cache",
    "PushdownConfig": "model.configuration",
    "PushdownError": "errors",
    "PushdownForCausalLM": "model.modeling",
    "PushdownForSequenceClassification": "model.classification",
    "PushdownOutput": "model.output",
    "PushdownScorer": "search.pushdown_scorer",
    "Tree": "trees",
    "TreeError": "errors",
    "draw": "trees",
    "load_scorer": "search.loading",
    "parse_tree": "trees",
    "read_trees": "trees",
    "to_brackets": "trees",
}

__all__ = [
    "PushdownCache",
    "PushdownConfig",
    "PushdownError",
    "PushdownForCausalLM",
    "PushdownForSequenceClassification",
    "PushdownOutput",
    "PushdownScorer",
    "Tree",
    "TreeError",
    "draw",
    "load_scorer",
    "parse_tree",
    "read_trees",
    "to_brackets",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


register_with_transformers()
