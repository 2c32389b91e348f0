"""Files are written whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from pushdown_lm.files import atomic_write, write_json


def test_the_file_appears_when_all_is_written(tmp_path: Path) -> None:
    path = tmp_path / "new" / "file.txt"
    with atomic_write(path) as file:
        file.write("größer\n")
        assert not path.exists()
    assert path.read_text(encoding="utf-8") == "größer\n"
    assert [child.name for child in path.parent.iterdir()] == ["file.txt"]


def test_an_error_leaves_the_old_file(tmp_path: Path) -> None:
    path = tmp_path / "file.txt"
    path.write_text("old", encoding="utf-8")

    def write_and_stop() -> None:
        with atomic_write(path) as file:
            file.write("new")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        write_and_stop()
    assert path.read_text(encoding="utf-8") == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_json(tmp_path: Path) -> None:
    write_json(tmp_path / "x.json", {"é": [1, 2.5]})
    text = (tmp_path / "x.json").read_text(encoding="utf-8")
    assert json.loads(text) == {"é": [1, 2.5]}
    assert text.endswith("}\n")
