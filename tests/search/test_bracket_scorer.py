"""Models that read brackets behind the questions that evaluations and commands ask."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest

from pushdown_lm.corpora.grammar import generate
from pushdown_lm.errors import PushdownError
from pushdown_lm.evals.attention import evaluate_attention
from pushdown_lm.evals.parsing import evaluate_parsing
from pushdown_lm.evals.tree_perplexity import evaluate_tree_perplexity
from pushdown_lm.model.loading import ModelFolderError
from pushdown_lm.search.bracket_scorer import BracketScorer
from pushdown_lm.search.loading import load_scorer
from pushdown_lm.search.pushdown_scorer import PushdownScorer, UnknownTokenError
from pushdown_lm.search.scorer import ScoreCache, Scorer
from pushdown_lm.training.run import run_recipe
from pushdown_lm.trees import Tree, binarize, is_binary, parse_tree, to_brackets
from tests.command_line import run_pushdown
from tests.tiny_training import tiny_data, tiny_recipe

LLAMA = "model.decoder={type: llama, intermediate_size: 32, num_key_value_heads: 2}"
SENTENCE = "the dog sleeps ."


@pytest.fixture(scope="module", params=["plm", "plm-mask", "tg"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    run = tmp_path_factory.mktemp("run")
    data = tiny_data(tmp_path_factory.mktemp("data"), labels=True)
    recipe = tiny_recipe(
        f"model.kind={request.param}", LLAMA, "training.lr=1e-2", "training.dropout=0", steps=40
    )
    run_recipe(recipe, data, run)
    return run / "model"


@pytest.fixture(scope="module")
def scorer(folder: Path) -> BracketScorer:
    return BracketScorer.from_pretrained(folder, beam=40, threshold=8.0)


def test_protocol(scorer: BracketScorer, folder: Path, tmp_path: Path) -> None:
    assert isinstance(scorer, Scorer)
    assert scorer.parses
    assert not scorer.is_exact
    described = scorer.describe()
    assert (described["beam"], described["threshold"]) == ("40/4/2", 8.0)
    json.dumps(described)
    loaded = load_scorer(folder)
    assert isinstance(loaded, BracketScorer)
    assert loaded.describe()["beam"] == "100/10/5"
    [tokens] = scorer.surprisals([SENTENCE])
    assert [token.text for token in tokens] == [*SENTENCE.split(), "</s>"]
    total = math.log(2) * math.fsum(token.surprisal for token in tokens)
    assert scorer.log_probs([SENTENCE]) == [pytest.approx(-total)]
    assert all(token.surprisal > 0 for token in tokens)
    cached = ScoreCache(scorer, tmp_path / "scores.jsonl")
    words = tuple(SENTENCE.split())
    assert cached.parse([words]) == cached.parse([words])


def test_parses_have_labels(scorer: BracketScorer) -> None:
    tree = scorer.parse(SENTENCE)
    assert tree.words == tuple(SENTENCE.split())
    assert tree.labels is not None
    assert set(tree.labels) <= set(scorer.model.config.labels or ())
    [binary] = scorer.parse([SENTENCE.split()])
    assert binary == binarize(tree)
    assert scorer.parse([["the", "unheard"]]) == [None]


def test_joint_of_the_best_parse(scorer: BracketScorer) -> None:
    analysis = scorer.analyse([SENTENCE])[0]
    best = analysis.trees()[0].tree
    entries = [
        log_joint
        for entry, log_joint in enumerate(analysis.result.log_joints)
        if analysis.result.actions(entry).count(-1) == len(best.spans)  # type: ignore[attr-defined]
        and analysis.result.trees(best.words)[0].tree == best
    ]
    assert max(entries) == pytest.approx(scorer.log_joint(best), rel=1e-4)
    assert scorer.log_joint(best) <= analysis.log_prob + 1e-6
    with pytest.raises(PushdownError, match="labels that the model was trained on, found 'FRAG'"):
        scorer.log_joint(parse_tree("(FRAG the dog)", labels=True))
    with pytest.raises(PushdownError, match="trained on, found 'X'; it knows"):
        scorer.log_joint(Tree(("the", "dog"), ((0, 2),)))


def test_evaluations(scorer: BracketScorer) -> None:
    gold = [binarize(tree) for tree in generate(5, seed=5)]
    parsing = evaluate_parsing(scorer, gold)
    assert parsing.parsed == 5
    assert 0 < parsing.model.f1 <= 1
    perplexity = evaluate_tree_perplexity(scorer, gold)
    assert set(perplexity.log_probs) == {"marginal"}
    assert perplexity.word_perplexity("marginal") < 200


def test_questions_that_brackets_do_not_answer(scorer: BracketScorer, tmp_path: Path) -> None:
    for asked in (scorer, ScoreCache(scorer, tmp_path / "scores.jsonl")):
        assert not asked.attends
        assert not asked.scores_trees
        with pytest.raises(PushdownError, match="attention is on words alone, found one that read"):
            evaluate_attention(asked, [])
    with pytest.raises(PushdownError, match="attention is on words, found a model that reads brac"):
        scorer.read_attention(SENTENCE)
    with pytest.raises(PushdownError, match="predicted apart from the structure, found a model th"):
        scorer.score_trees([Tree(("the", "dog"), ((0, 2),))])


def test_likeliest_tokens(scorer: BracketScorer) -> None:
    analysis = scorer.analyse([SENTENCE])[0]
    found = scorer.is_likeliest(analysis)
    assert len(found) == len(SENTENCE.split()) + 1
    assert found[-1]  # EOS is all that may follow the last closer


def test_brackets_are_no_words(scorer: BracketScorer) -> None:
    opener = scorer.model.config.nonterminals.tokens()[0]
    with pytest.raises(UnknownTokenError, match="special tokens"):
        scorer.encode(["the", opener])
    with pytest.raises(UnknownTokenError, match="special tokens"):
        scorer.encode(f"the {opener}")


def test_commands(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "sentences.txt").write_text(f"{SENTENCE}\nthe cats that the dog likes sleep .\n")
    sentences = tmp_path / "sentences.txt"
    for command in ("score", "surprisal", "parse"):
        done = run_pushdown(command, folder, sentences, "--beam", 20)
        assert (done.exit_code, done.error.count("Traceback")) == (0, 0)
    trees = [parse_tree(line, labels=True) for line in done.output.splitlines()]
    assert [" ".join(tree.words) for tree in trees] == sentences.read_text().splitlines()
    joint = run_pushdown("score", folder, "--tree", stdin=done.output)
    assert joint.exit_code == 0
    assert len(joint.output.splitlines()) == 3
    wrong = run_pushdown("score", folder, "--tree", stdin="(FRAG the dog)")
    assert wrong.exit_code == 2
    assert "tree 1: expected labels that the model was trained on, found 'FRAG'" in wrong.error
    refused = run_pushdown("generate", folder)
    assert refused.exit_code == 2
    assert "expected a Pushdown model, found model_type 'bracket_lm'" in refused.error
    (tmp_path / "test.trees").write_text("\n".join(map(to_brackets, generate(3, seed=5))))
    for command in (["parsing"], ["perplexity", "--trees"]):
        done = run_pushdown(
            "eval", *command, "--model", folder, "--data", tmp_path / "test.trees", "--beam", 20
        )
        assert done.exit_code == 0, done.error


def test_folders_of_other_kinds(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelFolderError, match="expected a Pushdown model, found model_type 'brac"):
        PushdownScorer.from_pretrained(folder)
    with pytest.raises(ModelFolderError, match="expected a model that reads brackets, found no"):
        BracketScorer.from_pretrained(tmp_path)


def test_subwords() -> None:
    """A byte-level BPE: several tokens per word, and trees over words."""
    from pushdown_lm.data.bracketing import Nonterminals
    from pushdown_lm.data.tokenization import train_bpe
    from tests.models import bracket_model

    bpe = train_bpe([["the", " dogs", " bark"]] * 5, 262)
    tokenizer = Nonterminals.add_to(bpe, ["S", "NP"], typed=False)
    model = bracket_model("plm", words=len(bpe) - 2, scale=0.2)
    model.config.pad_token_id = tokenizer.pad_token_id
    scorer = BracketScorer(model, tokenizer, beam=10)  # type: ignore[arg-type]
    tree = scorer.parse("the dogs bark")
    assert tree.words == ("the", "dogs", "bark")
    [binary] = scorer.parse([["the", "dogs", "bark"]])
    assert binary is not None
    assert is_binary(binary)
