"""Tests of `pushdown_lm.trees`."""

from __future__ import annotations

import builtins
import gzip
import json
import subprocess
import sys
from collections import Counter
from itertools import islice, pairwise
from pathlib import Path

import nltk
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushdown_lm.errors import PushdownError, TreeError
from pushdown_lm.trees import (
    Tree,
    binarize,
    brackets,
    decode_word,
    draw,
    drop_words,
    encode_word,
    from_nltk,
    is_binary,
    merge_pieces,
    parse_tree,
    parse_trees,
    read_trees,
    split_words,
    to_brackets,
    to_nltk,
)
from pushdown_lm.trees.brackets import strip_function_tags
from tests.strategies import binary_trees, tokenisations, trees

DOG = Tree(("The", "dog", "is", "happy"), ((0, 2), (2, 4), (0, 4)))


@pytest.mark.parametrize(
    "text",
    [
        "(S (NP (DT The) (NN dog)) (VP (VBZ is) (ADJP (JJ happy))))",
        "(S (NP The dog) (VP is happy))",
        "( (S (NP (DT The) (NN dog)) (VP (VBZ is) (ADJP (JJ happy)))))",
        "((S (NP (DT The) (NN dog)) (VP (VBZ is) (ADJP (JJ happy)))))",
        "(ROOT (S (NP (DT The) (NN dog)) (VP (VBZ is) (ADJP (JJ happy)))))",
        "(TOP (S (NP (NP (DT The) (NN dog))) (VP (VBZ is) (ADJP (JJ happy)))) )",
        "(S\n  (NP (DT The)\n      (NN dog))\n  (VP (VBZ is)\n      (ADJP (JJ happy))))\n",
        "(S\n(NP (DT The) (NN dog))\n(VP (VBZ is)\n(ADJP (JJ happy))))\n",
        "(S\r\n\t(NP (DT The) (NN dog))\r\n\t(VP (VBZ is) (ADJP (JJ happy))))\r\n",
        "\ufeff(S (NP (DT The) (NN dog)) (VP (VBZ is) (ADJP (JJ happy))))",
        "(S(NP(DT The)(NN dog))(VP(VBZ is)(ADJP(JJ happy))))",
        "(S (NP The (NN dog)) (VP (VBZ is) happy))",
        "(S (NP-SBJ-1 (DT The) (NN dog)) (VP (VBZ is) (S (NP (-NONE- *-1)) (ADJP (JJ happy)))))",
        "(S (NP (DT The) (NN dog) (SBAR (WHNP (-NONE- 0)) (S (-NONE- *T*)))) (VP is happy))",
        "(S (NP (-NONE- *)) (NP The dog) (-NONE- *) (VP is happy (-NONE- *)))",
    ],
)
def test_penn_forms_of_one_tree(text: str) -> None:
    assert parse_tree(text) == DOG
    assert parse_tree(text, format="penn") == DOG


def test_unlabelled_forms_of_one_tree() -> None:
    assert parse_tree("( ( The dog ) ( is happy ) )") == DOG
    assert parse_tree("( ( The dog ) ( is ( happy ) ) )") == DOG
    assert parse_tree("((The dog) (is happy))", format="binary") == DOG
    assert parse_tree("( ( The dog )\n  ( is happy ) )", format="binary") == DOG


def test_words_alone() -> None:
    assert parse_tree("(NP (NN dog))") == Tree(("dog",), ())
    assert parse_tree("(NN dog)") == Tree(("dog",), ())
    assert list(parse_trees("( Two women )\nYes\n-LRB-\n")) == [
        Tree(("Two", "women"), ((0, 2),)),
        Tree(("Yes",), ()),
        Tree(("(",), ()),
    ]


def test_several_trees_on_a_line_and_blank_lines() -> None:
    text = "(NP (DT a) (NN b)) (NN c)\n\n \n(X (X d e)\n   f) (X g)"
    assert list(parse_trees(text)) == [
        Tree(("a", "b"), ((0, 2),)),
        Tree(("c",), ()),
        Tree(("d", "e", "f"), ((0, 2), (0, 3))),
        Tree(("g",), ()),
    ]


