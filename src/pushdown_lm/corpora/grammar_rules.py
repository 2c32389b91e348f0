"""The words and rules of the built-in corpus, an English-like language.

The grammar is the page of text `RULES` over the words of `NOUNS`, `VERBS` and `CLOSED_CLASSES`. A
variable in braces stands for every value of its domain (`DOMAINS`), so that one line such as

    NP_base_{q}_{c}_{l} -> @det_{q}_{c[0]}_{l} @nominal_{c}

writes the rule once for each choice of features. What the features say:

- agreement class `c`: number (s, p) and kind (m, f, e for men, women, either; b for beasts; t for
  things; plurals are animate, pa, or things, pt). A verb agrees in number, a reflexive in number
  and gender, both with the subject of their own clause.
- licence `l`: `+` in what a negative subject ("no author ..."), "not" or "never" c-commands, where
  "any" and "ever" may stand and no second negation does; `-` elsewhere. A "no" inside a modifier
  of the subject licenses nothing outside that modifier, and an object with "no" nothing at all.
- gap `g`: 1 in a clause that lacks its object, the filler being a relative or a question word.

The number or names after a colon are the odds of a rule among the rules of its symbol, 1 if not
given. Rules that lead to a symbol without rules are dropped, then the odds are normalised. A symbol
that begins with `@` leaves no bracket; another leaves one, labelled with its name up to the first
`_`, and where several brackets span the same words the outermost stays.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

NOUNS: Mapping[str, Sequence[tuple[str, str]]] = {
    kind: [(entry.split("/")[0], entry.split("/")[-1]) for entry in text.split()]
    for kind, text in {
        "m": "boy/boys man/men king/kings father/fathers brother/brothers prince/princes son/sons",
        "f": "girl/girls woman/women queen/queens mother/mothers sister/sisters "
        "daughter/daughters lady/ladies",
        "e": "teacher/teachers doctor/doctors lawyer/lawyers farmer/farmers writer/writers "
        "singer/singers driver/drivers child/children student/students pilot/pilots",
        "b": "dog/dogs cat/cats horse/horses bird/birds fox/foxes rabbit/rabbits lion/lions",
        "t": "car/cars house/houses table/tables book/books tree/trees box/boxes chair/chairs "
        "boat/boats letter/letters bridge/bridges door/doors picture/pictures",
    }.items()
}
"""Singular and plural of the nouns of each kind."""

VERBS: Mapping[str, Sequence[tuple[str, str, str, str]]] = {
    "TV": [
        ("see", "sees", "saw", "seen"),
        ("watch", "watches", "watched", "watched"),
        ("like", "likes", "liked", "liked"),
        ("hate", "hates", "hated", "hated"),
        ("love", "loves", "loved", "loved"),
        ("follow", "follows", "followed", "followed"),
        ("admire", "admires", "admired", "admired"),
        ("describe", "describes", "described", "described"),
        ("notice", "notices", "noticed", "noticed"),
        ("praise", "praises", "praised", "praised"),
        ("paint", "paints", "painted", "painted"),
        ("find", "finds", "found", "found"),
    ],
    "IV": [
        ("sleep", "sleeps", "slept", "slept"),
        ("laugh", "laughs", "laughed", "laughed"),
        ("run", "runs", "ran", "run"),
        ("smile", "smiles", "smiled", "smiled"),
        ("wait", "waits", "waited", "waited"),
        ("swim", "swims", "swam", "swum"),
        ("dance", "dances", "danced", "danced"),
    ],
    "IT": [
        ("fall", "falls", "fell", "fallen"),
        ("shine", "shines", "shone", "shone"),
        ("vanish", "vanishes", "vanished", "vanished"),
        ("break", "breaks", "broke", "broken"),
    ],
    "CV": [
        ("think", "thinks", "thought", "thought"),
        ("say", "says", "said", "said"),
        ("believe", "believes", "believed", "believed"),
        ("claim", "claims", "claimed", "claimed"),
    ],
    "WV": [
        ("know", "knows", "knew", "known"),
        ("remember", "remembers", "remembered", "remembered"),
        ("forget", "forgets", "forgot", "forgotten"),
    ],
}
"""Base, third person singular, past and participle of each verb: transitive (TV), intransitive with
animate subjects (IV) and with things (IT), with a `that` clause only (CV), with `that` or a
question (WV)."""

CLOSED_CLASSES: Mapping[str, Sequence[str]] = {
    symbol: text.split()
    for symbol, text in {
        "DET_s": "a this every one",
        "DET_p": "these some many two several",
        "P": "near behind beside above below",
        "ADJ_animate": "happy tired young big small clever brave hungry",
        "ADJ_thing": "red new big small green heavy broad",
        "ADVERB": "again outside here today quickly",
        "FREQUENCY": "often always sometimes usually",
        "RELATIVE_animate": "who that",
        "RELATIVE_thing": "that which",
        "QUESTION": "what who",
        "BE_s": "is was",
        "BE_p": "are were",
        "HAVE_s": "has had",
        "HAVE_p": "have had",
        "DO_s": "does did",
        "DO_p": "do did",
        "NEGATION": "not never",
        "PRO_sm": "he",
        "PRO_sf": "she",
        "PRO_sb": "it",
        "PRO_pa": "they",
        "REFLEXIVE_sm": "himself",
        "REFLEXIVE_sf": "herself",
        "REFLEXIVE_se": "himself herself",
        "REFLEXIVE_sb": "itself",
        "REFLEXIVE_pa": "themselves",
    }.items()
}
"""Words, equally likely, of the closed classes."""

DOMAINS: Mapping[str, Sequence[str]] = {
    "a": ("sm", "sf", "se", "sb", "pa"),
    "t": ("st", "pt"),
    "c": ("sm", "sf", "se", "sb", "pa", "st", "pt"),
    "p": ("sm", "sf", "sb", "pa"),
    "n": ("s", "p"),
    "l": ("-", "+"),
    "g": ("0", "1"),
    "q": ("d", "n"),
    "f": ("s", "p", "d", "b", "n"),
    "v": ("b", "n"),
}
"""Values of the feature variables: animate, thing, any and pronoun classes; number; licence; gap;
determiner (definite and the like, negative); verb form (singular, plural, past, base, participle)
and non-finite verb form."""

SHARES = {"sm": 1.0, "sf": 1.0, "se": 1.0, "sb": 1.0, "pa": 4.0, "st": 0.6, "pt": 0.6}
"""How often each agreement class is chosen, relative to the others."""

RULES = """
S_root -> @clause_0_- .
S_root -> S_0_- and S_0_- . : sentence_coordination
S_root -> S_0_- but S_0_- . : sentence_coordination
S_{g}_{l} -> @clause_{g}_{l}
@clause_{g}_{l} -> NP_full_{c}_{l} VP_full_{g}_{c}_{l} : share_{c}
@clause_{g}_- -> NP_n_{c}_- VP_full_{g}_{c}_+ : share_{c} * negation
@clause_{g}_{l} -> PRO_{p} VP_full_{g}_{p}_{l} : share_{p} * pronoun

