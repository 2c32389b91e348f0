"""Source code to trees, by the grammars of tree-sitter: words are the code's tokens, brackets its
syntax.

    def f(x):               (module def f (parameters ( x )) :
        return g[x]           (block ↵ ⇥ (line (return_statement return (subscript g [ x ])) ↵) ⇤))

The labels are the grammar's names of nodes. Any language serves for which there is a package
`tree_sitter_LANGUAGE`.

- Text within a token (a string's) is cut at white space, since a word has none; of more than
  `max_text` words in a row the first ones are kept, and `…` stands for the others.
- Comments and continued lines are no syntax, and are left out.
- The grammar of Python hides where lines and blocks end. Here they are the words ↵ ⇥ ⇤, exactly
  where Python's own tokenizer has NEWLINE, INDENT and DEDENT: a `line` is simple statements and
  their ↵, and a block on lines of its own is `↵ ⇥ statements ⇤`.

No character of the code is lost: without ↵ ⇥ ⇤ its words, joined, are the code without comments and
white space.
"""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterator
from importlib import import_module
from itertools import zip_longest
from typing import TYPE_CHECKING, TypeAlias

from pushdown_lm.errors import PushdownError, TreeError
from pushdown_lm.trees import Span, Tree

if TYPE_CHECKING:
    from tree_sitter import Language, Node

NEWLINE, INDENT, DEDENT = "↵", "⇥", "⇤"
CUT = "…"
"""Stands for the words of a long text that are left out."""
LINE = "line"
"""The label of simple statements on one line and their end."""

_COMPOUND_STATEMENTS = frozenset(
    {
        "case_clause",
        "class_definition",
        "decorated_definition",
        "for_statement",
        "function_definition",
        "if_statement",
        "match_statement",
        "try_statement",
        "while_statement",
        "with_statement",
    }
)


class CodeError(PushdownError):
    """Source code, or a language, that cannot be read."""


def load_language(name: str) -> Language:
    """The grammar of a language, from the package `tree-sitter-NAME`."""
    try:
        from tree_sitter import Language
    except ImportError:
        raise CodeError(
            "tree-sitter is not installed: pip install 'pushdown-lm[code]', or pip install "
            "tree-sitter"
        ) from None
    package = f"tree-sitter-{name.replace('_', '-')}"
    module_name = package.replace("-", "_")
    try:
        if not module_name.isidentifier():
            raise ImportError
        module = import_module(module_name)
    except ImportError:
        raise CodeError(
            f"language {name!r}: {package} is not installed: pip install {package}"
        ) from None
    for function in ("language", f"language_{name}"):
        if hasattr(module, function):
            try:
                return Language(getattr(module, function)())
            except ValueError as error:  # a grammar of another time
                raise CodeError(f"language {name!r}: {package} and tree-sitter: {error}") from None
    raise CodeError(f"language {name!r}: expected {module_name} to have a function `language`")


class CodeReader:
    """Reads the files of one language.

    Args:
        language: as in :func:`load_language`.
        max_text: how many words of a text within a token are kept; None for all.
    """

    def __init__(self, language: str = "python", *, max_text: int | None = None) -> None:
        if max_text is not None and max_text < 1:
            raise CodeError(f"max_text: expected at least 1, got {max_text}")
        grammar = load_language(language)
        from tree_sitter import Parser

        self._parser = Parser(grammar)
        self._has_blocks = language == "python"
        self._max_text = max_text

    def read(self, source: bytes, name: str = "<code>") -> Tree | None:
        """The labeled tree of a file; None if it holds no code.

        A file that is not UTF-8, or not of the language, is a :class:`TreeError` that says where.
        """
        source = source.removeprefix(codecs.BOM_UTF8)
        try:
            text = source.decode()
        except UnicodeDecodeError as error:
            before = source[: error.start].decode()
            found = f"byte 0x{source[error.start]:02x}"
            raise TreeError.at(
                name, before, len(before), "UTF-8", found, reason="not UTF-8"
            ) from None
        source = text.replace("\r\n", "\n").replace("\r", "\n").encode()
        root = self._parser.parse(source).root_node
        if root.has_error:
            raise _syntax_error(root, source, name)
        return _Walk(source, self._max_text, self._has_blocks).tree(root)


def read_code(source: str, language: str = "python", *, max_text: int | None = None) -> Tree:
    """The tree of a piece of code.

    >>> read_code("x = (1)\\n").words
    ('x', '=', '(', '1', ')', '↵')
    """
    tree = CodeReader(language, max_text=max_text).read(source.encode())
    if tree is None:
        raise CodeError("<code>: expected code, found none")
    return tree


