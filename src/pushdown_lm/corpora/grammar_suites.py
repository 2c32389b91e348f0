"""Minimal pairs from the built-in grammar, as syntactic generalization suites (Hu et al., 2020).

Every suite follows one of Hu et al.'s and bears its name, with the depth after it: `number_orc_3`
is number agreement across three object relatives, one inside the other. The words in between, the
*modifier*, are stacked to the depth asked for and always have the other number than the head:

    prep  the boy near the dogs behind the lions ...
    src   the boy who saw the dogs who liked the lions ...
    orc   the boy that the dogs that the lions liked saw ...

The grammatical conditions are sentences of the grammar whose nesting is the depth; the others are
no sentences of it at all. Deeper suites use the same words in the same roles as shallow ones, so a
model trained on shallow sentences meets nothing new in them but the depth.
"""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from typing import Any

from pushdown_lm.corpora.grammar_rules import CLOSED_CLASSES, NOUNS, VERBS
from pushdown_lm.errors import PushdownError
from pushdown_lm.files import write_json

Suite = dict[str, Any]
"""A suite as Hu et al.'s JSON has it: meta, region_meta, predictions, items."""

ANIMATE_NOUNS = [noun for kind in "mfeb" for noun in NOUNS[kind]]
BASE, THIRD, PAST, PARTICIPLE = range(4)
SINGULAR, PLURAL = range(2)


@dataclass(frozen=True)
class MinimalPair:
    """Two sentences, the first of which a model should find likelier."""

    good: str
    bad: str
    phenomenon: str
    """The suite without its depth, e.g. `number_orc`."""
    depth: int
    """The nesting of the good sentence."""


@dataclass(frozen=True)
class _Design:
    """What all items of a suite share."""

    regions: Sequence[str]
    formula: str
    """The prediction; `(name;%condition%)` is the surprisal of the region of that name."""
    pairs: Sequence[tuple[str, str]]
    """A grammatical condition and its ungrammatical counterpart."""
    build: Callable[[random.Random, int], Mapping[str, Sequence[str]]]
    """Draws an item of a given depth: the contents of the regions in each condition."""
    min_depth: int = 1


@dataclass(frozen=True)
class _Modifier:
    """The words between the head of a subject and its verb, as lemmas."""

    kind: str
    links: Sequence[str]
    """Prepositions, or relative pronouns."""
    nouns: Sequence[tuple[str, str]]
    verbs: Sequence[str]

    @classmethod
    def draw(cls, source: random.Random, kind: str, depth: int, head: tuple[str, str]) -> _Modifier:
        others = [noun for noun in ANIMATE_NOUNS if noun != head]
        links = CLOSED_CLASSES["P" if kind == "prep" else "RELATIVE_animate"]
        return cls(
            kind,
            source.choices(links, k=depth),
            source.sample(others, depth),
            [verb[PAST] for verb in _draw_verbs(source, depth)],
        )

    def text(self, number: int, determiner: str = "the") -> str:
        """The modifier with nouns of this number, the outermost with this determiner."""
        determiners = [determiner] + ["the"] * (len(self.nouns) - 1)
        phrases = [f"{d} {noun[number]}" for d, noun in zip(determiners, self.nouns, strict=True)]
        if self.kind == "orc":
            opened = [f"{link} {phrase}" for link, phrase in zip(self.links, phrases, strict=True)]
            return " ".join(opened + list(reversed(self.verbs)))
        verbs = self.verbs if self.kind == "src" else [""] * len(phrases)
        parts = zip(self.links, verbs, phrases, strict=True)
        return " ".join(part for triple in parts for part in triple if part)


def _draw_verbs(source: random.Random, count: int) -> list[tuple[str, str, str, str]]:
    """Transitive verbs that repeat only after all have been used."""
    return list(islice(cycle(source.sample(VERBS["TV"], len(VERBS["TV"]))), count))