def test_flat_and_nested_spans_are_in_post_order() -> None:
    tree = parse_tree("(S (A a) (X (Y (B b) (C c)) (D d) (Z (E e) (F f))) (G g))")
    assert tree.spans == ((1, 3), (4, 6), (1, 6), (0, 7))


def test_white_space_other_than_ascii_divides_words() -> None:
    assert parse_tree("(X a\u00a0b)").words == ("a", "b")
    assert parse_tree("(X (Y\u00a0a) (Y\u3000b))").words == ("a", "b")


def test_escapes() -> None:
    tree = parse_tree(
        r"(NP (-LRB- -LRB-) (NN and\/or) (SYM \*) (-RRB- -rrb-) (X -LCB-) (X :-RSB-))"
    )
    assert tree.words == ("(", "and/or", "*", ")", "{", ":]")
    assert to_brackets(tree) == r"(X -LRB- and\/or \* -RRB- -LCB- :-RSB-)"
    assert decode_word("-B-LRB-\\") == "-B(\\"
    assert encode_word("a(b)") == "a-LRB-b-RRB-"


def test_a_word_with_white_space_is_not_written() -> None:
    with pytest.raises(PushdownError, match="expected a word without white space, found 'a b'"):
        to_brackets(Tree(("a b", "c"), ((0, 2),)))
    with pytest.raises(PushdownError, match="found ''"):
        to_brackets(Tree(("", "c"), ((0, 2),)))


def test_labels_lose_function_tags_and_unary_chains_keep_the_outermost() -> None:
    text = "(ROOT (S (NP-SBJ=2 (PRP$ my) (NN dog)) (SQ (VP (VBZ is) (ADJP-PRD (JJ happy))))))"
    tree = parse_tree(text, labels=True)
    assert tree.spans == ((0, 2), (2, 4), (0, 4))
    assert tree.labels == ("NP", "SQ", "S")


def test_labels_of_roots() -> None:
    assert parse_tree("( (NP a b))", labels=True).labels == ("NP",)
    assert parse_tree("(TOP (A a b) (B c d))", labels=True).labels == ("A", "B", "TOP")
    assert parse_tree("(-LRB- a b)", labels=True).labels == ("-LRB-",)


def test_a_label_is_kept_where_a_trace_makes_its_bracket_unary() -> None:
    tree = parse_tree("(S (NP (-NONE- *)) (VP (VB a) (VB b)))", labels=True)
    assert tree == Tree(("a", "b"), ((0, 2),), ("S",))
    tree = parse_tree("(S (VP (VB a) (VB b)) (NP (-NONE- *)))", labels=True)
    assert tree == Tree(("a", "b"), ((0, 2),), ("S",))


@pytest.mark.parametrize(
    ("text", "label"),
    [("(3 (2 Good))", "3"), ("(2 Good)", "2"), ("(ROOT (NP (NN Good)))", "NP"), ("(ROOT x)", "")],
)
def test_the_label_of_a_one_word_tree(text: str, label: str) -> None:
    tree = parse_tree(text, labels=True)
    assert tree.spans == ()
    assert tree.labels == (label,)


def test_sentiment_trees() -> None:
    tree = parse_tree("(3 (2 It) (4 (4 (2 's) (4 good)) (2 .)))", labels=True)
    assert tree == Tree(("It", "'s", "good", "."), ((1, 3), (1, 4), (0, 4)), ("4", "4", "3"))


def test_strip_function_tags() -> None:
    stripped = [strip_function_tags(s) for s in ("NP-SBJ-1", "NP=2", "-NONE-", "-LRB-", "S", "")]
    assert stripped == ["NP", "NP", "-NONE-", "-LRB-", "S", ""]


