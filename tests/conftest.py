"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

settings.register_profile(
    "pushdown",
    deadline=None,
    max_examples=50,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    derandomize=True,
)
settings.load_profile("pushdown")


@pytest.fixture(scope="session")
def shared_data() -> Path:
    """The folder of real corpora; tests that use it skip where it is absent."""
    named = os.environ.get("PUSHDOWN_DATA")
    if not named:
        pytest.skip("set PUSHDOWN_DATA to the folder of real corpora to run this test")
    folder = Path(named)
    assert folder.is_dir(), f"PUSHDOWN_DATA: {folder} is not a folder"
    return folder
