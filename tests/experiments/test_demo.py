"""The demo, end to end at a tiny size."""

from __future__ import annotations

import json
from pathlib import Path

from tests.command_line import run_pushdown

TINY = [
    "--sentences=150",
    "--items=1",
    "--set=training.steps=3",
    "--set=training.warmup_steps=1",
    "--set=model.decoder.num_hidden_layers=1",
    "--set=model.decoder.hidden_size=16",
    "--set=model.decoder.no_rope_layers=[0]",
]


def test_demo_end_to_end(tmp_path: Path) -> None:
    command = ["demo", f"--out={tmp_path}", *TINY]
    done = run_pushdown(*command)
    assert done.exit_code == 0
    results = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    for model in ("Base-LM", "Pushdown-LM"):
        figures = results["seeds"]["0"][model]
        assert set(figures["accuracy"]) == {"1", "2", "3", "4", "5"}
        assert all(0 <= value <= 1 for value in figures["accuracy"]["5"].values())
        assert figures["perplexity"]["deep"] > 1
        assert 0 <= figures["parsing_f1"]["shallow"] <= 1
        assert model in done.output
    assert "centre embedding" in done.output
    assert "| Pushdown-LM, agreement |" in (tmp_path / "table.md").read_text(encoding="utf-8")
    for plot in ("accuracy.png", "surprisals.png"):
        assert (tmp_path / plot).read_bytes().startswith(b"\x89PNG")

    again = run_pushdown(*command)  # nothing is trained anew
    assert again.exit_code == 0
    repeated = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))
    assert repeated["seeds"] == results["seeds"]