@pytest.mark.parametrize(
    ("text", "message", "reason"),
    [
        ("(S (NP) (VP x))", "1:7: expected a word or '(', found ')'", "empty bracket"),
        ("(S a b)\n(S\n  (NP ())\n  x)", "3:8: expected a word or '(', found ')'", "empty bracket"),
        ("(S a))", "1:6: expected '(', found ')'", "surplus bracket"),
        ("(S a)\n)(S b)", "2:1: expected '(', found ')'", "surplus bracket"),
        ("(S a) b", "1:7: expected '(', found 'b'", "text outside a tree"),
        ("(S a)\nhello (S b)", "2:1: expected '(', found 'hello'", "text outside a tree"),
        ("(S (NP a)", "1:10: expected ')', found the end of the text", "unclosed bracket"),
        ("(S a)\n(S (NP a)\n", "3:1: expected ')', found the end of the text", "unclosed bracket"),
        (
            "(S a)\n(S (NP a)\n(S b)\n",
            "3:1: expected ')', found '(' in the first column",
            "unclosed bracket",
        ),
        (
            "(S (NP a)\n(S b)\n",
            "2:1: expected ')', found '(' in the first column",
            "unclosed bracket",
        ),
        ("(", "1:2: expected ')', found the end of the text", "unclosed bracket"),
        ("(S", "1:3: expected ')', found the end of the text", "unclosed bracket"),
    ],
)
def test_error_messages(text: str, message: str, reason: str) -> None:
    for labels in (False, True):
        with pytest.raises(TreeError) as raised:
            list(parse_trees(text, format="penn", labels=labels, source="corpus.trees"))
        assert str(raised.value) == f"corpus.trees:{message}"
        assert raised.value.reason == reason
        line, column, _ = message.split(":", 2)
        assert (raised.value.line, raised.value.column) == (int(line), int(column))


def test_error_messages_of_the_binary_format() -> None:
    with pytest.raises(TreeError, match="<text>:1:9: expected a word or '\\(', found '\\)'"):
        parse_tree("( a b ( ) )")
    with pytest.raises(TreeError, match="<text>:1:1: expected '\\(', found 'two'"):
        parse_tree("two words")


def test_not_one_tree() -> None:
    with pytest.raises(TreeError, match="expected one tree, found 2"):
        parse_tree("(S a) (S b)")
    with pytest.raises(TreeError, match="expected one tree, found 0"):
        parse_tree("(S (-NONE- *))")


def test_unknown_format() -> None:
    with pytest.raises(PushdownError, match="found 'ptb'"):
        parse_tree("(S a)", format="ptb")  # type: ignore[arg-type]


def test_skipping_resumes_at_the_next_tree_and_counts_by_reason() -> None:
    text = """\
(S (NP a b) c)
(S (NP a b c)
(S d e)
(S f g))
junk
(S (NP) h)
(S i j) (S (NP k)))
(S (-NONE- *))
(S
   l m)
(S n (NP o p)
"""
    counts: Counter[str] = Counter()
    found = [tree.words for tree in parse_trees(text, errors="skip", counts=counts)]
    assert found == [tuple("abc"), tuple("de"), tuple("ij"), tuple("lm")]
    assert counts == {
        "unclosed bracket": 2,
        "surplus bracket": 2,
        "text outside a tree": 1,
        "empty bracket": 1,
        "no words": 1,
    }


def test_skipping_an_unclosed_first_tree_loses_no_other() -> None:
    counts: Counter[str] = Counter()
    found = list(parse_trees("(S (NP a b)\n(S c)\n(S d)\n", errors="skip", counts=counts))
    assert [tree.words for tree in found] == [("c",), ("d",)]
    assert counts == {"unclosed bracket": 1}


@given(
    st.text("() \nab", max_size=24)
    | st.text("()NX-NONE- a\n\u00a0", max_size=24)
    | st.lists(
        st.sampled_from(["(X", " (X", " (X a)", " a", ")", " (-NONE- *)", " (", "\n"]), max_size=16
    ).map("".join)
)
def test_the_fast_scanner_accepts_nothing_that_the_general_one_refuses(text: str) -> None:
    fast = brackets._scan_tagged(text)
    try:
        general = list(brackets._scan(text, brackets._PENN_UNIT, False))
    except brackets._MalformedError:
        assert fast is None
        assert brackets._diagnose(text, True, "file", 1, "the end").line <= text.count("\n") + 1
    else:
        assert fast in (None, general)


