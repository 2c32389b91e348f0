"""Source code to trees: exact ones of small pieces, and all tokens of any code."""

from __future__ import annotations

import io
import re
import sys
import token
import tokenize

import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("tree_sitter_python")

from pushdown_lm.corpora.code_trees import (
    CUT,
    DEDENT,
    INDENT,
    NEWLINE,
    CodeError,
    CodeReader,
    read_code,
)
from pushdown_lm.errors import TreeError
from pushdown_lm.experiments.source_code import standard_library
from pushdown_lm.trees import parse_tree, to_brackets

LAYOUT = {token.NEWLINE: NEWLINE, token.INDENT: INDENT, token.DEDENT: DEDENT}
UNSEEN = (token.COMMENT, token.NL, token.ENCODING, token.ENDMARKER)

EXACT = {
    "x = 1\n": "(module (expression_statement x = 1) ↵)",
    "f(a, b)[0]": "(module (expression_statement (call f (argument_list -LRB- a , b -RRB-)) "
    "-LSB- 0 -RSB-) ↵)",
    "def f(x):\n    return g[x]\n": "(module def f (parameters -LRB- x -RRB-) : "
    "(block ↵ ⇥ (line (return_statement return (subscript g -LSB- x -RSB-)) ↵) ⇤))",
    "a; b = 2;\nc": "(module (line a ; (expression_statement b = 2) ; ↵) (line c ↵))",
    "if a: b\nelse:\n    c  # why\n    # not\nd\n": "(module (if_statement if a : (block b ↵) "
    "(else_clause else : (block ↵ ⇥ (line c ↵) ⇤))) (line d ↵))",
    "if a: \\\n b; \\\n c\n": "(module if a : (block b ; c ↵))",
    "@d\nclass A: pass\n": "(module (decorator @ d ↵) (class_definition class A : (block pass ↵)))",
    "match a:\n  case 1:\n    b\n": "(module match a : (block ↵ ⇥ (case_clause case 1 : "
    "(block ↵ ⇥ (line b ↵) ⇤)) ⇤))",
    "x = a is not b\n": "(module (expression_statement x = (comparison_operator a (is_not is not) "
    "b)) ↵)",
    "s = f'{a}  b\\n'": "(module (expression_statement s = (string f' "
    "(interpolation -LCB- a -RCB-) (string_content b \\n) ')) ↵)",
}


@pytest.mark.parametrize(("source", "expected"), EXACT.items())
def test_exact_trees(source: str, expected: str) -> None:
    tree = read_code(source)
    assert to_brackets(tree) == expected
    assert parse_tree(expected, labels=True) == tree


# ------------------------------------------------------------------ all tokens are there


def lines_of(words: list[str]) -> list[str]:
    """The text of each logical line without white space, and the words between lines."""
    lines, text = [], ""
    for word in words:
        if word in LAYOUT.values():
            lines += [text] * bool(text) + [word]
            text = ""
        else:
            text += "".join(word.split())
    return [re.sub(r"\\|\{(?=\{)|\}(?=\})", "", line) for line in lines]


def python_tokens(source: str) -> list[str]:
    """Those of Python's own tokenizer; ↵ ⇥ ⇤ for NEWLINE, INDENT and DEDENT."""
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    return [LAYOUT.get(found.type, found.string) for found in tokens if found.type not in UNSEEN]


def check_tokens(source: str) -> None:
    assert lines_of(list(read_code(source).words)) == lines_of(python_tokens(source))


EXPRESSIONS = st.recursive(
    st.sampled_from(["a", "1.5", "'b c'", '"""d\n e"""', "f'{a!r:>{b}} {{c'", "None", "()"]),
    lambda inner: st.one_of(
        st.builds("({}, {})".format, inner, inner),
        st.builds("f({}, *{})".format, inner, inner),
        st.builds("[{} for a in {}]".format, inner, inner),
        st.builds("{{{}: {}}}".format, inner, inner),
        st.builds("a[{}:{}]".format, inner, inner),
        st.builds("{} not in {}".format, inner, inner),
        st.builds("({}\n\n  # ) here\n  + {})".format, inner, inner),
        st.builds("{} \\\n  or {}".format, inner, inner),
    ),
    max_leaves=5,
)
SIMPLE = st.one_of(
    st.builds("a = {}".format, EXPRESSIONS),
    st.builds("return {}".format, EXPRESSIONS),
    st.sampled_from(["pass", "import a.b as c", "del a", "assert a, b", "async_ = 1"]),
)
LINES = st.builds(
    lambda parts, end: "; ".join(parts) + end,
    st.lists(SIMPLE, min_size=1, max_size=3),
    st.sampled_from(["", ";", "  # a comment; with (\\"]),
)
HEADERS = st.sampled_from(
    ["if {}:", "while {}:", "for a in {}:", "with {} as b:", "class A(f({})):", "def f(a={}):",
     "@f({})\nasync def g():", "try:\n    a\nexcept {}:"]
)  # fmt: skip


