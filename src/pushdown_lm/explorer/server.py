"""The explorer's server: one page, and models that read sentences for it.

    GET  /                                   the page
    GET  /api/models                         the models, limits and examples
    POST /api/read                           records as JSON lines, while the model reads
    GET  /api/readings/NUMBER/tree.svg       pictures and files of what was read

Whoever opens an address other than a loopback one needs the token in it. Without one the server
answers to loopback names only, so that a page from elsewhere cannot reach it through a name of its
own.
"""

from __future__ import annotations

import hmac
import json
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from dataclasses import asdict
from importlib.resources import files
from typing import Annotated, Any

from fastapi import FastAPI, Query, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response, StreamingResponse
from pydantic import BaseModel, ConfigDict
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from pushdown_lm import viz
from pushdown_lm.errors import PushdownError
from pushdown_lm.explorer.library import LOOPBACK, Library
from pushdown_lm.explorer.reading import Reading

MAX_BODY = 64 * 1024
"""Bytes of a request."""
SVG = "image/svg+xml"
ASSETS = {"index.html": "text/html", "app.js": "text/javascript", "style.css": "text/css"}
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; "
    "img-src 'self' data:; connect-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'",
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cache-Control": "no-store",
}
ENGLISH = {
    "After the boys left the room became quiet.": "a garden path: is the room what they left?",
    "After the boys left, the room became quiet.": "the same with a comma: no garden path",
    "The horse raced past the barn fell.": "a garden path: the horse that was raced",
    "The soldiers told about the attack left the city.": "a garden path: those who were told",
    "The man heard the story was not true.": "a garden path: is the story what he heard?",
    "The roads to the city are closed.": "agreement over a noun in between",
    "The roads to the city is closed.": "the same with the wrong verb",
    "The song that the girl who the king married wrote was long.": "center embedding",
}
BUILT_IN = {
    "the boys that the dog likes are happy .": "agreement over a relative clause",
    "the queen said that she had seen the fox .": "a clause as the object",
    "the dog near the cats that the boy sees likes the king .": "agreement over two nouns",
}
"""Sentences of English and of the built-in grammar, and what they show; the page offers those that
the first model can read."""


class ReadRequest(BaseModel):
    """A sentence to read."""

    model_config = ConfigDict(extra="forbid")

    sentence: str
    model: int = 0
    beam: int = 50


def build_app(library: Library, *, token: str | None = None) -> FastAPI:
    """The application; ``token``, if any, is needed for all but the page's script and style."""

    app = FastAPI(title="pushdown explore", docs_url=None, redoc_url=None, openapi_url=None)
    page = {name: (files(__package__) / "page" / name).read_bytes() for name in ASSETS}
    examples = choose_examples(library)

    app.add_middleware(Guard, token=token)

    @app.exception_handler(PushdownError)
    async def bad_input(_: Request, error: PushdownError) -> Response:
        return _error(422, str(error))

    @app.exception_handler(RequestValidationError)
    async def bad_request(_: Request, error: RequestValidationError) -> Response:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"][1:])) or "request"
        return _error(422, f"{place}: {first['msg']}")

    @app.get("/")
    async def index() -> Response:
        return Response(page["index.html"], media_type=ASSETS["index.html"])

    @app.get("/page/{name}")
    async def asset(name: str) -> Response:
        if name not in page:
            return _error(404, "no such file")
        return Response(page[name], media_type=ASSETS[name])

    @app.get("/api/models")
    async def models() -> dict[str, Any]:
        return {
            "models": library.describe(),
            "limits": asdict(library.limits),
            "threshold": library.threshold,
            "examples": examples,
        }

    @app.post("/api/read")
    async def read(asked: ReadRequest) -> Response:
        number, reading = library.open(asked.model, asked.sentence, asked.beam)
        return StreamingResponse(
            _lines(library, number, reading), media_type="application/x-ndjson"
        )

    def find(number: str) -> Reading:
        try:
            return library.find(number)
        except KeyError:
            raise PushdownError("this sentence is no longer kept; read it again") from None

    @app.get("/api/readings/{number}/tree.svg")
    async def tree(number: str, step: int, rank: int = 0) -> Response:
        return _svg(find(number).picture(step, rank))

    @app.get("/api/readings/{number}/tape.svg")
    async def tape(number: str, step: int, rank: int = 0) -> Response:
        return _svg(find(number).tape_picture(step, rank))

    @app.get("/api/readings/{number}/attention.svg")
    async def attention(
        number: str, position: int, layer: int | None = None, head: int | None = None
    ) -> Response:
        return _svg(find(number).attention_picture(position, layer, head))

    @app.get("/api/readings/{number}/reading.svg")
    async def picture(number: str, step: int, rank: int = 0) -> Response:
        return _file("reading.svg", SVG, find(number).picture(step, rank, whole_tape=True))

    @app.get("/api/readings/{number}/reading.tsv")
    async def table(number: str) -> Response:
        return _file("reading.tsv", "text/tab-separated-values", find(number).to_tsv())

    @app.get("/api/readings/{number}/reading.json")
    async def record(number: str) -> Response:
        text = json.dumps(find(number).to_json(), ensure_ascii=False, indent=1)
        return _file("reading.json", "application/json", text)

    @app.get("/api/compare.svg")
    async def compare(numbers: Annotated[list[str], Query(alias="reading")]) -> Response:
        readings = [find(number) for number in numbers[: len(library.scorers)]]
        return _svg(compare_picture(dict(zip(library.names, readings, strict=False))))

    return app