def _syntax_error(root: Node, source: bytes, name: str) -> TreeError:
    """The first place where the parser had to skip or to invent something."""
    node = root
    while True:
        faulty = [child for child in node.children if child.has_error or child.is_missing]
        if node.is_error or node.is_missing or not faulty:
            break
        node = faulty[0]
    before = source[: node.start_byte].decode()
    expected = f"{node.type!r}" if node.is_missing else "valid syntax"
    end = min(node.end_byte, node.start_byte + 40)
    found = source[node.start_byte : end].decode(errors="ignore").partition("\n")[0]
    return TreeError.at(
        name, before, len(before), expected, repr(found) if found else "none", reason="syntax error"
    )


_Added: TypeAlias = "tuple[str, list[_Item]]"
"""A node that is not in the parse: its label and what it holds."""
_Item: TypeAlias = "str | Node | _Added"
"""What a node holds: words and nodes."""


class _Walk:
    """One walk through a parse."""

    def __init__(self, source: bytes, max_text: int | None, has_blocks: bool) -> None:
        self.source = source
        self.max_text = max_text
        self.has_blocks = has_blocks

    def tree(self, root: Node) -> Tree | None:
        """Iterative, since code may nest deeply; unary chains keep their outermost label."""
        words: list[str] = []
        spans: list[Span] = []
        labels: list[str] = []
        open_nodes: list[tuple[str, int, Iterator[_Item]]] = [self._open(root, 0)]
        while open_nodes:
            label, start, items = open_nodes[-1]
            item = next(items, None)
            if isinstance(item, str):
                words.append(item)
            elif item is not None:
                open_nodes.append(self._open(item, len(words)))
            else:
                open_nodes.pop()
                span = start, len(words)
                if spans and spans[-1] == span:
                    labels[-1] = label
                elif len(words) - start > 1:
                    spans.append(span)
                    labels.append(label)
        return Tree(tuple(words), tuple(spans), tuple(labels) or (_label(root),)) if words else None

    def _open(self, item: Node | _Added, start: int) -> tuple[str, int, Iterator[_Item]]:
        label, items = item if isinstance(item, tuple) else (_label(item), self._items(item))
        return label, start, iter(items)

    def _items(self, node: Node) -> list[_Item]:
        """What a node holds: its children, the text between them, and the ends of lines."""
        if self.has_blocks and node.type in ("module", "block"):
            return self._block(node)
        items: list[_Item] = []
        reached = node.start_byte
        for child in node.children:
            items += self._words(reached, child.start_byte)
            if not _is_left_out(child):
                items.append(child)
            reached = child.end_byte
        items += self._words(reached, node.end_byte)
        return [*items, NEWLINE] if self.has_blocks and node.type == "decorator" else items

    def _words(self, start: int, end: int) -> list[str]:
        words = self.source[start:end].decode().split() if start < end else []
        if self.max_text is not None and len(words) > self.max_text:
            words[self.max_text :] = [CUT]
        return words

    # -------------------------------------------------------------- Python's lines and blocks

    def _block(self, node: Node) -> list[_Item]:
        """A module, or a block on lines of its own or behind its colon."""
        statements = [child for child in node.children if not _is_left_out(child)]
        lines = self._lines(statements)
        if node.type == "module":
            return lines
        if not lines:
            return [NEWLINE]
        colon = node.prev_sibling
        while colon is not None and _is_left_out(colon):
            colon = colon.prev_sibling
        assert colon is not None
        is_indented = self._is_on_new_line(colon, statements[0])
        return [NEWLINE, INDENT, *lines, DEDENT] if is_indented else lines

    def _lines(self, statements: list[Node]) -> list[_Item]:
        """Statements; simple ones, and the semicolons between them, are grouped into lines."""
        lines: list[_Item] = []
        line: list[_Item] = []
        for statement, following in zip_longest(statements, statements[1:]):
            if statement.type in _COMPOUND_STATEMENTS:
                lines.append(statement)
                continue
            line.append(statement)
            if (
                following is None
                or (statement.type == ";" and self._is_on_new_line(statement, following))
                or (statement.type != ";" and following.type != ";")
            ):
                lines.append((LINE, [*line, NEWLINE]))
                line = []
        return lines

    def _is_on_new_line(self, earlier: Node, later: Node) -> bool:
        """Whether a line ends between two neighbors, one that no backslash continues."""
        between = self.source[earlier.end_byte : later.start_byte]
        return b"\n" in re.sub(rb"#[^\n]*|\\\n", b"", between)


def _label(node: Node) -> str:
    """The node's type in one word: `is not` is a node of Python's grammar."""
    return re.sub(r"\W+", "_", node.type)


def _is_left_out(node: Node) -> bool:
    return "comment" in node.type or node.type == "line_continuation"
