"""Models of the Hub, by name.

Transformers asks the Hub for each file of a model, and repeats each failing request for half a
minute. A mistyped path is found out by one question instead.
"""

from __future__ import annotations

import re
from pathlib import Path

from huggingface_hub import HfApi, constants, snapshot_download
from huggingface_hub.errors import RepositoryNotFoundError
from huggingface_hub.file_download import repo_folder_name

from pushdown_lm.errors import PushdownError, first_line

HUB_NAME = re.compile(r"[\w-][\w.-]*(/[\w.-]+)?")
FILES = ("*.json", "*.safetensors", "*.txt", "*.model")
"""What is downloaded of a model: no weights that are pickled, or for other programs."""
PATIENCE = 10
"""Seconds that the Hub has for its answer."""


class HubError(PushdownError):
    """A source that is neither on disk nor on the Hub."""


def check_source(source: str) -> None:
    """Refuse what is neither a path on disk nor, asked once, the name of a model on the Hub."""
    if Path(source).exists():
        return
    if HUB_NAME.fullmatch(source) is None:
        raise HubError(f"{source}: no such file or folder, nor a name of the Hub")
    if Path(constants.HF_HUB_CACHE, repo_folder_name(repo_id=source, repo_type="model")).is_dir():
        return
    try:
        HfApi().model_info(source, timeout=PATIENCE)
    except RepositoryNotFoundError as error:
        raise HubError(f"{source}: no such file or folder, nor a model of the Hub") from error
    except Exception as error:  # of many kinds: offline, no network, no answer in time
        raise HubError(
            f"{source}: no such file or folder, and the Hub cannot be asked: {first_line(error)}"
        ) from error


def download_model(name: str) -> Path:
    """The folder with the files of a model of the Hub, or of the cache without a network."""
    check_source(name)
    try:
        return Path(snapshot_download(name, allow_patterns=list(FILES)))
    except Exception as error:  # of many kinds: a broken connection, a full disk
        raise HubError(f"{name}: cannot be downloaded: {first_line(error)}") from error