def _number_item(kind: str, source: random.Random, depth: int) -> dict[str, list[str]]:
    head = source.choice(ANIMATE_NOUNS)
    modifier = _Modifier.draw(source, kind, depth, head)
    adjective = source.choice(CLOSED_CLASSES["ADJ_animate"])
    adverb = source.choice(CLOSED_CLASSES["ADVERB"])
    verb = source.choice(VERBS["IV"])
    forms, continuation = source.choice(
        [
            (("is", "are"), adjective),
            (("was", "were"), adjective),
            (("has", "have"), verb[PARTICIPLE]),
            ((verb[THIRD], verb[BASE]), adverb),
        ]
    )

    def condition(number: int, verb_number: int) -> list[str]:
        between = modifier.text(1 - number)
        return ["the", head[number], between, forms[verb_number], continuation, "."]

    return _match_and_mismatch(condition)


def _reflexive_item(
    kind: str, gender: str, source: random.Random, depth: int
) -> dict[str, list[str]]:
    head = source.choice(NOUNS[gender])
    modifier = _Modifier.draw(source, kind, depth, head)
    verb = source.choice(VERBS["TV"])[PAST]
    (singular,), (plural,) = CLOSED_CLASSES[f"REFLEXIVE_s{gender}"], CLOSED_CLASSES["REFLEXIVE_pa"]

    def condition(number: int, reflexive_number: int) -> list[str]:
        reflexive = (singular, plural)[reflexive_number]
        return ["the", head[number], modifier.text(1 - number), verb, reflexive, "."]

    return _match_and_mismatch(condition)


def _match_and_mismatch(condition: Callable[[int, int], list[str]]) -> dict[str, list[str]]:
    return {
        "match_sing": condition(SINGULAR, SINGULAR),
        "mismatch_sing": condition(SINGULAR, PLURAL),
        "match_plural": condition(PLURAL, PLURAL),
        "mismatch_plural": condition(PLURAL, SINGULAR),
    }


def _center_embed_item(source: random.Random, depth: int) -> dict[str, list[str]]:
    nouns = source.sample(ANIMATE_NOUNS, depth + 1)
    links = ["", *(f"{link} " for link in source.choices(["that", "who"], k=depth))]
    first = source.choice([SINGULAR, PLURAL])
    numbers = [(first + index) % 2 for index in range(depth + 1)]
    verbs = [source.choice(VERBS["IV"]), *_draw_verbs(source, depth)]
    opened = " ".join(
        f"{link}the {noun[number]}"
        for link, noun, number in zip(links, nouns, numbers, strict=True)
    )

    def present(index: int, number: int) -> str:
        return verbs[index][BASE if number == PLURAL else THIRD]

    inner = " ".join(present(index, numbers[index]) for index in range(depth, 1, -1))
    return {
        "match": [opened, inner, present(1, numbers[1]), present(0, numbers[0]), "."],
        "swap": [opened, inner, present(1, numbers[0]), present(0, numbers[1]), "."],
    }


def _polarity_item(kind: str, item: str, source: random.Random, depth: int) -> dict[str, list[str]]:
    head = source.choice(ANIMATE_NOUNS)
    modifier = _Modifier.draw(source, kind, depth, head)
    number = source.choice([SINGULAR, PLURAL])
    auxiliary = source.choice(CLOSED_CLASSES["HAVE_p" if number == PLURAL else "HAVE_s"])
    if item == "ever":
        rest = [auxiliary, "ever", source.choice(VERBS["IV"])[PARTICIPLE]]
    else:
        verb, noun = source.choice(VERBS["TV"])[PARTICIPLE], source.choice(NOUNS["t"])
        rest = [f"{auxiliary} {verb}", "any", noun[source.choice([SINGULAR, PLURAL])]]

    def condition(outer: str, inner: str) -> list[str]:
        return [outer, head[number], modifier.text(1 - number, inner), *rest, "."]

    return {
        "neg_pos": condition("no", "the"),
        "neg_neg": condition("no", "no"),
        "pos_pos": condition("the", "the"),
        "pos_neg": condition("the", "no"),
    }


