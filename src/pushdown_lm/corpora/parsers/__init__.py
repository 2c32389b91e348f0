"""Parsers of raw sentences behind one protocol.

``command:COMMAND``        any program that reads sentences and writes brackets or CoNLL-U
``pushdown:MODEL``         a Pushdown model, a folder or an installed model's name
``link-grammar[:LANG]``    link-parser of Debian's package link-grammar
``spacy:PIPELINE``         a spaCy pipeline, in this process
``stanza:LANG``            Stanza, in this process
"""

from pushdown_lm.corpora.parsers.opening import PARSERS, open_parser
from pushdown_lm.corpora.parsers.protocol import Answer, Parser, ParserError, ParserOptions, Refusal

__all__ = ["PARSERS", "Answer", "Parser", "ParserError", "ParserOptions", "Refusal", "open_parser"]