@given(trees())
def test_the_fast_scanner_reads_the_usual_form(tree: Tree) -> None:
    text = to_brackets(tree, tag="T")
    assert brackets._scan_tagged(text) == [tree]
    with_traces = text.replace(" (T", " (NP (-NONE- *)) (T")
    assert brackets._scan_tagged(f"( {with_traces})\n") == [tree]


@pytest.mark.parametrize(("depth", "labels"), [(10_000, True), (100_000, False)])
def test_deep_nesting(depth: int, labels: bool) -> None:
    unary = "(A " * depth + "(N x)" + ")" * depth
    assert parse_tree(unary, labels=labels).words == ("x",)
    left = "(A " * depth + "(N y)" + " (N x))" * depth
    tree = parse_tree(left, labels=labels)
    assert tree.spans == tuple((0, end) for end in range(2, depth + 2))
    assert binarize(tree) == tree
    assert parse_tree(to_brackets(tree, label="A"), labels=labels) == tree
    right = parse_tree("(A (N x) " * depth + "(N y)" + ")" * depth, labels=labels)
    assert right.spans == tuple((start, depth + 1) for start in range(depth - 1, -1, -1))
    flat = Tree(right.words, ((0, depth + 1),))
    assert binarize(flat).spans == right.spans
    assert binarize(flat, "left").spans == tree.spans
    for malformed in ("(" * depth, "(A " * depth + ")" * depth, ")" * depth):
        with pytest.raises(TreeError):
            parse_tree(malformed, format="penn", labels=labels)


def test_files(tmp_path: Path) -> None:
    plain, packed, binary = tmp_path / "a.trees", tmp_path / "b.trees.gz", tmp_path / "c.txt"
    plain.write_bytes("\ufeff(X é “)\r\n(X b c)\r\n".encode())
    packed.write_bytes(gzip.compress(b"(X d e)\n"))
    binary.write_text("( f g )\n")
    assert [tree.words for tree in read_trees(plain)] == [("é", "“"), ("b", "c")]
    assert [tree.words for tree in read_trees([str(packed), binary])] == [("d", "e"), ("f", "g")]


def test_errors_name_the_file(tmp_path: Path) -> None:
    path = tmp_path / "corpus.trees"
    path.write_text("(X a b)\n(X (Y) b)\n")
    reader = read_trees(path)
    assert next(reader).words == ("a", "b")
    with pytest.raises(TreeError) as raised:
        next(reader)
    assert str(raised.value) == f"{path}:2:6: expected a word or '(', found ')'"


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    path = tmp_path / "latin1.trees"
    path.write_bytes("(X a b)\n(X café b)\n".encode("latin-1"))
    with pytest.raises(TreeError) as raised:
        list(read_trees(path))
    assert str(raised.value) == f"{path}:2:7: expected UTF-8, found byte 0xe9"


def test_snli_pairs(tmp_path: Path) -> None:
    path = tmp_path / "pairs.jsonl"
    pair = {"sentence1_parse": "(ROOT (S (NN a) (NN b)))", "sentence2_parse": "(NN c)"}
    bad = {"sentence1_parse": "(ROOT (S (NN a) (NN b))", "sentence2_parse": "(NN c)"}
    lines = [json.dumps(pair), json.dumps(bad), "{}", "", "not json"]
    path.write_text("\n".join(lines))
    counts: Counter[str] = Counter()
    found = list(read_trees(path, labels=True, errors="skip", counts=counts))
    assert found == [
        Tree(("a", "b"), ((0, 2),), ("S",)),
        Tree(("c",), (), ("NN",)),
        Tree(("c",), (), ("NN",)),
    ]
    assert counts == {"unclosed bracket": 1, "not a pair": 2}
    with pytest.raises(TreeError, match=r"pairs\.jsonl:2:24: expected '\)'"):
        list(read_trees(path))


