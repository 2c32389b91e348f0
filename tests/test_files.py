"""Files are written whole or not at all."""

from __future__ import annotations

import json
import subprocess
import sys
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


@pytest.mark.skipif(not Path("/dev/stdout").exists(), reason="a system without /dev")
def test_a_name_for_an_open_file_is_not_replaced(tmp_path: Path) -> None:
    """`--out /dev/stdout > file` adds to what the command has printed."""
    code = "import sys; from pushdown_lm.files import write_json; print(1, flush=True); "
    code += "write_json('/dev/stdout', 2)"
    with (tmp_path / "out").open("w") as out:
        subprocess.run([sys.executable, "-c", code], stdout=out, check=True)
    assert (tmp_path / "out").read_text() == "1\n2\n"
