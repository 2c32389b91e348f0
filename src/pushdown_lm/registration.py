"""Transformers' Auto classes know Pushdown models once both packages are imported, in any order.

Each module of :mod:`pushdown_lm.model` that defines a class for them registers it when it is
imported. Importing Transformers takes seconds, so `import pushdown_lm` does not do it, but says
which of our modules are to be imported after which of theirs. Where one of our own modules is what
imports Transformers, the others wait until it is complete.
"""

from __future__ import annotations

import importlib
import importlib.abc
import importlib.util
import sys
from collections.abc import Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

AFTER = {
    "transformers.models.auto.configuration_auto": "pushdown_lm.model.configuration",
    "transformers.models.auto.modeling_auto": "pushdown_lm.model.modeling",
    "transformers.modeling_layers": "pushdown_lm.model.modeling",
    "pushdown_lm.model.configuration": "pushdown_lm.model.bracket_configuration",
    "pushdown_lm.model.modeling": "pushdown_lm.model.classification",
    "pushdown_lm.model.classification": "pushdown_lm.model.bracket_modeling",
}
"""What is imported right after each of these modules."""
OURS = "pushdown_lm.model."


def register_with_transformers() -> None:
    """Register with what is imported already, and later with the rest."""
    sys.meta_path.insert(0, _ImportAfter())
    for module, following in AFTER.items():
        if module in sys.modules:
            importlib.import_module(following)


class _ImportAfter(importlib.abc.MetaPathFinder):
    """Finds the modules of :data:`AFTER` and our own as Python would, and adds a step after their
    import."""

    def __init__(self) -> None:
        self.seen = set(sys.modules)
        self.postponed: list[str] = []

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if fullname in self.seen or not (fullname in AFTER or fullname.startswith(OURS)):
            return None
        self.seen.add(fullname)
        spec = importlib.util.find_spec(fullname)
        if spec is None or spec.loader is None:
            return None
        execute = spec.loader.exec_module

        def execute_both(module: ModuleType) -> None:
            execute(module)
            self.follow(fullname)

        spec.loader.exec_module = execute_both  # type: ignore[method-assign]
        return spec

    def follow(self, fullname: str) -> None:
        """Import what comes after a module, unless one of ours is not complete yet."""
        if fullname in AFTER and not (
            fullname.endswith("modeling_auto") and _is_importing_layers()
        ):
            self.postponed.append(AFTER[fullname])
        while self.postponed and not _is_importing_ours(besides=fullname):
            importlib.import_module(self.postponed.pop(0))


def _is_importing_ours(besides: str) -> bool:
    ours = (name for name in sys.modules if name.startswith(OURS) and name != besides)
    return any(getattr(sys.modules[name].__spec__, "_initializing", False) for name in ours)


def _is_importing_layers() -> bool:
    """Whether the auto classes are imported by the layers, which our decoder imports in turn."""
    layers = sys.modules.get("transformers.modeling_layers")
    return layers is not None and not hasattr(layers, "GradientCheckpointingLayer")