def _indented(text: str) -> str:
    """The lines of a block; those within a string or brackets may be moved too."""
    return "".join(f"  {line}\n" if line.strip() else "\n" for line in text.splitlines())


BLOCKS = st.recursive(
    LINES.map("{}\n".format),
    lambda inner: st.one_of(
        st.lists(inner, min_size=2, max_size=3).map("".join),
        st.builds(
            lambda header, condition, body: f"{header.format(condition)}\n\n{_indented(body)}",
            HEADERS,
            EXPRESSIONS.filter(lambda text: "\n" not in text),
            inner,
        ),
        st.builds("# comment\n\n{}".format, inner),
        st.builds("if a: {}\n".format, LINES),
    ),
    max_leaves=6,
)


@given(BLOCKS)
def test_words_are_the_tokens_of_python(source: str) -> None:
    check_tokens(source)


def test_words_of_real_files_are_the_tokens_of_python() -> None:
    names = {"ast.py", "argparse.py", "bisect.py", "dataclasses.py", "enum.py", "textwrap.py"}
    files = [path for path in standard_library() if path.name in names]
    assert {path.name for path in files} == names
    for path in files:
        check_tokens(path.read_text(encoding="utf-8"))


@given(BLOCKS)
def test_trees_survive_brackets(source: str) -> None:
    tree = read_code(source)
    assert parse_tree(to_brackets(tree), labels=True) == tree


def test_other_languages() -> None:
    pytest.importorskip("tree_sitter_javascript")
    source = 'function f(a) { /* no ) */ return `x ${a[0]}  y` + "b\\n c"; } // end\nf(/[)]/g)\n'
    tree = read_code(source, "javascript")
    assert not {NEWLINE, INDENT, DEDENT} & set(tree.words)
    kept = re.sub(r"/\* no \) \*/|// end", "", source)
    assert "".join(tree.words) == "".join(kept.split())
    assert "(template_string ` x (template_substitution $-LCB- " in to_brackets(tree)


# ------------------------------------------------------------------ limits and bad input


def test_long_texts_are_cut() -> None:
    words = read_code('"""a b c d"""\nf("a b")\n', max_text=3).words
    assert words == ('"""', "a", "b", "c", CUT, '"""', "↵", "f", "(", '"', "a", "b", '"', ")", "↵")


def test_deeply_nested_code() -> None:
    depth = 3 * sys.getrecursionlimit()
    tree = read_code("x = " + "(" * depth + "y" + ")" * depth)
    assert len(tree.spans) == depth + 2
    assert len(read_code("+".join(["a"] * depth)).spans) == depth


def test_files_without_code() -> None:
    assert CodeReader().read(b"# nothing\n\n") is None
    assert CodeReader().read(b"") is None
    with pytest.raises(CodeError, match="expected code, found none"):
        read_code("")


def test_byte_order_mark_and_line_ends() -> None:
    expected = read_code("if a:\n  b\nc\n")
    for source in (b"\xef\xbb\xbfif a:\n  b\nc\n", b"if a:\r\n  b\r\nc\r\n", b"if a:\r  b\rc\r"):
        assert CodeReader().read(source) == expected


@pytest.mark.parametrize(
    ("source", "message", "reason"),
    [
        (b"a = 1\nb = (2\nc = 3 +\n", r"x.py:\d:\d+: expected ", "syntax error"),
        (b"a = 1\nprint(b c)\n", r"x.py:2:\d+: expected .*, found 'c'", "syntax error"),
        (b"a = 1\nb = '\xe9'", "x.py:2:6: expected UTF-8, found byte 0xe9", "not UTF-8"),
    ],
)
def test_errors_name_the_place(source: bytes, message: str, reason: str) -> None:
    with pytest.raises(TreeError, match=message) as raised:
        CodeReader().read(source, "x.py")
    assert raised.value.reason == reason


def test_languages_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(CodeError, match="pip install tree-sitter-no-such"):
        CodeReader("no-such")
    with pytest.raises(CodeError, match=r"language '\.\./x': .* is not installed"):
        CodeReader("../x")
    with pytest.raises(CodeError, match="max_text: expected at least 1"):
        CodeReader(max_text=0)
    monkeypatch.setitem(sys.modules, "tree_sitter", None)
    with pytest.raises(CodeError, match=r"pip install 'pushdown-lm\[code\]'"):
        CodeReader()
