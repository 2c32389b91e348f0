"""`pushdown explore` as a person runs it."""

from __future__ import annotations

import builtins
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import pytest

from tests.command_line import run_pushdown
from tests.explorer.conftest import bpe_folder, word_folder

__all__ = ["bpe_folder", "word_folder"]


def test_it_serves_until_it_is_stopped(word_folder: Path) -> None:
    command = [sys.executable, "-m", "pushdown_lm", "explore", "--model", str(word_folder)]
    server = subprocess.Popen(
        [*command, "--port", "0", "--no-open"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "HF_HUB_OFFLINE": "1"},
    )
    assert server.stdout is not None
    address = server.stdout.readline().strip()
    assert address.startswith("http://127.0.0.1:")
    with urlopen(address) as page:
        assert "Pushdown explorer" in page.read().decode()
    server.send_signal(signal.SIGINT)
    _, error = server.communicate(timeout=60)
    assert "Traceback" not in error
    assert server.returncode in (0, 130)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--model", "nowhere"), "nowhere: no such folder, and no model of this name"),
        (("--model", "a", "--model", "b", "--model", "c"), "expected 1 or 2 models, got 3"),
    ],
)
def test_bad_models(arguments: tuple[str, ...], message: str) -> None:
    done = run_pushdown("explore", *arguments)
    assert done.exit_code == 2
    assert message in done.error


def test_a_port_in_use(word_folder: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        done = run_pushdown("explore", "--model", word_folder, "--port", port, "--no-open")
    assert done.exit_code == 2
    assert f"127.0.0.1:{port}: cannot be opened (Address already in use); see --port" in done.error


def test_the_extra_is_named_where_it_is_missing(
    word_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = builtins.__import__

    def without_uvicorn(name: str, *rest: Any, **named: Any) -> Any:
        if name == "uvicorn":
            raise ModuleNotFoundError("No module named 'uvicorn'", name="uvicorn")
        return real(name, *rest, **named)

    monkeypatch.setattr(builtins, "__import__", without_uvicorn)
    done = run_pushdown("explore", "--model", word_folder, "--port", 0, "--no-open")
    assert done.exit_code == 2
    assert "uvicorn is not installed: pip install 'pushdown-lm[web]'" in done.error