NP_full_{c}_{l} -> NP_d_{c}_{l}
NP_full_pa_{l} -> @animate_{l} and @animate_{l} : noun_coordination
NP_full_pt_{l} -> @thing_{l} and @thing_{l} : noun_coordination
@animate_{l} -> NP_d_{a}_{l} : share_{a}
@thing_{l} -> NP_d_{t}_{l} : share_{t}
NP_{q}_{c}_{l} -> NP_base_{q}_{c}_{l}
NP_{q}_{c}_{l} -> NP_base_{q}_{c}_{l} PP_{l} : prepositional_modifier
NP_{q}_{c}_{l} -> NP_base_{q}_{c}_{l} SBAR_subject_{c}_{l} : subject_relative
NP_{q}_{c}_{l} -> NP_base_{q}_{c}_{l} SBAR_object_{c}_{l} : object_relative
NP_base_{q}_{c}_{l} -> @det_{q}_{c[0]}_{l} @nominal_{c}
@det_d_{n}_- -> the : 3
@det_d_{n}_- -> DET_{n}
@det_d_{n}_+ -> @det_d_{n}_-
@det_d_{n}_+ -> any : polarity
@det_n_{n}_- -> no
@nominal_{c} -> N_{c}
@nominal_{a} -> ADJ_animate N_{a} : adjective
@nominal_{t} -> ADJ_thing N_{t} : adjective
PP_{l} -> P @referent_{l}
@object_{l} -> @referent_{l}
@object_- -> @nothing : negation
@referent_{l} -> NP_full_{a}_{l} : share_{a}
@referent_{l} -> NP_full_{t}_{l} : share_{t} * 3
@nothing -> NP_n_{a}_- : share_{a}
@nothing -> NP_n_{t}_- : share_{t} * 3

