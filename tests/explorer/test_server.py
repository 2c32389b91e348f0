"""The server over real connections: answers, refusals, and pages that move on."""

from __future__ import annotations

import http.client
import json
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

import pytest

from pushdown_lm.explorer.launch import serve_in_background
from pushdown_lm.explorer.library import Library
from pushdown_lm.explorer.server import MAX_BODY

SENTENCE = "the dog hasn't barked."
HOSTILE = "<script>x()</script> & <b>"


def ask(
    address: str,
    path: str,
    body: Any = None,
    headers: Mapping[str, str] | None = None,
) -> tuple[int, dict[str, str], str]:
    """Status, headers and text of an answer; a body is posted as JSON."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    content = None if body is None else json.dumps(body)
    sent = {"Content-Type": "application/json", **(headers or {})}
    connection.request("GET" if body is None else "POST", path, content, sent)
    response = connection.getresponse()
    found = {name.lower(): value for name, value in response.getheaders()}
    text = response.read().decode()
    connection.close()
    return response.status, found, text


def read(address: str, sentence: str, **options: int) -> list[dict[str, Any]]:
    status, _, text = ask(address, "/api/read", {"sentence": sentence, **options})
    assert status == 200, text
    return [json.loads(line) for line in text.splitlines()]


def error(answer: tuple[int, dict[str, str], str]) -> tuple[int, str]:
    status, _, text = answer
    return status, json.loads(text)["error"]


@pytest.fixture(scope="module")
def number(address: str) -> str:
    return read(address, SENTENCE)[0]["id"]


def test_the_page_needs_nothing_from_elsewhere(address: str) -> None:
    for path, kind in (
        ("/", "text/html"),
        ("/page/style.css", "text/css"),
        ("/page/app.js", "text/javascript"),
    ):
        status, headers, text = ask(address, path)
        assert (status, headers["content-type"].split(";")[0]) == (200, kind)
        assert "default-src 'none'" in headers["content-security-policy"]
        assert headers["x-content-type-options"] == "nosniff"
        assert headers["referrer-policy"] == "no-referrer"
        assert "http://" not in text
        assert "https://" not in text
    assert ask(address, "/page/../server.py")[0] == 404
    assert error(ask(address, "/page/server.py")) == (404, "no such file")


def test_models_limits_and_examples(address: str, library: Library) -> None:
    _, _, text = ask(address, "/api/models")
    told = json.loads(text)
    assert [model["name"] for model in told["models"]] == ["pieces", "words"]
    assert told["limits"]["beam"] == library.limits.beam
    for example in told["examples"]:
        assert example["shows"]
        library.open(0, example["text"], 1)


def test_records_are_streamed_before_the_end(address: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
    body = json.dumps({"sentence": SENTENCE, "beam": 77})
    connection.request("POST", "/api/read", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    assert response.getheader("content-type") == "application/x-ndjson"
    assert response.chunked
    assert json.loads(response.readline())["kind"] == "sentence"
    kinds = [json.loads(line)["kind"] for line in response.read().decode().splitlines()]
    assert kinds[0] == "step"
    assert kinds[-1] == "result"
    connection.close()


@pytest.mark.parametrize(
    "path",
    [
        "tree.svg?step=2",
        "tape.svg?step=3&rank=1",
        "attention.svg?position=2",
        "attention.svg?position=2&layer=1&head=0",
        "reading.svg?step=2",
    ],
)
def test_pictures(address: str, number: str, path: str) -> None:
    status, headers, text = ask(address, f"/api/readings/{number}/{path}")
    assert (status, headers["content-type"]) == (200, "image/svg+xml")
    assert ElementTree.fromstring(text).tag.endswith("svg")


def test_downloads(address: str, number: str) -> None:
    for name in ("reading.svg?step=1", "reading.tsv", "reading.json"):
        status, headers, text = ask(address, f"/api/readings/{number}/{name}")
        assert status == 200
        file = name.partition("?")[0]
        assert headers["content-disposition"] == f'attachment; filename="{file}"'
        assert text
    assert json.loads(ask(address, f"/api/readings/{number}/reading.json")[2])["steps"]


def test_two_models_are_compared(address: str) -> None:
    text = "the dog is here"
    numbers = [read(address, text, model=model)[0]["id"] for model in (0, 1)]
    query = "&".join(f"reading={number}" for number in numbers)
    status, _, picture = ask(address, f"/api/compare.svg?{query}")
    assert status == 200
    assert all(f">{name}</text>" in picture for name in ("pieces", "words", *text.split()))
    other = read(address, "she is here")[0]["id"]
    answer = ask(address, f"/api/compare.svg?reading={other}&reading={numbers[1]}")
    assert error(answer) == (422, "expected readings of one sentence")


def test_tags_are_text(address: str) -> None:
    records = read(address, HOSTILE)
    assert records[0]["text"] == HOSTILE
    for record in records[1:-1]:
        names = {element.tag for element in ElementTree.fromstring(record["picture"]).iter()}
        assert not any(name.endswith(("script", "}b")) for name in names)


@pytest.mark.parametrize(
    ("body", "status", "message"),
    [
        ({"sentence": "dog " * 10_000}, 422, "at most 200 characters, got 39999"),
        ({"sentence": "a\x00b"}, 422, "found the character U+0000 at place 2"),
        ({"sentence": ""}, 422, "expected a sentence, got none"),
        ({"sentence": 5}, 422, "sentence: Input should be a valid string"),
        ({"sentence": "dog", "beam": 10**6}, 422, "beam: expected 1 to 100, got 1000000"),
        ({"sentence": "dog", "beams": 3}, 422, "beams: Extra inputs are not permitted"),
        ({"sentence": "dog", "model": 9}, 422, "model: expected 0 to 1, got 9"),
        ({"sentence": "x" * MAX_BODY}, 413, f"at most {MAX_BODY} bytes"),
        ([], 422, "request: "),
    ],
)
def test_bad_requests(address: str, body: Any, status: int, message: str) -> None:
    found, text = error(ask(address, "/api/read", body))
    assert found == status
    assert message in text


def test_what_is_not_kept_is_said(address: str, number: str) -> None:
    missing = error(ask(address, "/api/readings/nothing/reading.tsv"))
    assert missing == (422, "this sentence is no longer kept; read it again")
    status, message = error(ask(address, f"/api/readings/{number}/tree.svg?step=999"))
    assert (status, message[:17]) == (422, "step: expected 1 ")
    status, message = error(ask(address, f"/api/readings/{number}/tree.svg?step=one"))
    assert (status, message[:5]) == (422, "step:")


def test_names_of_other_machines_are_refused(address: str) -> None:
    answer = ask(address, "/api/models", headers={"Host": "elsewhere.example:80"})
    assert error(answer) == (400, "expected a loopback address, got 'elsewhere.example'")
    assert ask(address, "/api/models", headers={"Host": "localhost"})[0] == 200
    assert ask(address, "/api/models", headers={"Host": "[::1]:80"})[0] == 200


def test_posts_from_other_pages_are_refused(address: str) -> None:
    """A page from elsewhere can post plain text without asking; JSON it cannot."""
    answer = ask(address, "/api/read", {"sentence": "dog"}, {"Content-Type": "text/plain"})
    assert error(answer)[0] == 422


def test_the_token_lets_in(library: Library) -> None:
    with serve_in_background(library, token="opensesame") as address:
        assert address.endswith("/?token=opensesame")
        for path in ("/", "/api/models", "/?token=", "/?token=wrong"):
            assert error(ask(address, path))[0] == 403
        assert ask(address, "/?token=opensesame")[0] == 200
        far = {"Host": "machine.example"}
        assert ask(address, "/api/models?token=opensesame", headers=far)[0] == 200
        assert ask(address, "/page/app.js")[0] == 200


def test_a_page_that_moves_on_ends_its_search(library: Library) -> None:
    with serve_in_background(library) as address:
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=30)
        text = "the dog has seen that she is here, and the dog barks, and she has seen"
        body = json.dumps({"sentence": text, "beam": 100})
        connection.request("POST", "/api/read", body, {"Content-Type": "application/json"})
        response = connection.getresponse()
        number = json.loads(response.readline())["id"]
        response.close()
        connection.close()
        deadline = time.monotonic() + 20
        while len(library.line) and time.monotonic() < deadline:
            time.sleep(0.01)
        assert len(library.line) == 0
        with pytest.raises(KeyError):
            library.find(number)
        assert read(address, "she is here")[-1]["kind"] == "result"