@given(trees())
def test_writing_then_reading(tree: Tree) -> None:
    assert parse_tree(to_brackets(tree)) == tree
    assert parse_tree(to_brackets(tree, tag="T")) == tree
    assert parse_tree(to_brackets(tree, label="")) == tree


@given(trees(labels=True))
def test_writing_then_reading_labels(tree: Tree) -> None:
    assert parse_tree(to_brackets(tree), labels=True) == tree
    assert parse_tree(to_brackets(tree, tag="T"), labels=True) == tree


@given(st.lists(trees(max_words=5), max_size=6), st.sampled_from(["\n", "\r\n", "\n\n", " ", ""]))
def test_several_trees(several: list[Tree], divider: str) -> None:
    assert list(parse_trees(divider.join(map(to_brackets, several)))) == several


def test_written_forms() -> None:
    assert to_brackets(DOG, label="S") == "(S (S The dog) (S is happy))"
    assert to_brackets(DOG, tag="T") == "(X (X (T The) (T dog)) (X (T is) (T happy)))"
    assert to_brackets(DOG, label="") == "( ( The dog) ( is happy))"
    assert to_brackets(Tree(("Yes",), (), ("INTJ",)), tag="T") == "(INTJ (T Yes))"


def test_binarize() -> None:
    tree = parse_tree("(S (NP a b c) d (VP e f))", labels=True)
    right, left = binarize(tree), binarize(tree, "left")
    assert right.spans == ((1, 3), (0, 3), (4, 6), (3, 6), (0, 6))
    assert right.labels == ("NP|", "NP", "VP", "S|", "S")
    assert left.spans == ((0, 2), (0, 3), (0, 4), (4, 6), (0, 6))
    assert left.labels == ("NP|", "NP", "S|", "VP", "S")


@given(trees(labels=True), st.sampled_from(["right", "left"]))
def test_binarize_properties(tree: Tree, direction: str) -> None:
    binary = binarize(tree, direction)  # type: ignore[arg-type]
    assert is_binary(binary)
    assert len(set(binary.spans)) == len(tree.words) - 1
    assert set(tree.spans) <= set(binary.spans)
    assert binarize(binary, direction) == binary  # type: ignore[arg-type]
    assert parse_tree(to_brackets(binary), labels=True) == binary
    assert binary.labels is not None
    assert tree.labels is not None
    assert binary.labels[-1] == tree.labels[-1]


@given(trees())
def test_right_binarizing_is_what_attachments_from_n_ary_spans_mean(tree: Tree) -> None:
    def attachments(spans: list[tuple[int, int]]) -> list[int]:
        last = [position + 1 for position in range(len(tree.words))]
        attached = list(range(len(tree.words) + 1))
        for start, end in spans:
            attached[end] = last[start]
            last[start] = end
        return attached

    assert attachments(list(binarize(tree).spans)) == attachments(list(tree.spans))


@given(binary_trees(max_words=9))
def test_binary_trees_are_fixed_by_binarizing(tree: Tree) -> None:
    assert is_binary(tree)
    assert binarize(tree, "right") == binarize(tree, "left") == tree


def test_split_words() -> None:
    tree = parse_tree("(S (NP the unhappy dogs) ran)", labels=True)
    pieces = [["the"], ["un", "happ", "y"], ["dog", "s"], ["ran"]]
    split = split_words(tree, pieces)
    assert split.words == ("the", "un", "happ", "y", "dog", "s", "ran")
    assert split.spans == ((2, 4), (1, 4), (4, 6), (0, 6), (0, 7))
    assert split.labels == ("", "", "", "NP", "S")
    assert merge_pieces(split, [1, 3, 2, 1], tree.words) == tree


