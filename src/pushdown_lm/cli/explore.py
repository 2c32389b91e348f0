"""`pushdown explore`: a local page on which models read sentences."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from pushdown_lm.cli.options import AllowUnknown, Exact, Threshold
from pushdown_lm.search.defaults import DEFAULT_THRESHOLD


def explore(
    model: Annotated[
        list[str] | None,
        typer.Option(
            help="A model's folder or the name of an installed model; twice for two side by side. "
            "By default the installed model `english`."
        ),
    ] = None,
    host: Annotated[
        str, typer.Option(help="Where to listen. Anything but a loopback address needs the token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 for any free one.")] = 8765,
    open_browser: Annotated[
        bool, typer.Option("--open/--no-open", help="Open the page in a browser.")
    ] = True,
    threshold: Threshold = DEFAULT_THRESHOLD,
    exact: Exact = False,
    allow_unknown: AllowUnknown = False,
) -> None:
    """Look at how a model reads a sentence, on a page in the browser.

    Type a sentence and see, token by token, the tree grow, the stack and its tape, surprisals and
    what was expected, the most probable parses, attention, and what the search dropped. The page
    needs no network. Press Ctrl-C to stop.

    pushdown explore

    pushdown explore --model runs/demo/seed0/demo/model --model runs/demo/seed0/demo-base/model
    """
    import webbrowser

    from transformers.utils import logging

    from pushdown_lm.console import show_loading
    from pushdown_lm.explorer.launch import load_library, serve
    from pushdown_lm.search.packaged import DEFAULT_MODEL

    models = model or [DEFAULT_MODEL]
    for name in models:
        show_loading(name)
    logging.disable_progress_bar()
    library = load_library(
        models, threshold=None if exact else threshold, allow_unknown=allow_unknown
    )

    def announce(address: str) -> None:
        print(address, flush=True)
        print("Press Ctrl-C to stop.", file=sys.stderr)
        if open_browser:
            webbrowser.open(address)

    serve(library, host=host, port=port, announce=announce)
