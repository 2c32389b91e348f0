"""The explorer: how soon a parse shows, and whether the page answers while many sentences wait.

Without a model of one's own, the model is random, 6 layers of width 256 over the words of the
sentences, its attachment head sharpened as in :mod:`pushdown_lm.bench.search`.
"""

from __future__ import annotations

import http.client
import json
import statistics
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import torch

from pushdown_lm.bench.measure import Result
from pushdown_lm.bench.search import Case, models
from pushdown_lm.data.tokenization import train_word_vocabulary
from pushdown_lm.explorer.launch import serve_in_background
from pushdown_lm.explorer.library import Library
from pushdown_lm.search.pushdown_scorer import PushdownScorer

SENTENCE = "the {} that the farmer had seen near the river was not afraid of the dogs in the yard ."
"""20 words."""
NAMES = (
    *("fox", "horse", "man", "woman", "child", "bird", "cat", "girl", "boy", "king", "queen"),
    *("pilot", "doctor", "writer", "teacher", "singer", "rabbit", "lion", "student", "driver"),
)
PAGE_PAUSE = 0.05
"""Seconds between two requests of the page."""


def run(
    model: str | Path | None, *, requests: int, beam: int, threshold: float | None
) -> Iterator[Result]:
    """One sentence alone, then many at once."""
    scorer = random_scorer() if model is None else load(model)
    library = Library([scorer], threshold=threshold)
    setting = {"beam": beam, "threshold_nats": threshold, "threads": torch.get_num_threads()}
    try:
        with serve_in_background(library) as address:
            read(address, sentence(requests), beam)  # warm-up
            yield {"bench": "explore", "case": "alone", **alone(address, beam), **setting}
            figures = at_once(address, requests, beam)
            yield {"bench": "explore", "case": f"{requests} at once", **figures, **setting}
    finally:
        library.close()


def alone(address: str, beam: int) -> Result:
    """Seconds until the first token's parse shows, and until that of the whole sentence."""
    times = read(address, sentence(0), beam)
    return {
        "words": len(sentence(0).split()),
        "first_parse_seconds": round(times["step"], 3),
        "whole_parse_seconds": round(times["result"], 3),
    }


def at_once(address: str, requests: int, beam: int) -> Result:
    """How long the page takes to answer, and sentences wait, while many are read."""
    page_seconds: list[float] = []
    began = time.perf_counter()
    with ThreadPoolExecutor(max_workers=requests) as threads:
        readings = [
            threads.submit(read, address, sentence(number), beam)
            for number in range(1, requests + 1)
        ]
        while not all(reading.done() for reading in readings):
            asked = time.perf_counter()
            fetch_page(address)
            page_seconds.append(time.perf_counter() - asked)
            time.sleep(PAGE_PAUSE)
    seconds = time.perf_counter() - began
    times = [reading.result() for reading in readings]
    return {
        "page_seconds_median": round(statistics.median(page_seconds), 3),
        "page_seconds_longest": round(max(page_seconds), 3),
        "answer_seconds_longest": round(max(found["first"] for found in times), 3),
        "sentences_a_second": round(requests / seconds, 2),
        "wait_seconds_longest": round(max(found["result"] for found in times), 3),
    }


def read(address: str, text: str, beam: int) -> dict[str, float]:
    """Seconds until the first record of each kind; `first` is any."""
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    body = json.dumps({"sentence": text, "beam": beam})
    times: dict[str, float] = {}
    began = time.perf_counter()
    connection.request("POST", "/api/read", body, {"Content-Type": "application/json"})
    response = connection.getresponse()
    while line := response.readline():
        record: dict[str, Any] = json.loads(line)
        now = time.perf_counter() - began
        times.setdefault("first", now)
        times.setdefault(record.get("kind", "error"), now)
    connection.close()
    return times


def fetch_page(address: str) -> None:
    connection = http.client.HTTPConnection(urlsplit(address).netloc)
    connection.request("GET", "/")
    connection.getresponse().read()
    connection.close()


def sentence(number: int) -> str:
    """A sentence of 20 words, another one for every number."""
    name = NAMES[number % len(NAMES)]
    return " ".join([name] * (number // len(NAMES)) + [SENTENCE.format(name)])


def load(model: str | Path) -> PushdownScorer:
    return PushdownScorer.from_pretrained(model, allow_unknown=True)


def random_scorer() -> PushdownScorer:
    """A random model that knows all words of the sentences."""
    tokenizer = train_word_vocabulary([sentence(number).split() for number in range(len(NAMES))])
    random, _ = models(Case(6, 256, 8, len(tokenizer), sentences=0, length=64, beam=0))
    return PushdownScorer(random, tokenizer, name="random 6x256", allow_unknown=True)
