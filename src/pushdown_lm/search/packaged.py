"""Models by name: installed as packages of their own, or on the Hub.

A package such as ``pushdown-lm-english`` holds model folders and names them in its metadata:

    [project.entry-points."pushdown_lm.models"]
    english = "pushdown_lm_english:english"

where the value is the path of a folder. Everything that takes a model's folder takes such a name,
and the name of a model on the Hub with its owner's, such as ``HuggingFaceTB/SmolLM2-135M``.
"""

from __future__ import annotations

import re
from importlib.metadata import EntryPoint, entry_points
from pathlib import Path

from pushdown_lm.errors import PushdownError

GROUP = "pushdown_lm.models"
DEFAULT_MODEL = "english"
"""The model in the box."""
PROVENANCE = "training.json"
"""In the folder of an installed model, how it was trained: its recipe and final metrics."""
IN_THE_BOX = (DEFAULT_MODEL, "english-base")


class ModelNameError(PushdownError):
    """Neither a folder nor the name of an installed model."""


def installed_models() -> dict[str, EntryPoint]:
    """The models that are installed, by name."""
    return {entry.name: entry for entry in sorted(entry_points(group=GROUP), key=lambda e: e.name)}


def find_model(name_or_folder: str | Path) -> Path:
    """The folder of a model: the folder itself, or that of the installed model of this name, or the
    folder into which a model of the Hub was downloaded.

    A folder of the name wins over an installed model.
    """
    folder = Path(name_or_folder)
    if folder.exists():
        return folder
    if re.fullmatch(r"[\w-][\w.-]*/[\w.-]+", str(name_or_folder)):
        from pushdown_lm.model.hub import download_model

        return download_model(str(name_or_folder))
    installed = installed_models()
    if str(name_or_folder) not in installed:
        known = ", ".join(installed) or "none"
        hint = f"; pip install models/{name_or_folder}" if name_or_folder in IN_THE_BOX else ""
        raise ModelNameError(
            f"{name_or_folder}: no such folder, and no model of this name is installed "
            f"(installed: {known}{hint})"
        )
    found = Path(installed[str(name_or_folder)].load())
    if not found.is_dir():
        raise ModelNameError(f"{name_or_folder}: its package names {found}, which is not a folder")
    return found
