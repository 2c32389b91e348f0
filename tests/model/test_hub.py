"""A name that is not on disk is asked for once, of a server on this machine."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from huggingface_hub import constants

from pushdown_lm.model.hub import HubError, check_source


class Hub(BaseHTTPRequestHandler):
    """Knows one model."""

    asked: list[str] = []  # noqa: RUF012

    def do_GET(self) -> None:
        if self.path.startswith("/api/models/"):  # the client has other questions, too
            self.asked.append(self.path)
        if self.path == "/api/models/someone/something":
            self.answer(200, {"id": "someone/something"})
        else:
            self.answer(404, {"error": "Repository not found"}, {"X-Error-Code": "RepoNotFound"})

    def answer(self, status: int, body: dict[str, str], headers: dict[str, str] | None = None):
        self.send_response(status)
        for name, value in (headers or {}).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(json.dumps(body).encode())

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """The requests for models that the server was sent."""
    server = HTTPServer(("127.0.0.1", 0), Hub)
    Thread(target=server.serve_forever, daemon=True).start()
    Hub.asked = []
    monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{server.server_port}")
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    yield Hub.asked
    server.shutdown()
    server.server_close()


def test_models_of_the_hub_pass(hub: list[str]) -> None:
    check_source("someone/something")
    assert hub == ["/api/models/someone/something"]


def test_unknown_names_are_asked_for_once(hub: list[str]) -> None:
    with pytest.raises(HubError, match=r"^nobody/nothing: no such file or folder, nor a model of"):
        check_source("nobody/nothing")
    assert hub == ["/api/models/nobody/nothing"]


@pytest.mark.parametrize("source", ["/no/such/path", "./model", "a/b/c", "no model"])
def test_paths_are_not_asked_for(hub: list[str], source: str) -> None:
    with pytest.raises(HubError, match="nor a name of the Hub"):
        check_source(source)
    assert hub == []


def test_what_is_on_disk_or_in_the_cache_is_not_asked_for(
    hub: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    (tmp_path / "models--nobody--nothing").mkdir()
    check_source("nobody/nothing")
    check_source(str(tmp_path))
    assert hub == []


def test_without_a_network_the_error_comes_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))  # and does not listen
        port = unused.getsockname()[1]
        monkeypatch.setattr(constants, "ENDPOINT", f"http://127.0.0.1:{port}")
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        with pytest.raises(HubError, match=r"^gpt3: no such file or folder, and the Hub cannot be"):
            check_source("gpt3")
