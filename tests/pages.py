"""Pages of the documentation, whose code is run.

The blocks of a page are run in order, in one folder:

    python    executed; all blocks of a page share their names
    pycon     run as a doctest: what is printed must be what the page shows
    sh        each `pushdown` command is run, `echo TEXT | pushdown ...` too

A block with a title, ```text title="sentences.txt", is the content of that file. A comment on the
line before a block says what else to do with it:

    <!-- test: parse -->       the options of its commands are checked, nothing is run
    <!-- test: add ARGS -->    its commands are run with these arguments added
    <!-- test: compile -->     Python code is compiled, not run
    <!-- output -->            the block shows what the block before it prints
    <!-- output: FILE -->      the block shows a file

Outputs depend on the model. After `make demo`, ``python -m tests.pages FILE...`` in the same folder
writes those of its model into the pages.
"""

from __future__ import annotations

import contextlib
import doctest
import io
import os
import re
import shlex
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.command_line import parse_command, run_pushdown

_BLOCK = re.compile(
    r"^(?:<!-- (?P<mark>[^\n]*?) -->\n)?"
    r"```(?P<kind>\w+)(?: title=\"(?P<title>[^\"\n]+)\")?\n(?P<text>.*?)^```$",
    re.MULTILINE | re.DOTALL,
)


@dataclass(frozen=True)
class Block:
    """A piece of code on a page."""

    place: str
    """Its file and line."""
    kind: str
    text: str
    title: str | None
    mark: str
    """What the comment before it says."""
    span: tuple[int, int]
    """Where its text is on the page."""


def read_blocks(page: Path) -> list[Block]:
    content = page.read_text(encoding="utf-8")
    return [
        Block(
            place=f"{page}:{content.count(chr(10), 0, found.start('text'))}",
            kind=found["kind"],
            text=found["text"],
            title=found["title"],
            mark=found["mark"] or "",
            span=found.span("text"),
        )
        for found in _BLOCK.finditer(content)
    ]


def run_page(page: Path) -> dict[Block, str]:
    """Run the code of a page in the current folder; what its output blocks would show."""
    names: dict[str, Any] = {"__name__": "__main__"}
    shown: dict[Block, str] = {}
    printed = ""
    for block in read_blocks(page):
        action, _, argument = block.mark.partition(": ")
        if action == "output":
            shown[block] = Path(argument).read_text(encoding="utf-8") if argument else printed
        elif block.title is not None:
            Path(block.title).write_text(block.text, encoding="utf-8")
        else:
            printed = _run(block, argument, names)
    return shown


def _run(block: Block, wanted: str, names: dict[str, Any]) -> str:
    if block.kind == "python":
        return _run_python(block, names, only_compile=wanted == "compile")
    if block.kind == "pycon":
        return _run_doctest(block, names)
    if block.kind == "sh":
        outputs = []
        for echoed, arguments in shell_commands(block.text):
            if wanted == "parse":
                parse_command(arguments)
                continue
            added = shlex.split(wanted.removeprefix("add ")) if wanted else []
            done = run_pushdown(*arguments, *added, stdin=f"{echoed}\n")
            assert done.exit_code == 0, f"{block.place}: {shlex.join(arguments)}: {done.error}"
            outputs.append(done.output)
        return "".join(outputs)
    return ""


def _run_python(block: Block, names: dict[str, Any], *, only_compile: bool) -> str:
    code = compile(block.text, block.place, "exec")
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        if not only_compile:
            exec(code, names)
    return printed.getvalue()


def _run_doctest(block: Block, names: dict[str, Any]) -> str:
    test = doctest.DocTestParser().get_doctest(block.text, names, block.place, block.place, 0)
    with contextlib.redirect_stdout(io.StringIO()) as printed:
        failed = doctest.DocTestRunner(verbose=False).run(test, clear_globs=False).failed
    names.update(test.globs)
    assert not failed, printed.getvalue()
    return ""


def shell_commands(text: str) -> list[tuple[str, list[str]]]:
    """Of each command, what is echoed to it, and its arguments from `pushdown` on."""
    commands = []
    for line in text.replace("\\\n", " ").splitlines():
        words = shlex.split(line, comments=True)
        if not words:
            continue
        echoed = words[1] if words[0] == "echo" else ""
        assert "pushdown" in words, f"expected a pushdown command, got {line!r}"
        commands.append((echoed, words[words.index("pushdown") + 1 :]))
    return commands


def fill_outputs(page: Path) -> None:
    """Write into the page what its code prints."""
    shown = run_page(page)
    content = page.read_text(encoding="utf-8")
    for block, output in reversed(shown.items()):
        start, end = block.span
        tidy = "\n".join(line.rstrip() for line in output.rstrip().splitlines())
        content = f"{content[:start]}{tidy}\n{content[end:]}"
    page.write_text(content, encoding="utf-8")


if __name__ == "__main__":
    pages = [Path(name).resolve() for name in sys.argv[1:]]
    runs = Path("runs").resolve()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("runs").mkdir()
        Path("runs", "demo").symlink_to(runs / "demo")
        for path in pages:
            fill_outputs(path)
