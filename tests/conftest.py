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
    default = Path(__file__).resolve().parents[1].parent / "shared" / "data"
    folder = Path(os.environ.get("PUSHDOWN_DATA", default))
    if not folder.is_dir():
        pytest.skip(f"real corpora are absent ({folder}); set PUSHDOWN_DATA to run this test")
    return folder
