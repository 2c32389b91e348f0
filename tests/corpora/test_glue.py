"""Task files, prompts and metrics."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from pushdown_lm.corpora.glue import (
    TASKS,
    Example,
    Task,
    TaskError,
    accuracy,
    evaluation_split,
    f1,
    find_task,
    load_examples,
    pearson,
    spearman,
)
from pushdown_lm.errors import TreeError

MINI = {
    "rte/train.tsv": "index\tsentence1\tsentence2\tlabel\n"
    '0\tThe "dog" sleeps.\tA dog sleeps\tentailment\n'
    "1\tThe cat runs\tThe dog runs?\tnot_entailment\n",
    "mrpc/train.txt": "\ufeffQuality\t#1 ID\t#2 ID\t#1 String\t#2 String\r\n"
    '1\t7\t8\tHe said "no".\t"No", he said.\r\n'
    "0\t9\t10\tIt rains.\tIt snows!\r\n",
    "sst5/train.txt": "(3 (2 It) (4 (4 (2 is) (4 lovely)) (2 .)))\n\n(0 Awful)\n"
    "(1 (2 -LRB-) (1 (1 dull) (2 -RRB-)))\n",
    "stsb/STSB_train.csv": "main\tMSR\t2012\t1\t5.000\tA man sings.\tA man is singing.\n"
    "news\thead\t2016\t2\t0\tRain\tSun\thttp://a\thttp://b\n",
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name, text in MINI.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(text.encode())
    return tmp_path


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "rte",
            [
                (['Premise: The "dog" sleeps.', "Hypothesis: A dog sleeps."], 0),
                (["Premise: The cat runs.", "Hypothesis: The dog runs?"], 1),
            ],
        ),
        (
            "mrpc",
            [
                (['Sentence 1: He said "no".', 'Sentence 2: "No", he said.'], 1),
                (["Sentence 1: It rains.", "Sentence 2: It snows!"], 0),
            ],
        ),
        (
            "sst5",
            [
                (["Sentence: It is lovely."], 3),
                (["Sentence: Awful."], 0),
                (["Sentence: (dull)."], 1),
            ],
        ),
        (
            "stsb",
            [
                (["Sentence 1: A man sings.", "Sentence 2: A man is singing."], 5.0),
                (["Sentence 1: Rain.", "Sentence 2: Sun."], 0.0),
            ],
        ),
    ],
)
def test_files_become_prompts(
    folder: Path, name: str, expected: list[tuple[list[str], float]]
) -> None:
    task = TASKS[name]
    for place in (folder, folder / name):
        examples = load_examples(task, place, "train")
        assert [(task.sentences(example), example.label) for example in examples] == expected
    some, *others = (load_examples(task, folder, "train", limit=1) for _ in range(3))
    assert len(some) == 1
    assert some[0] in load_examples(task, folder, "train")
    assert others == [some] * 2


def test_a_text_keeps_its_own_mark() -> None:
    task = TASKS["sst5"]
    for text, closed in [("Go!", "Go!"), ('He said "go."', 'He said "go."'), ("Go", "Go.")]:
        assert task.sentences(Example((text,), 0, "")) == [f"Sentence: {closed}"]


def test_glue_s_own_table_of_stsb(tmp_path: Path) -> None:
    header = "index\tgenre\tsentence1\tsentence2\tscore\n"
    (tmp_path / "train.tsv").write_text(f"{header}0\tx\tA cat.\tA dog.\t1.5\n")
    (example,) = load_examples(TASKS["stsb"], tmp_path, "train")
    assert example == Example(("A cat.", "A dog."), 1.5, f"{tmp_path / 'train.tsv'}:2")


def test_evaluation_is_on_dev_where_there_is_one(folder: Path) -> None:
    (folder / "rte" / "dev.tsv").write_text(MINI["rte/train.tsv"])
    assert evaluation_split(TASKS["rte"], folder) == "dev"
    assert evaluation_split(TASKS["mrpc"], folder) == "test"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("rte/train.tsv", "a\tb\n1\t2\n", r"train\.tsv:1: expected a header with sentence1"),
        (
            "rte/train.tsv",
            "index\tsentence1\tsentence2\tlabel\n0\tx\ty\n",
            r"train\.tsv:2: expected 4 columns, found 3",
        ),
        (
            "rte/train.tsv",
            "index\tsentence1\tsentence2\tlabel\n0\tx\ty\tmaybe\n",
            r":2: expected one of the labels entailment, not_entailment, found 'maybe'",
        ),
        ("rte/train.tsv", "index\tsentence1\tsentence2\tlabel\n", "expected examples, found none"),
        ("sst5/train.txt", "(7 (2 a) (2 b))\n", r"tree 1: expected one of the labels 0, 1"),
        ("stsb/STSB_train.csv", "a\tb\tc\td\thigh\tx\ty\n", "from 0 to 5, found 'high'"),
        ("stsb/STSB_train.csv", "a\tb\tc\td\t9\tx\ty\n", "from 0 to 5, found '9'"),
        ("stsb/STSB_train.csv", "a\tb\n", "expected at least 7 columns"),
    ],
)
def test_bad_files(folder: Path, name: str, text: str, message: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(TaskError, match=message):
        load_examples(TASKS[name.split("/")[0]], folder, "train")


def test_bad_tree(folder: Path) -> None:
    (folder / "sst5" / "train.txt").write_text("(3 (2 a) (2 b)\n")
    with pytest.raises(TreeError, match=r"train\.txt:2:1: expected"):
        load_examples(TASKS["sst5"], folder, "train")


def test_missing_file_and_task(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match=r"expected train\.tsv of RTE"):
        load_examples(TASKS["rte"], tmp_path, "train")
    with pytest.raises(TaskError, match="expected one of rte, sst5, mrpc, stsb, got 'cola'"):
        find_task("cola")
    assert find_task("STS-B") is TASKS["stsb"]


@pytest.mark.parametrize(
    ("task", "sizes"),
    [
        (TASKS["rte"], {"train": 2490, "dev": 277}),
        (TASKS["sst5"], {"train": 8544, "dev": 1101, "test": 2210}),
        (TASKS["mrpc"], {"train": 4080, "test": 1725}),
        (TASKS["stsb"], {"train": 5749, "dev": 1500, "test": 1379}),
    ],
    ids=lambda value: value.name if isinstance(value, Task) else "",
)
def test_real_files(shared_data: Path, task: Task, sizes: dict[str, int]) -> None:
    for split, size in sizes.items():
        examples = load_examples(task, shared_data / "glue", split)  # type: ignore[arg-type]
        assert len(examples) == size
        assert all(text.strip() for example in examples for text in example.texts)
        labels = {example.label for example in examples}
        assert len(labels) >= max(2, len(task.labels))


# ------------------------------------------------------------------ metrics

NUMBERS = st.lists(
    st.tuples(st.integers(-4, 4), st.integers(-4, 4)), min_size=3, max_size=30
).filter(lambda pairs: all(len(set(column)) > 1 for column in zip(*pairs, strict=True)))


@given(NUMBERS)
def test_correlations_are_scipy_s(pairs: list[tuple[int, int]]) -> None:
    left, right = zip(*pairs, strict=True)
    assert pearson(left, right) == pytest.approx(stats.pearsonr(left, right).statistic, abs=1e-12)
    assert spearman(left, right) == pytest.approx(stats.spearmanr(left, right).statistic, abs=1e-12)


def test_constant_predictions_do_not_correlate() -> None:
    assert pearson([2.1] * 5, [1, 2, 3, 4, 5]) == 0.0
    assert spearman([2.1] * 5, [1, 2, 3, 4, 5]) == 0.0


@given(st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=20))
def test_f1_is_the_harmonic_mean(pairs: list[tuple[int, int]]) -> None:
    found, wanted = (np.array(column) for column in zip(*pairs, strict=True))
    right = int((found * wanted).sum())
    if right:
        precision, recall = right / found.sum(), right / wanted.sum()
        assert f1(found, wanted) == pytest.approx(2 / (1 / precision + 1 / recall))
    else:
        assert f1(found, wanted) == 0.0
    assert accuracy(found, wanted) == sum(a == b for a, b in pairs) / len(pairs)
