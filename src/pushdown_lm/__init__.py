"""Transformer language models with Pushdown Layers.

    >>> from pushdown_lm import PushdownForCausalLM
    >>> model = PushdownForCausalLM.from_pretrained_lm("gpt2-medium", pushdown_layers=range(12, 24))

Names are imported when first used, so that reading trees does not load torch. Transformers' Auto
classes know Pushdown models once both packages are imported, in either order.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pushdown_lm.cache import PushdownCache
    from pushdown_lm.classification import PushdownForSequenceClassification
    from pushdown_lm.configuration import PushdownConfig
    from pushdown_lm.errors import PushdownError, TreeError
    from pushdown_lm.modeling import PushdownForCausalLM, PushdownOutput
    from pushdown_lm.pushdown_scorer import PushdownScorer
    from pushdown_lm.trees import Tree, parse_tree, read_trees

__version__ = "0.1.0"

_HOMES = {
    "PushdownCache": "cache",
    "PushdownConfig": "configuration",
    "PushdownError": "errors",
    "PushdownForCausalLM": "modeling",
    "PushdownForSequenceClassification": "classification",
    "PushdownOutput": "modeling",
    "PushdownScorer": "pushdown_scorer",
    "Tree": "trees",
    "TreeError": "errors",
    "parse_tree": "trees",
    "read_trees": "trees",
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
    "parse_tree",
    "read_trees",
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(f"{__name__}.{_HOMES[name]}"), name)


class _RegisterWithTransformers(importlib.abc.MetaPathFinder):
    """Lets our classes register themselves as soon as the Auto classes have been imported."""

    def __init__(self) -> None:
        self.homes = {
            "transformers.models.auto.configuration_auto": "configuration",
            "transformers.models.auto.modeling_auto": "modeling",
        }
        for imported in self.homes.keys() & sys.modules.keys():
            importlib.import_module(f"{__name__}.{self.homes.pop(imported)}")

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        home = self.homes.pop(fullname, None)
        spec = importlib.util.find_spec(fullname) if home else None
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_and_register(module: ModuleType) -> None:
            execute(module)
            importlib.import_module(f"{__name__}.{home}")

        spec.loader.exec_module = execute_and_register  # type: ignore[method-assign]
        return spec


sys.meta_path.insert(0, _RegisterWithTransformers())
