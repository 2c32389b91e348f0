"""The command line as a whole: errors are one line and exit code 2, and help is fast."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command_line import run_pushdown


@pytest.fixture
def pushdown() -> Callable[..., tuple[object, str]]:
    """Run the command in this process: its exit code and what it says on standard error."""

    def run(*arguments: str) -> tuple[object, str]:
        done = run_pushdown(*arguments)
        return done.exit_code, done.error

    return run


def test_help_loads_no_torch() -> None:
    code = (
        "import sys; sys.argv = ['pushdown', '--help']\n"
        "from pushdown_lm.cli.app import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    for command in ("bench", "data", "demo", "generate", "parse", "score", "surprisal", "train"):
        assert command in done.stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["bench", "train", "no-such-case"], "no bench case 'no-such-case'"),
        (["bench", "trees", "absent.trees"], "absent.trees: No such file or directory"),
    ],
)
def test_bad_input_is_one_line(
    pushdown: Callable[..., tuple[object, str]], arguments: list[str], message: str
) -> None:
    code, said = pushdown(*arguments)
    assert code == 2
    assert said.startswith("pushdown: ")
    assert message in said
    assert said.count("\n") == 1


def test_broken_tree_names_its_place(
    pushdown: Callable[..., tuple[object, str]], tmp_path: Path
) -> None:
    path = tmp_path / "broken.trees"
    path.write_text("(S (NP the dog) barks)\n(S (NP the dog) barks))\n", encoding="utf-8")
    command = ["data", "build", str(path), "--tokenizer=word", f"--out={tmp_path / 'data'}"]
    code, said = pushdown(*command)
    assert code == 2
    assert "broken.trees:2:23: expected" in said
    assert not (tmp_path / "data" / "card.json").exists()
