"""Models of the Hub by name, out of a cache that its client has filled; without a network."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants

from pushdown_lm.model.hub import HubError
from pushdown_lm.search.loading import load_scorer
from pushdown_lm.search.packaged import find_model
from tests.evals.conftest import build_tokenizer
from tests.models import plain_model


@pytest.fixture
def cached(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of someone/tiny in the cache."""
    commit = "0123456789abcdef0123456789abcdef01234567"
    entry = tmp_path / "cache" / "models--someone--tiny"
    folder = entry / "snapshots" / commit
    (entry / "refs").mkdir(parents=True)
    (entry / "refs" / "main").write_text(commit)
    tokenizer = build_tokenizer()
    plain_model(len(tokenizer)).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return folder


def test_a_model_of_the_cache_is_loaded_by_its_name(cached: Path) -> None:
    assert find_model("someone/tiny") == cached
    by_name, by_folder = load_scorer("someone/tiny"), load_scorer(cached)
    assert by_name.name == "someone/tiny"
    assert by_name.log_probs(["the dog"]) == by_folder.log_probs(["the dog"])


def test_a_folder_wins_over_a_name_of_the_hub(
    cached: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "someone" / "tiny").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert find_model("someone/tiny") == Path("someone/tiny")


def test_an_incomplete_model_of_the_cache(cached: Path) -> None:
    shutil.rmtree(cached)
    with pytest.raises(HubError, match=r"^someone/tiny: cannot be downloaded: "):
        find_model("someone/tiny")
