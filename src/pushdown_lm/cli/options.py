"""Options that several commands share, and exit codes."""

from __future__ import annotations

from typing import Annotated

import typer

EXIT_SOME_FAILED, EXIT_BAD_INPUT, EXIT_INTERNAL, EXIT_INTERRUPTED = 1, 2, 70, 130

Beam = Annotated[int, typer.Option(min=1, help="Parses that search keeps per sentence.")]
Threshold = Annotated[
    float, typer.Option(metavar="NATS", help="Drop parses this far below the best one, for speed.")
]
Exact = Annotated[
    bool, typer.Option("--exact", help="No threshold: --beam 300 --exact is the paper's search.")
]
AllowUnknown = Annotated[
    bool, typer.Option("--allow-unknown", help="Read words outside the vocabulary as <unk>.")
]