def _filler_gap_item(between: str, source: random.Random, depth: int) -> dict[str, list[str]]:
    knower, subject, *speakers = source.sample(ANIMATE_NOUNS, depth + 1)
    filler, kind = source.choice([("what", "t"), ("who", "e")])
    target = source.choice([noun for noun in NOUNS[kind] if noun not in (subject, knower)])
    number = source.choice([SINGULAR, PLURAL])
    chain, subject_phrase = "", f"the {subject[number]}"
    if between == "clause":
        chain = " ".join(
            f"the {speaker[number]} {source.choice(VERBS['CV'])[PAST]} that" for speaker in speakers
        )
    else:
        modifier = _Modifier.draw(source, between, depth - 1, subject)
        subject_phrase += f" {modifier.text(1 - number)}"
    prefix = f"the {knower[SINGULAR]} {source.choice(VERBS['WV'])[THIRD]}"
    verb = source.choice(VERBS["TV"])[PAST]
    adverb = source.choice(CLOSED_CLASSES["ADVERB"])

    def condition(complementizer: str, target_phrase: str) -> list[str]:
        return [prefix, complementizer, chain, subject_phrase, verb, target_phrase, adverb, "."]

    target_phrase = f"the {target[source.choice([SINGULAR, PLURAL])]}"
    return {
        "what_nogap": condition(filler, target_phrase),
        "that_nogap": condition("that", target_phrase),
        "what_gap": condition(filler, ""),
        "that_gap": condition("that", ""),
    }


_AGREEMENT_PAIRS = [("match_sing", "mismatch_sing"), ("match_plural", "mismatch_plural")]

_DESIGNS = {
    **{
        f"number_{kind}": _Design(
            regions=("intro", "np", "modifier", "matrix_v", "continuation", "end"),
            formula="[(matrix_v;%match_sing%) < (matrix_v;%mismatch_sing%)] & "
            "[(matrix_v;%match_plural%) < (matrix_v;%mismatch_plural%)]",
            pairs=_AGREEMENT_PAIRS,
            build=partial(_number_item, kind),
        )
        for kind in ("prep", "src", "orc")
    },
    "center_embed": _Design(
        regions=("subjects", "inner_verbs", "verb_2", "verb_1", "end"),
        formula="[(verb_2;%match%) + (verb_1;%match%)] < [(verb_2;%swap%) + (verb_1;%swap%)]",
        pairs=[("match", "swap")],
        build=_center_embed_item,
    ),
    **{
        f"reflexive_{kind}_{name}": _Design(
            regions=("intro", "np", "modifier", "matrix_v", "reflexive", "end"),
            formula="[(reflexive;%match_sing%) < (reflexive;%mismatch_sing%)] & "
            "[(reflexive;%match_plural%) < (reflexive;%mismatch_plural%)]",
            pairs=_AGREEMENT_PAIRS,
            build=partial(_reflexive_item, kind, gender),
        )
        for kind in ("prep", "src", "orc")
        for name, gender in (("masc", "m"), ("fem", "f"))
    },
    **{
        f"npi_{kind}_{item}": _Design(
            regions=("licensor", "np", "modifier", "matrix_v", "npi", "continuation", "end"),
            formula="[(npi;%neg_pos%) < (npi;%pos_pos%)] & [(npi;%neg_neg%) < (npi;%pos_neg%)] & "
            "[(npi;%neg_pos%) < (npi;%pos_neg%)]",
            pairs=[("neg_pos", "pos_pos"), ("neg_neg", "pos_neg")],
            build=partial(_polarity_item, kind, item),
        )
        for kind in ("src", "orc")
        for item in ("any", "ever")
    },
    **{
        f"fgd_{name}": _Design(
            regions=("prefix", "comp", "chain", "np", "verb", "object", "adverb", "end"),
            formula="[(object;%what_nogap%) > (object;%that_nogap%)] & "
            "[(adverb;%what_gap%) < (adverb;%that_gap%)]",
            pairs=[("that_nogap", "what_nogap"), ("what_gap", "that_gap")],
            build=partial(_filler_gap_item, between),
            min_depth=min_depth,
        )
        for name, between, min_depth in (("object", "clause", 1), ("orc", "orc", 2))
    },
}


