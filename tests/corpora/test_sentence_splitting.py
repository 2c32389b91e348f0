"""Where sentences end."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pushdown_lm.corpora.sentence_splitting import split_sentences
from pushdown_lm.data.text import detokenize
from pushdown_lm.trees import read_trees


@pytest.mark.parametrize(
    ("language", "text"),
    [
        ("en", "Mr. J. R. Smith met Gen. Grant. | He left."),
        ("en", "It cost $3.50 in the U.S. Congress. | The end."),
        ("en", "She came at 5 p.m. | The dog slept."),
        ("en", '"Stop!" he said. | "Why?" | She left (at last). | Then it rained...'),
        ("en", "See Fig. 3 and No. 5. | 12 of them came."),
        ("en", "1. Introduction is here. | 2. Methods."),
        ("en", "Is it 3.5? | Yes! | No…  | Good."),
        ("en", 'He left . | " Why ? " | She slept ( a bit . ) | End .'),
        ("en", "Acme Inc. said so. | It was e.g. Smith."),
        ("de", "Am 3. Oktober kam Dr. Müller. | Er blieb."),
        ("fr", "M. Dupont est là. | « Oui ! » | Il part."),
        ("es", "¿Qué es? | ¡Nada! | El Sr. López vino."),
        ("zh", "他来了。|她走了！|「好。」|完"),
        ("hi", "वह आया। | वह गया।"),
        ("xx", "Eins. | Zwei."),
    ],
)
def test_ends_of_sentences(language: str, text: str) -> None:
    wanted = [part.strip() for part in text.split("|")]
    joined = text.replace("|", "")
    assert [joined[start:end] for start, end in split_sentences(joined, language)] == wanted


@given(st.text(st.sampled_from("aB1 .!?\"'”。()\n"), max_size=60))
def test_nothing_is_lost_and_no_sentence_is_empty(text: str) -> None:
    spans = split_sentences(text)
    assert "".join("".join(text[start:end].split()) for start, end in spans) == "".join(
        text.split()
    )
    assert all(text[start:end].strip() == text[start:end] != "" for start, end in spans)
    assert sorted(spans) == spans


def test_agreement_with_gum(shared_data: Path) -> None:
    """Of sentences that end in marks, joined by tens, most ends are found and few are made up."""
    trees = read_trees(shared_data / "gum" / "dev.trees")
    texts = [
        text
        for tree in trees
        if (text := "".join(detokenize(tree.words)))[-1] in ".?!" and text[0].isupper()
    ]
    right = found = wanted = 0
    for first in range(0, len(texts), 10):
        some = texts[first : first + 10]
        ends = set(accumulate(len(text) + 1 for text in some))
        ours = {end + 1 for _, end in split_sentences(" ".join(some))}
        right, found, wanted = right + len(ours & ends), found + len(ours), wanted + len(ends)
    assert 2 * right / (found + wanted) > 0.97
