"""Weights of a model folder: all of them, or an error that names the folder.

Transformers fills missing weights with random numbers and a warning. A model read so would give
numbers that look right, so here that is an error, as is any complaint about damaged files.
"""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path
from typing import Any, TypeVar

from transformers import PreTrainedModel

from pushdown_lm.errors import PushdownError
from pushdown_lm.files import verify_if_listed

Model = TypeVar("Model", bound=PreTrainedModel)


class ModelFolderError(PushdownError):
    """A folder that holds no model that can be used."""


def load_weights(
    kind: type[Model], folder: str | Path, *, new: Collection[str] = (), **options: Any
) -> Model:
    """``kind.from_pretrained(folder)``, if the folder has every weight in its right shape.

    A folder with a manifest is verified first.

    Args:
        new: weights that the folder need not have, as the scores of a new classifier.
    """
    verify_if_listed(folder)
    try:
        loaded: Any = kind.from_pretrained(
            str(folder), use_safetensors=True, output_loading_info=True, **options
        )
    except PushdownError as error:
        raise ModelFolderError(f"{folder}: config.json: {error}") from error
    except Exception as error:  # of whatever kind a damaged file makes it
        detail = " ".join(str(error).split())[:300] or type(error).__name__
        raise ModelFolderError(f"{folder}: cannot be loaded: {detail}") from error
    model, report = loaded
    for problem in ("missing", "mismatched", "unexpected"):
        names = sorted(set(map(str, report.get(f"{problem}_keys") or ())) - set(new))
        if names:
            more = f" and {len(names) - 1} more" if len(names) > 1 else ""
            raise ModelFolderError(
                f"{folder}: config.json and the weights do not agree: {problem} {names[0]}{more}"
            )
    found: Model = model
    return found