def suites(*, depth: int, items: int, seed: int) -> dict[str, Suite]:
    """The suites at a depth, by name, in the JSON format of Hu et al.'s.

    `fgd_orc` begins at depth 2, its question being the first clause around the gap.

    >>> suite = suites(depth=2, items=1, seed=0)["number_orc_2"]
    >>> for condition in suite["items"][0]["conditions"]:
    ...     print(sentence(condition))
    the lady that the rabbits that the lawyers hated loved has swum .
    the lady that the rabbits that the lawyers hated loved have swum .
    the ladies that the rabbit that the lawyer hated loved have swum .
    the ladies that the rabbit that the lawyer hated loved has swum .
    >>> suite["predictions"][0]["formula"]
    '[(4;%match_sing%) < (4;%mismatch_sing%)] & [(4;%match_plural%) < (4;%mismatch_plural%)]'
    """
    if not 1 <= depth < len(ANIMATE_NOUNS):
        raise PushdownError(f"depth: expected 1 to {len(ANIMATE_NOUNS) - 1}, got {depth}")
    if items < 1:
        raise PushdownError(f"items: expected 1 or more, got {items}")
    return {
        f"{name}_{depth}": _suite(name, design, depth, items, seed)
        for name, design in _DESIGNS.items()
        if depth >= design.min_depth
    }


def _suite(name: str, design: _Design, depth: int, items: int, seed: int) -> Suite:
    source = random.Random(f"{name}/{depth}/{seed}")
    numbers = {region: number for number, region in enumerate(design.regions, start=1)}
    formula = re.sub(r"\((\w+);", lambda match: f"({numbers[match[1]]};", design.formula)
    return {
        "meta": {
            "name": f"{name}_{depth}",
            "metric": "sum",
            "comment": f"built-in grammar, nesting {depth}, seed {seed}",
            "reference": "",
            "author": "",
        },
        "region_meta": {str(number): region for region, number in numbers.items()},
        "predictions": [{"type": "formula", "formula": formula}],
        "items": [
            {
                "item_number": item_number,
                "conditions": [
                    {
                        "condition_name": condition,
                        "regions": [
                            {"region_number": number, "content": content}
                            for number, content in enumerate(contents, start=1)
                        ],
                    }
                    for condition, contents in design.build(source, depth).items()
                ],
            }
            for item_number in range(1, items + 1)
        ],
    }


def sentence(condition: Mapping[str, Any]) -> str:
    """The sentence of a condition: its regions that are not empty, joined by spaces."""
    return " ".join(region["content"] for region in condition["regions"] if region["content"])


def minimal_pairs(*, depth: int, items: int, seed: int) -> Iterator[MinimalPair]:
    """The items of `suites` as pairs of a grammatical and an ungrammatical sentence.

    The two differ in one word (verb, reflexive, licensor or filler), in `center_embed` in two.
    """
    for name, suite in suites(depth=depth, items=items, seed=seed).items():
        phenomenon = name.removesuffix(f"_{depth}")
        for item in suite["items"]:
            sentences = {
                condition["condition_name"]: sentence(condition) for condition in item["conditions"]
            }
            for good, bad in _DESIGNS[phenomenon].pairs:
                yield MinimalPair(sentences[good], sentences[bad], phenomenon, depth)


def write_suites(folder: str | Path, *, depth: int, items: int, seed: int) -> list[Path]:
    """Write each suite of `suites` to `folder/<name>.json` and return the paths."""
    paths = []
    for name, suite in suites(depth=depth, items=items, seed=seed).items():
        path = Path(folder) / f"{name}.json"
        write_json(path, suite)
        paths.append(path)
    return paths
