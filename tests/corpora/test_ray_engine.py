"""Ray Data as the engine gives what one process gives, also when a worker dies."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from pushdown_lm.corpora.build import build_corpus
from tests.corpora.parsers.test_command import TOY
from tests.corpora.test_build import OPTIONS, contents, numbered, write


@pytest.mark.slow
def test_both_engines_agree_and_a_dead_worker_is_replaced(tmp_path: Path) -> None:
    pytest.importorskip("ray")
    (path,) = write(tmp_path, a=f"{numbered(30)}\nDIE here.\nKILL the worker.\n{numbered(60)}")
    log, once = tmp_path / "parsed.log", tmp_path / "killed"
    options = replace(
        OPTIONS, parser=f"{TOY} --log {log} --once {once}", unit_bytes=500, layout="lines"
    )
    with_ray = build_corpus([path], tmp_path / "ray", options, engine="ray", workers=2)
    assert once.exists()
    assert max(Counter(log.read_text(encoding="utf-8").splitlines()).values()) > 1
    build_corpus([path], tmp_path / "local", options)
    assert contents(tmp_path / "ray") == contents(tmp_path / "local")
    assert with_ray["sentences"] == 91
    assert with_ray["rejected"] == {"parser died": 1}
