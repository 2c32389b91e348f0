"""Masks, positions and legal symbols in closed form, against the automaton and by hand."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from pushdown_lm.data.bracketing import Nonterminals
from pushdown_lm.model.bracket_structure import bracket_structure, symbol_classes
from pushdown_lm.trees import Tree, parse_tree
from tests import strategies
from tests.reference_brackets import BOS, EOS, FIRST_WORD, Automaton, symbols_of

WORDS = 3
LABELS = tuple(strategies.LABELS)


def rows(mask: torch.Tensor) -> list[str]:
    return ["".join(".x"[int(seen)] for seen in row) for row in mask]


def test_tg_mask_by_hand() -> None:
    """(S (NP The dog) barks): what each symbol attends to, and its depth."""
    nonterminals = Nonterminals(("S", "NP"), 10, typed=True)
    tree = parse_tree("(S (NP The dog) barks)", labels=True)
    symbols = symbols_of(tree, nonterminals, [2, 3, 4])
    assert symbols == [0, 10, 11, 2, 3, 13, 13, 4, 12, 12, 1]
    structure = bracket_structure(torch.tensor([symbols]), nonterminals)
    assert rows(structure.tg_mask()[0]) == [
        "x..........",  # <s>
        "xx.........",  # (S
        "xxx........",  # (NP
        "xxxx.......",  # The
        "xxxxx......",  # dog
        "..xxxx.....",  # NP) composes: (NP, The, dog
        "xx...xx....",  # NP) again: <s>, (S, the composed NP
        "xx...x.x...",  # barks
        ".x...x.xx..",  # S) composes: (S, NP, barks
        "x.......xx.",  # S) again
        "x.......x.x",  # </s>
    ]
    assert structure.depth_positions()[0].tolist() == [0, 1, 2, 3, 3, 2, 2, 2, 1, 1, 1]


def test_plm_mask_by_hand() -> None:
    nonterminals = Nonterminals(("S", "NP"), 10, typed=False)
    tree = parse_tree("(S (NP The dog) barks)", labels=True)
    symbols = symbols_of(tree, nonterminals, [2, 3, 4])
    assert symbols == [0, 10, 11, 2, 3, 12, 4, 12, 1]
    outside, within = bracket_structure(torch.tensor([symbols]), nonterminals).plm_mask()[0]
    assert rows(outside) == [
        "x........",  # <s>: nothing is open
        "x........",  # (S
        "xx.......",  # (NP
        "xx.......",  # The
        "xx.......",  # dog
        "x........",  # ) of NP: S is open again
        "x........",  # barks
        "xxxxxxxx.",  # ) of S: nothing is open
        "xxxxxxxxx",  # </s>
    ]
    assert rows(within) == [
        "x........",
        ".x.......",
        "..x......",
        "..xx.....",
        "..xxx....",
        ".xxxxx...",
        ".xxxxxx..",
        "xxxxxxxx.",
        "xxxxxxxxx",
    ]


@given(st.lists(strategies.trees(labels=True), min_size=1, max_size=3), st.booleans())
def test_closed_form_is_the_automaton(trees: list[Tree], typed: bool) -> None:
    nonterminals = Nonterminals(LABELS, FIRST_WORD + WORDS, typed)
    sentences = [
        symbols_of(tree, nonterminals, [FIRST_WORD + n % WORDS for n in range(len(tree.words))])
        for tree in trees
    ]
    width = max(map(len, sentences))
    padded = torch.tensor([ids + [EOS] * (width - len(ids)) for ids in sentences])
    structure = bracket_structure(padded, nonterminals)
    tg, (outside, within) = structure.tg_mask(), structure.plm_mask().unbind(1)
    positions = structure.depth_positions()
    classes = symbol_classes(nonterminals.end, nonterminals, EOS, {BOS})
    legal = structure.legal(len(LABELS) if typed else 1)[..., classes]
    for row, sentence in enumerate(sentences):
        automaton = Automaton(nonterminals)
        for now, symbol in enumerate(sentence[:-1]):
            seen, depth, heads = automaton.read(symbol)
            assert set(tg[row, now].nonzero()[:, 0].tolist()) == seen
            assert positions[row, now] == depth
            assert set(outside[row, now].nonzero()[:, 0].tolist()) == heads[0]
            assert set(within[row, now].nonzero()[:, 0].tolist()) == heads[1]
            following = set(legal[row, now].nonzero()[:, 0].tolist())
            if not automaton.composed or not typed:  # the first copy predicts nothing
                assert following == automaton.legal(WORDS)
                assert sentence[now + 1] in following
