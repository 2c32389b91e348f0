"""The model in the box: packing, finding by name, the same scores."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from pushdown_lm.experiments.box_model import BoxError, pack_model, write_card
from pushdown_lm.search.loading import load_scorer
from pushdown_lm.search.packaged import ModelNameError, find_model, installed_models
from pushdown_lm.search.pushdown_scorer import PushdownScorer
from pushdown_lm.training.run import run_recipe
from tests.tiny_training import tiny_data, tiny_recipe


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("box")
    run_recipe(tiny_recipe(), tiny_data(folder / "data"), folder / "run")
    return folder / "run"


def install(folder: Path, target: str) -> None:
    """What an installed package of models leaves on the path."""
    metadata = folder / "tiny_models-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: tiny-models\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(f"[pushdown_lm.models]\ntiny = {target}\n")
    module = "from pathlib import Path\n\ntiny = Path(__file__).parent / 'model'\n"
    (folder / "tiny_models").mkdir()
    (folder / "tiny_models" / "__init__.py").write_text(module)


def test_packed_model_is_found_by_name_and_scores_alike(
    run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, "tiny_models:tiny")
    folder = pack_model(run, tmp_path / "tiny_models" / "model")
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    assert "tiny" in installed_models()
    assert find_model("tiny") == folder
    assert find_model(folder) == folder
    packed = PushdownScorer.from_pretrained("tiny")
    assert packed.name == load_scorer("tiny").name == "tiny"
    trained = PushdownScorer.from_pretrained(run / "model")
    sentence = "the dog sleeps ."
    assert packed.log_prob(sentence) == pytest.approx(trained.log_prob(sentence), abs=0.05)
    weights = (folder / "model.safetensors").stat().st_size
    assert weights < 0.6 * (run / "model" / "model.safetensors").stat().st_size


def test_names_that_are_not_installed(tmp_path: Path) -> None:
    with pytest.raises(ModelNameError, match="no model of this name is installed"):
        find_model("nowhere")
    with pytest.raises(BoxError, match=r"expected a finished run, found no metrics\.json"):
        pack_model(tmp_path, tmp_path / "out")


def test_scores_of_the_card_come_from_results(tmp_path: Path) -> None:
    results = {
        "options": {"tests": {"trees": {}}},
        "titles": {"english": "Ours"},
        "seeds": {"0": {"english": {"sg": {"accuracy": 0.625}}}},
    }
    (tmp_path / "english").mkdir()
    (tmp_path / "english" / "results.json").write_text(json.dumps(results))
    (tmp_path / "card.md").write_text("# English\n\n$scores\n")
    write_card(tmp_path, tmp_path / "english")
    card = (tmp_path / "README.md").read_text()
    assert card.startswith("# English\n\n| ")
    assert "| SG suites (31), accuracy, % | 62.5 |" in card
