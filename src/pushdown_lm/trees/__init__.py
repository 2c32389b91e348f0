"""Trees, and the parse as a Pushdown model sees it: attachments and the stack tape."""

from pushdown_lm.trees.brackets import decode_word, encode_word, to_brackets
from pushdown_lm.trees.conllu import Constituents, Nonprojective
from pushdown_lm.trees.drawing import draw
from pushdown_lm.trees.nltk_trees import from_nltk, to_nltk
from pushdown_lm.trees.reading import Errors, Format, parse_tree, parse_trees, read_trees
from pushdown_lm.trees.tree import (
    Span,
    Tree,
    binarize,
    drop_words,
    is_binary,
    merge_pieces,
    split_words,
)

__all__ = [
    "Constituents",
    "Errors",
    "Format",
    "Nonprojective",
    "Span",
    "Tree",
    "binarize",
    "decode_word",
    "draw",
    "drop_words",
    "encode_word",
    "from_nltk",
    "is_binary",
    "merge_pieces",
    "parse_tree",
    "parse_trees",
    "read_trees",
    "split_words",
    "to_brackets",
    "to_nltk",
]
