"""Starting the explorer: models, address, token."""

from __future__ import annotations

import os
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from threading import Thread
from typing import TYPE_CHECKING
from urllib.parse import quote

from pushdown_lm.data.tokenization import load_tokenizer
from pushdown_lm.errors import PushdownError
from pushdown_lm.explorer.library import LOOPBACK, Library, Limits
from pushdown_lm.model.forbidden import special_ids
from pushdown_lm.model.modeling import PushdownForCausalLM
from pushdown_lm.search.loading import BaseLMScorer, load_scorer
from pushdown_lm.search.packaged import find_model
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from pushdown_lm.search.scorer import CausalLMScorer

if TYPE_CHECKING:
    import uvicorn

MAX_MODELS = 2


def load_library(
    models: Sequence[str | Path],
    *,
    threshold: float | None,
    allow_unknown: bool = False,
    limits: Limits | None = None,
) -> Library:
    """The models that the page shows side by side."""
    if not 1 <= len(models) <= MAX_MODELS:
        raise PushdownError(f"expected 1 or {MAX_MODELS} models, got {len(models)}")
    scorers = [load_model(model, allow_unknown=allow_unknown) for model in models]
    return Library(scorers, threshold=threshold, limits=limits)


def load_model(model: str | Path, *, allow_unknown: bool = False) -> PushdownScorer:
    """A Pushdown model, or any language model of Transformers as one with nothing added to it."""
    loaded = load_scorer(model, allow_unknown=allow_unknown)
    if isinstance(loaded, BaseLMScorer):
        loaded = loaded.parser
    elif isinstance(loaded, CausalLMScorer):
        loaded = _as_pushdown(loaded, find_model(model), allow_unknown)
    if not isinstance(loaded, PushdownScorer):
        raise PushdownError(f"{model}: the explorer does not show models that read brackets")
    if loaded.model.config.pushdown_layers and not loaded.parses:
        raise PushdownError(
            f"{model}: expected a model with an attachment head, which chooses the parses that its "
            "Pushdown Layers read"
        )
    loaded.name = str(model)
    return loaded


def _as_pushdown(plain: CausalLMScorer, folder: Path, allow_unknown: bool) -> PushdownScorer:
    tokenizer = load_tokenizer(folder)
    model = PushdownForCausalLM.from_lm(
        plain.model.float(), pushdown_layers=[], attachment_head=None, **special_ids(tokenizer)
    )
    return PushdownScorer(model, tokenizer, allow_unknown=allow_unknown)


def serve(library: Library, *, host: str, port: int, announce: Callable[[str], None]) -> None:
    """Serve until Ctrl-C; ``announce`` gets the address once it is open.

    Any host but a loopback one makes a token, which is part of the address.
    """
    token = None if host in LOOPBACK else secrets.token_urlsafe(16)
    with closing(open_socket(host, port)) as listener:
        server = make_server(library, token)
        announce(address(host, listener.getsockname()[1], token))
        try:
            server.run(sockets=[listener])
        finally:
            library.close()


@contextmanager
def serve_in_background(library: Library, *, token: str | None = None) -> Iterator[str]:
    """A server on a free port of this machine while the block runs; its address."""
    with closing(open_socket("127.0.0.1", 0)) as listener:
        server = make_server(library, token)
        thread = Thread(target=server.run, kwargs={"sockets": [listener]}, daemon=True)
        thread.start()
        while not server.started and thread.is_alive():
            time.sleep(0.01)
        try:
            yield address("127.0.0.1", listener.getsockname()[1], token)
        finally:
            server.should_exit = True
            thread.join()


def make_server(library: Library, token: str | None = None) -> uvicorn.Server:
    """A server that is not started."""
    try:
        import uvicorn

        from pushdown_lm.explorer.server import build_app
    except ImportError as error:
        raise PushdownError(
            f"{error.name} is not installed: pip install 'pushdown-lm[web]'"
        ) from None
    config = uvicorn.Config(
        build_app(library, token=token), log_level="warning", timeout_graceful_shutdown=1
    )
    return uvicorn.Server(config)


def open_socket(host: str, port: int) -> socket.socket:
    """A socket that listens; port 0 is any that is free."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=128)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else error
        raise PushdownError(f"{host}:{port}: cannot be opened ({reason}); see --port") from None


def address(host: str, port: int, token: str | None) -> str:
    """What to open in a browser.

    >>> address("127.0.0.1", 8765, None)
    'http://127.0.0.1:8765/'
    """
    shown = socket.gethostname() if host in ("0.0.0.0", "::") else host
    name = f"[{shown}]" if ":" in shown else shown
    return f"http://{name}:{port}/" + (f"?token={quote(token)}" if token else "")