def test_split_words_refuses_other_numbers_of_words() -> None:
    with pytest.raises(PushdownError, match=r"each of 4 words, found \[1, 1\]"):
        split_words(DOG, [["a"], ["b"]])
    with pytest.raises(PushdownError, match=r"each of 4 words, found \[1, 0, 1, 1\]"):
        split_words(DOG, [["a"], [], ["c"], ["d"]])


def test_merge_pieces_that_cross_words() -> None:
    pieces = Tree(("the", "un", "happy", "dog"), ((0, 2), (2, 4), (0, 4)))
    merged = merge_pieces(pieces, [1, 2, 1], ["the", "unhappy", "dog"])
    assert merged == Tree(("the", "unhappy", "dog"), ((1, 3), (0, 3)))


def test_merge_pieces_gives_a_word_without_pieces_to_the_word_before() -> None:
    pieces = Tree(["a", "b", "c"], [(1, 3), (0, 3)])
    merged = merge_pieces(pieces, [1, 1, 0, 1], ["a", "b", "x", "c"])
    assert merged.spans == ((1, 3), (1, 4), (0, 4))
    assert drop_words(merged, [True, True, False, True]).spans == ((1, 3), (0, 3))


def test_merge_pieces_refuses_wrong_counts() -> None:
    for counts in ([1, 2], [1, 1, 1], [0, 3, 1]):
        with pytest.raises(
            PushdownError, match="expected 3 positive piece counts that add up to 4"
        ):
            merge_pieces(DOG, counts, ["a", "b", "c"])


@given(trees(labels=True) | trees(), st.data())
def test_merging_undoes_splitting(tree: Tree, data: st.DataObject) -> None:
    pieces = data.draw(tokenisations(tree))
    split = split_words(tree, pieces)
    assert merge_pieces(split, list(map(len, pieces)), tree.words) == tree
    assert is_binary(split_words(binarize(tree), pieces))
    assert parse_tree(to_brackets(Tree(split.words, split.spans))).spans == split.spans


@given(binary_trees(), st.data())
def test_merging_any_binary_tree(tree: Tree, data: st.DataObject) -> None:
    size = len(tree.words)
    starts = sorted(data.draw(st.sets(st.integers(0, size - 1))) | {0})
    bounds = [*starts, size]
    counts = [end - start for start, end in pairwise(bounds)]
    merged = merge_pieces(tree, counts, [str(word) for word in range(len(counts))])
    assert is_binary(merged)
    assert parse_tree(to_brackets(merged)) == merged
    aligned = {
        (bounds.index(start), bounds.index(end))
        for start, end in tree.spans
        if start in bounds and end in bounds
    }
    assert {span for span in aligned if span[1] - span[0] > 1} <= set(merged.spans)


def test_draw() -> None:
    tree = parse_tree("(S (NP The old dog) (VP slept (PP on a mat)) .)", labels=True)
    assert draw(tree).splitlines() == [
        "      ┌─────────────S┬─────────────┐",
        "      │          ┌───VP───┐        │",
        " ┌────NP───┐     │    ┌───PP───┐   │",
        "The  old  dog  slept  on  a   mat  .",
    ]


@given(trees(labels=True) | trees())
def test_every_drawing_has_its_words_below(tree: Tree) -> None:
    *rows, last = draw(tree).splitlines()
    assert tuple(last.split()) == tree.words
    assert sum(row.count("┌") for row in rows) == len(tree.spans)


@given(trees(labels=True))
def test_nltk_exchange(tree: Tree) -> None:
    exchanged = to_nltk(tree)
    assert tuple(exchanged.leaves()) == tree.words
    assert from_nltk(exchanged, labels=True) == tree
    assert from_nltk(exchanged) == Tree(tree.words, tree.spans)


def test_from_nltk_with_tags() -> None:
    tagged = nltk.Tree.fromstring(r"(S (NP-SBJ (DT The) (NN and\/or)) (VP (-LRB- -LRB-)))")
    expected = Tree(("The", "and/or", "("), ((0, 2), (0, 3)), ("NP", "S"))
    assert from_nltk(tagged, labels=True) == expected


