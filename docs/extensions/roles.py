"""Docstrings name other objects as :func:`name`; on the site these become links.

A name is looked up from where it stands, as Python would: first in the object itself, then in what
holds it. A name that is not documented stays as code.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

_ROLE = re.compile(r":(?:attr|class|const|data|exc|func|meth|mod):`~?([\w.]+)`")


class Roles(griffe.Extension):
    """Turns roles into links."""

    def on_package(self, *, pkg: griffe.Module, **_: Any) -> None:
        self._visit(pkg)

    def _visit(self, item: griffe.Object) -> None:
        if item.docstring is not None:
            item.docstring.value = _ROLE.sub(
                lambda role: _link(item, role[1]), item.docstring.value
            )
        for member in item.members.values():
            if not member.is_alias:
                self._visit(member)


def _link(item: griffe.Object, name: str) -> str:
    shown = f"`{name.removeprefix('pushdown_lm.')}`"
    try:
        path = name if name.startswith("pushdown_lm.") else item.resolve(name)
        target = item.modules_collection[path]
    except (KeyError, griffe.NameResolutionError, griffe.AliasResolutionError):
        return shown
    private = any(part.startswith("_") for part in target.path.split("."))
    return shown if private else f"[{shown}][{target.path}]"
