"""`pushdown corpus compare`."""

from __future__ import annotations

import json
from pathlib import Path

from tests.command_line import run_pushdown

DEPENDENCIES = """1\tThe\t_\tDET\t_\t_\t2\tdet\t_\t_
2\tdog\t_\tNOUN\t_\t_\t3\tnsubj\t_\t_
3\tsees\t_\tVERB\t_\t_\t0\troot\t_\t_
4\tit\t_\tPRON\t_\t_\t3\tobj\t_\t_

"""


def test_agreement_counts_constituents_but_the_whole(tmp_path: Path) -> None:
    trees, gold = tmp_path / "trees.conllu", tmp_path / "gold.trees"
    trees.write_text(DEPENDENCIES * 2)
    gold.write_text("(S (NP The dog) (VP sees it))\n(S The (X dog sees it))\n")
    score = json.loads(run_pushdown("corpus", "compare", trees, gold, "--json").output)
    counts = (score[f"{name}_brackets"] for name in ("matched", "gold", "predicted"))
    assert tuple(counts) == (2, 3, 4)
    assert score["f1"] == 4 / 7
    assert "57.1%" in run_pushdown("corpus", "compare", trees, gold).output


def test_files_of_other_sentences_are_bad_input(tmp_path: Path) -> None:
    trees, gold = tmp_path / "trees.conllu", tmp_path / "gold.trees"
    trees.write_text(DEPENDENCIES)
    gold.write_text("(S (NP The dog) (VP sees it))\n" * 2)
    done = run_pushdown("corpus", "compare", trees, gold)
    assert done.exit_code == 2
    assert f"{gold}: expected 1 trees, as in {trees}, found 2" in done.error
    gold.write_text("(S (NP The dog) (VP sees us))\n")
    done = run_pushdown("corpus", "compare", trees, gold)
    assert done.exit_code == 2
    assert "tree 1: expected a parse of 'The dog sees us'" in done.error