async def _lines(library: Library, number: str, reading: Reading) -> AsyncIterator[str]:
    async with aclosing(library.read(number, reading)) as records:
        try:
            async for record in records:
                shown = {**record, "id": number} if record["kind"] == "sentence" else record
                yield json.dumps(shown, ensure_ascii=False, allow_nan=False) + "\n"
        except PushdownError as error:
            yield json.dumps({"kind": "error", "message": str(error)}) + "\n"


def compare_picture(readings: Mapping[str, Reading]) -> str:
    """The surprisals of the words under several models, side by side."""
    words = {name: reading.result_record()["words"] for name, reading in readings.items()}
    texts = [[word["word"] for word in found[:-1]] for found in words.values()]
    if any(other != texts[0] for other in texts[1:]):
        raise PushdownError("expected readings of one sentence")
    bits = {name: [word["surprisal"] for word in found] for name, found in words.items()}
    return viz.surprisals([*texts[0], "end"], bits)


def choose_examples(library: Library) -> list[dict[str, str]]:
    """The examples that the first model can read, English ones if there are any."""
    readable = (
        [
            {"text": text, "shows": shows}
            for text, shows in group.items()
            if _can_read(library, text)
        ]
        for group in (ENGLISH, BUILT_IN)
    )
    return next(filter(None, readable), [])


def _can_read(library: Library, sentence: str) -> bool:
    try:
        library.open(0, sentence, 1)
    except PushdownError:
        return False
    return True


class Guard:
    """Refuses requests that are too large, come through a foreign name or lack the token; puts the
    headers onto all answers."""

    def __init__(self, app: ASGIApp, token: str | None) -> None:
        self.app, self.token = app, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self.app(scope, receive, send)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message).update(HEADERS)
            await send(message)

        answer = self.refusal(Request(scope)) or self.app
        return await answer(scope, receive, send_with_headers)

    def refusal(self, request: Request) -> Response | None:
        """The answer to a request that is not let in."""
        if self.token is None:
            name = request.headers.get("host", "").rsplit(":", 1)[0].strip("[]")
            if name not in LOOPBACK:
                return _error(400, f"expected a loopback address, got {name!r}")
        elif not request.url.path.startswith("/page/"):
            given = request.query_params.get("token", "")
            if not hmac.compare_digest(given.encode(), self.token.encode()):
                return _error(403, "expected the token of the address that was shown")
        length = request.headers.get("content-length", "")
        if request.method == "POST" and not (length.isdecimal() and int(length) <= MAX_BODY):
            return _error(413, f"expected a request of at most {MAX_BODY} bytes")
        return None


def _error(status: int, message: str) -> Response:
    return JSONResponse({"error": message}, status)


def _svg(picture: str) -> Response:
    return Response(picture, media_type=SVG)


def _file(name: str, media_type: str, content: str) -> Response:
    disposition = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(content, media_type=media_type, headers=disposition)
