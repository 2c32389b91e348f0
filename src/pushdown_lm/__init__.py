"""Transformer language models with Pushdown Layers.

    >>> from pushdown_lm import PushdownForCausalLM
    >>> model = PushdownForCausalLM.from_pretrained_lm("gpt2-medium", pushdown_layers=range(12, 24))

Names are imported when first used, so that reading trees does not load torch. Once any of the
model's names has been used, Transformers' Auto classes know Pushdown models.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pushdown_lm.configuration import PushdownConfig
    from pushdown_lm.errors import PushdownError, TreeError
    from pushdown_lm.modeling import PushdownCache, PushdownForCausalLM, PushdownOutput
    from pushdown_lm.trees import Tree, parse_tree, read_trees

__version__ = "0.1.0"

_HOMES = {
    "PushdownCache": "modeling",
    "PushdownConfig": "configuration",
    "PushdownError": "errors",
    "PushdownForCausalLM": "modeling",
    "PushdownOutput": "modeling",
    "Tree": "trees",
    "TreeError": "errors",
    "parse_tree": "trees",
    "read_trees": "trees",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)