def test_absent_nltk(monkeypatch: pytest.MonkeyPatch) -> None:
    real_import = builtins.__import__

    def without_nltk(name: str, *arguments: object, **options: object) -> object:
        if name == "nltk":
            raise ImportError(name)
        return real_import(name, *arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(builtins, "__import__", without_nltk)
    with pytest.raises(PushdownError, match=r"pip install 'pushdown-lm\[nltk\]'"):
        to_nltk(DOG)


def test_reading_trees_imports_neither_torch_nor_nltk() -> None:
    program = (
        "import sys; import pushdown_lm.trees; "
        "print(sorted({'torch', 'nltk', 'transformers'} & set(sys.modules)))"
    )
    command = [sys.executable, "-c", program]
    assert subprocess.run(command, check=True, capture_output=True).stdout.strip() == b"[]"


CORPORA = (
    "dickens/*.trees",
    "gum/*.trees",
    "craft/*.trees",
    "questionbank/*.trees",
    "redwoods/*.trees",
    "brown_silver/*.trees",
    "snli_sample/*.jsonl",
    "glue/sst5/*.txt",
)

KNOWN_DEFECTS = {"redwoods/*.trees": {"empty bracket": 11}}


@pytest.mark.parametrize("pattern", CORPORA)
def test_real_corpora_read_without_errors(shared_data: Path, pattern: str) -> None:
    paths = sorted(shared_data.glob(pattern))
    if not paths:
        pytest.skip(f"{shared_data / pattern} is absent")
    counts: Counter[str] = Counter()
    num_expected = num_trees = 0
    for path in paths:
        num_lines = sum(1 for line in path.open(encoding="utf-8") if line.strip())
        num_expected += num_lines * (2 if path.suffix == ".jsonl" else 1)
        for tree in read_trees(path, errors="skip", counts=counts):
            num_trees += 1
            assert len(tree.words) == 1 or tree.spans[-1] == (0, len(tree.words))
    assert counts == KNOWN_DEFECTS.get(pattern, {})
    assert num_trees == num_expected - counts.total()


@pytest.mark.parametrize("pattern", [p for p in CORPORA if not p.startswith("snli")])
def test_real_corpora_agree_with_nltk(shared_data: Path, pattern: str) -> None:
    paths = sorted(shared_data.glob(pattern))
    if not paths:
        pytest.skip(f"{shared_data / pattern} is absent")
    for path in paths[:3]:
        with path.open(encoding="utf-8") as file:
            lines = list(islice(file, 0, 400, 10))
        for line in lines:
            reference = nltk.Tree.fromstring(line)
            tree = parse_tree(line, labels=True)
            assert tree.words == tuple(map(decode_word, reference.leaves()))
            assert from_nltk(reference, labels=True) == tree
            assert parse_tree(line) == Tree(tree.words, tree.spans)
            assert set(tree.spans) == _spans_of(reference)


def _spans_of(reference: nltk.Tree) -> set[tuple[int, int]]:
    """The spans of two or more words, from nltk's own positions of leaves."""
    positions = reference.treepositions("leaves")
    prefixes = {leaf[:depth] for leaf in positions for depth in range(len(leaf))}
    spans = set()
    for prefix in prefixes:
        inside = [i for i, leaf in enumerate(positions) if leaf[: len(prefix)] == prefix]
        if len(inside) > 1:
            spans.add((inside[0], inside[-1] + 1))
    return spans


def test_the_two_parses_of_snli_have_the_same_words(shared_data: Path) -> None:
    path = shared_data / "snli_sample" / "snli_1.0_dev_part.jsonl"
    if not path.exists():
        pytest.skip(f"{path} is absent")
    num_agreeing = 0
    for line in islice(path.open(encoding="utf-8"), 300):
        pair = json.loads(line)
        penn = parse_tree(pair["sentence1_parse"])
        binary = parse_tree(pair["sentence1_binary_parse"], format="binary")
        assert binary.words == penn.words
        assert is_binary(binary)
        num_agreeing += set(penn.spans) <= set(binary.spans)
    assert num_agreeing > 250
