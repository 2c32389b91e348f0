"""spaCy and Stanza: documents to trees, and a spaCy pipeline that really parses."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from pushdown_lm.corpora.parsers import ParserError, ParserOptions, open_parser
from pushdown_lm.corpora.parsers.pipelines import (
    Dependent,
    dependencies_to_answer,
    spacy_answer,
    stanza_answer,
)
from pushdown_lm.corpora.raw_text import Sentence
from pushdown_lm.trees import Tree, to_brackets

WORDS = ["She", "reads", "a", "book", "."]
KINDS = ["PRON", "VERB", "DET", "NOUN", "PUNCT"]
HEADS = [2, 0, 4, 2, 2]
RELATIONS = ["nsubj", "ROOT", "det", "obj", "punct"]
DEPENDENTS = [Dependent(*row) for row in zip(WORDS, KINDS, HEADS, RELATIONS, strict=True)]
PENN = "(S She (VP reads (NP a book)) .)"


def brackets(answer: object) -> str:
    assert isinstance(answer, Tree), answer
    return to_brackets(answer)


def test_dependencies() -> None:
    options = ParserOptions()
    assert brackets(dependencies_to_answer(DEPENDENTS, options)) == PENN
    by_heads = dependencies_to_answer(DEPENDENTS, ParserOptions(constituents="heads"))
    assert brackets(by_heads) == "(X She (X (X reads (X a book)) .))"


def test_several_roots_become_one_sentence() -> None:
    twice = [*DEPENDENTS, *[row._replace(head=row.head and row.head + 5) for row in DEPENDENTS]]
    tree = dependencies_to_answer(twice, ParserOptions())
    assert isinstance(tree, Tree)
    assert len(tree.words) == 10
    assert {(0, 10), (2, 4), (7, 9)} <= set(tree.spans)


def test_words_with_spaces() -> None:
    row = Dependent("hai mươi", "NUM", 0, "root")
    assert dependencies_to_answer([row], ParserOptions()) == Tree(("hai_mươi",), (), ("X",))


def spacy_document(vocabulary: Any) -> Any:
    from spacy.tokens import Doc

    heads = [head - 1 if head else number for number, head in enumerate(HEADS)]
    return Doc(vocabulary, words=WORDS, pos=KINDS, heads=heads, deps=RELATIONS)


def test_a_spacy_document_becomes_a_tree() -> None:
    spacy = pytest.importorskip("spacy")
    document = spacy_document(spacy.blank("en").vocab)
    assert brackets(spacy_answer(document, ParserOptions())) == PENN


def test_a_spacy_pipeline_parses(tmp_path: Path) -> None:
    """A pipeline that has learned one sentence by heart."""
    spacy = pytest.importorskip("spacy")
    from spacy.training import Example
    from spacy.util import fix_random_seed

    fix_random_seed(0)
    nlp = spacy.blank("en")
    nlp.add_pipe("morphologizer")
    nlp.add_pipe("parser", config={"min_action_freq": 1})
    document = spacy_document(nlp.vocab)
    example = Example(nlp.make_doc("She reads a book."), document)
    optimizer = nlp.initialize(lambda: [example])
    for _ in range(15):
        nlp.update([example], sgd=optimizer)
    nlp.to_disk(tmp_path / "pipeline")

    name = f"spacy:{tmp_path / 'pipeline'}"
    with closing(open_parser(name)) as parser:
        raw, cut = parser.parse(
            [Sentence(1, "She reads a book.", ()), Sentence(1, "", tuple(WORDS))]
        )
        assert "spacy" in parser.describe()
    assert brackets(raw) == brackets(cut) == PENN

    nlp.get_pipe("parser").add_label("dobj")
    nlp.to_disk(tmp_path / "other")
    with pytest.raises(ParserError, match="choose the rule for any scheme, --constituents heads"):
        open_parser(f"spacy:{tmp_path / 'other'}")
    open_parser(f"spacy:{tmp_path / 'other'}", ParserOptions(constituents="heads"))


def test_spacy_pipelines_that_cannot_parse(tmp_path: Path) -> None:
    spacy = pytest.importorskip("spacy")
    with pytest.raises(ParserError, match="spacy:nowhere: cannot be loaded"):
        open_parser("spacy:nowhere")
    spacy.blank("en").to_disk(tmp_path / "blank")
    with pytest.raises(ParserError, match="expected a pipeline with a parser"):
        open_parser(f"spacy:{tmp_path / 'blank'}")


def test_a_stanza_document_becomes_a_tree() -> None:
    pytest.importorskip("stanza")
    from stanza.models.common.doc import Document
    from stanza.models.constituency.parse_tree import Tree as StanzaTree

    rows = [
        {"id": number, "text": row.word, "upos": row.kind, "head": row.head, "deprel": row.relation}
        for number, row in enumerate(DEPENDENTS, 1)
    ]
    document = Document([rows])
    assert brackets(stanza_answer(document, ParserOptions())) == PENN
    twice = stanza_answer(Document([rows, rows]), ParserOptions())
    assert isinstance(twice, Tree)
    assert len(twice.words) == 10
    leaves = [StanzaTree("X", [StanzaTree(word)]) for word in WORDS]
    document.sentences[0].constituency = StanzaTree("ROOT", [StanzaTree("S", leaves)])
    assert brackets(stanza_answer(document, ParserOptions())) == "(S She reads a book .)"


def test_stanza_models_that_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("stanza")
    with pytest.raises(ParserError, match=r"stanza:xx: cannot be loaded: .*stanza\.download"):
        open_parser("stanza:xx")
    with pytest.raises(ParserError, match="expected LANG or LANG/constituency"):
        open_parser("stanza:en/other")