SBAR_subject_{a}_{l} -> RELATIVE_animate S_subject_{a}_{l}
SBAR_subject_{t}_{l} -> RELATIVE_thing S_subject_{t}_{l}
SBAR_object_{a}_{l} -> RELATIVE_animate S_1_{l}
SBAR_object_{t}_{l} -> RELATIVE_thing S_1_{l}
SBAR_object_{c}_{l} -> S_1_{l} : reduced_relative
SBAR_that_{g}_{l} -> that S_{g}_{l}
SBAR_question_{l} -> QUESTION S_1_{l} : 2
SBAR_question_{l} -> who S_subject_se_{l}
SBAR_question_{l} -> what S_subject_st_{l} : 0.5
S_subject_{c}_{l} -> VP_full_0_{c}_{l}

VP_full_{g}_{c}_{l} -> VP_{g}_{c}_{l}
VP_full_0_{c}_{l} -> VP_0_{c}_{l} and VP_0_{c}_{l} : verb_coordination
VP_0_{c}_{l} -> @copula_{c}_{l} : copula
VP_{g}_{c}_{l} -> @core_d_{g}_{c}_{l}
VP_{g}_{c}_{l} -> @core_{c[0]}_{g}_{c}_{l} : present
VP_{g}_{c}_{l} -> FREQUENCY @core_{c[0]}_{g}_{c}_{l} : present * adverb
VP_{g}_{c}_- -> never @core_{c[0]}_{g}_{c}_+ : present * negation
VP_{g}_{c}_{l} -> HAVE_{c[0]} VP_n_{g}_{c}_{l} : perfect
VP_{g}_{c}_- -> HAVE_{c[0]} NEGATION VP_n_{g}_{c}_+ : perfect * negation
VP_{g}_{c}_+ -> HAVE_{c[0]} ever VP_n_{g}_{c}_+ : perfect * polarity
VP_{g}_{c}_{l} -> will VP_b_{g}_{c}_{l} : future
VP_{g}_{c}_- -> will NEGATION VP_b_{g}_{c}_+ : future * negation
VP_{g}_{c}_+ -> will ever VP_b_{g}_{c}_+ : future * polarity
VP_{g}_{c}_- -> DO_{c[0]} not VP_b_{g}_{c}_+ : negation
VP_{v}_{g}_{c}_{l} -> @core_{v}_{g}_{c}_{l}
@copula_{c}_{l} -> BE_{c[0]} PP_{l} : prepositional_modifier
@copula_{a}_{l} -> BE_{a[0]} ADJ_animate
@copula_{t}_{l} -> BE_{t[0]} ADJ_thing
@copula_{a}_- -> BE_{a[0]} not ADJ_animate : negation
@copula_{t}_- -> BE_{t[0]} not ADJ_thing : negation

@core_{f}_{g}_{c}_{l} -> @frame_{f}_{g}_{c}_{l}
@core_{f}_{g}_{c}_{l} -> @frame_{f}_{g}_{c}_{l} ADVERB : adverb
@core_{f}_{g}_{c}_{l} -> @frame_{f}_{g}_{c}_{l} PP_{l} : prepositional_adjunct
@frame_{f}_0_{t}_{l} -> IT_{f}
@frame_{f}_0_{a}_{l} -> IV_{f} : 0.6
@frame_{f}_0_{a}_{l} -> TV_{f} @object_{l}
@frame_{f}_0_{a}_{l} -> TV_{f} REFLEXIVE_{a} : reflexive
@frame_{f}_0_{a}_{l} -> CV_{f} SBAR_that_0_{l} : complement_clause
@frame_{f}_0_{a}_{l} -> WV_{f} SBAR_that_0_{l} : complement_clause
@frame_{f}_0_{a}_{l} -> WV_{f} SBAR_question_{l} : question
@frame_{f}_1_{a}_{l} -> TV_{f}
@frame_{f}_1_{a}_{l} -> CV_{f} SBAR_that_1_{l} : complement_clause
"""
"""The grammar; read it from the top. `S_root` is the start symbol."""
