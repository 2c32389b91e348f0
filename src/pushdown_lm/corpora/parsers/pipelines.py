"""spaCy and Stanza in this process.

Both cut and tag words by themselves, or take them as they are. Their dependencies become
constituents by rule; the brackets of their constituency parsers (benepar in spaCy, Stanza's own)
stay. Where a pipeline finds several sentences in one, the later roots depend on the first.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from pushdown_lm.corpora.parsers.protocol import Answer, ParserError, ParserOptions, read_answer
from pushdown_lm.corpora.raw_text import Sentence


class Dependent(NamedTuple):
    """A word of a dependency tree; heads count from 1, and 0 is the root."""

    word: str
    kind: str
    head: int
    relation: str


def dependencies_to_answer(dependents: Sequence[Dependent], options: ParserOptions) -> Answer:
    """The tree of one sentence, by way of CoNLL-U."""
    root = next((n for n, word in enumerate(dependents, 1) if word.head == 0), 0)
    rows = []
    for number, (word, kind, head, relation) in enumerate(dependents, 1):
        if head == 0 and number != root:
            head, relation = root, "parataxis"
        form = "_".join(word.split())
        fields = (number, form, "_", kind or "X", "_", "_", head, relation or "dep", "_", "_")
        rows.append("\t".join(map(str, fields)))
    return read_answer("\n".join(rows), options)


class SpacyParser:
    """A spaCy pipeline by the name of its package or folder."""

    def __init__(self, pipeline: str, options: ParserOptions) -> None:
        try:
            import spacy
        except ImportError as error:
            raise ParserError(
                f"spaCy is not installed ({error}): pip install 'pushdown-lm[spacy]'"
            ) from None
        try:
            self.pipeline: Any = spacy.load(pipeline)
        except (OSError, ValueError) as error:
            message = " ".join(str(error).split())[:200]
            raise ParserError(f"spacy:{pipeline}: cannot be loaded: {message}") from None
        self.name, self.options = pipeline, options
        labels = self.pipeline.pipe_labels.get("parser", [])
        if "benepar" not in self.pipeline.pipe_names:
            if not labels:
                raise ParserError(f"spacy:{pipeline}: expected a pipeline with a parser")
            if options.constituents == "penn" and "dobj" in labels:
                raise ParserError(
                    f"spacy:{pipeline}: expected Universal Dependencies, found other relations "
                    "(dobj); choose the rule for any scheme, --constituents heads"
                )

    def describe(self) -> dict[str, Any]:
        meta = self.pipeline.meta
        return {
            "spacy": f"{meta['lang']}_{meta['name']} {meta['version']}",
            "constituents": self.options.constituents,
        }

    def close(self) -> None:
        pass

    def parse(self, sentences: Sequence[Sentence]) -> Iterator[Answer]:
        from spacy.tokens import Doc

        texts = [
            Doc(self.pipeline.vocab, words=list(sentence.words))
            if sentence.words
            else sentence.text
            for sentence in sentences
        ]
        for document in self.pipeline.pipe(texts):
            yield spacy_answer(document, self.options)


def spacy_answer(document: Any, options: ParserOptions) -> Answer:
    """The tree of a document that is one sentence, by benepar if it has run."""
    from spacy.tokens import Span

    if Span.has_extension("parse_string"):
        trees = [sentence._.parse_string for sentence in document.sents]
        return read_answer(trees[0] if len(trees) == 1 else f"(TOP {' '.join(trees)})", options)
    tokens = [token for token in document if not token.is_space]
    numbers = {token.i: number for number, token in enumerate(tokens, 1)}
    return dependencies_to_answer(
        [
            Dependent(
                token.text,
                token.pos_,
                0 if token.head.i == token.i else numbers.get(token.head.i, 0),
                token.dep_,
            )
            for token in tokens
        ],
        options,
    )


class StanzaParser:
    """Stanza's models of a language: `en` for dependencies, `en/constituency` for its brackets."""

    def __init__(self, language: str, options: ParserOptions) -> None:
        try:
            import stanza
        except ImportError as error:
            raise ParserError(
                f"Stanza is not installed ({error}): pip install 'pushdown-lm[stanza]'"
            ) from None
        self.name, self.options = language, options
        code, _, kind = language.partition("/")
        if kind not in ("", "constituency"):
            raise ParserError(f"stanza:{language}: expected LANG or LANG/constituency")
        last = "constituency" if kind else "lemma,depparse"
        common = {"lang": code, "download_method": None, "verbose": False}
        try:
            self._raw: Any = stanza.Pipeline(
                processors=f"tokenize,mwt,pos,{last}", tokenize_no_ssplit=True, **common
            )
            self._cut: Any = stanza.Pipeline(
                processors=f"tokenize,pos,{last}", tokenize_pretokenized=True, **common
            )
        except Exception as error:  # of several kinds: no such language, models not downloaded
            message = " ".join(str(error).split())[:200]
            raise ParserError(
                f"stanza:{language}: cannot be loaded: {message}; stanza.download({code!r}) gets "
                "its models"
            ) from None

    def describe(self) -> dict[str, Any]:
        import stanza

        return {
            "stanza": self.name,
            "version": stanza.__version__,
            "constituents": self.options.constituents,
        }

    def close(self) -> None:
        pass

    def parse(self, sentences: Sequence[Sentence]) -> Iterator[Answer]:
        import stanza

        for sentence in sentences:
            if sentence.words:
                document = self._cut([list(sentence.words)])
            else:
                document = self._raw(stanza.Document([], text=sentence.text))
            yield stanza_answer(document, self.options)


def stanza_answer(document: Any, options: ParserOptions) -> Answer:
    """The tree of a document that is one sentence."""
    trees = [sentence.constituency for sentence in document.sentences]
    if trees and all(tree is not None for tree in trees):
        joined = " ".join(map(str, trees))
        return read_answer(joined if len(trees) == 1 else f"(TOP {joined})", options)
    dependents: list[Dependent] = []
    for sentence in document.sentences:
        first = len(dependents)
        dependents += [
            Dependent(word.text, word.upos, word.head and word.head + first, word.deprel)
            for word in sentence.words
        ]
    return dependencies_to_answer(dependents, options)
