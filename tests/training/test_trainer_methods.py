"""The Trainer's private methods that ours overrides, as Transformers has them.

They are not part of its public interface. Where a new version renames one or changes its
parameters, ours would silently not be called, or be called wrongly: then this test says which.
"""

from __future__ import annotations

import inspect

import pytest
import transformers
from transformers import Trainer

from pushdown_lm.training.trainer import PushdownTrainer

OVERRIDDEN = {
    "_get_num_items_in_batch": "batch_samples, device",
    "_load_best_model": "",
    "_load_optimizer_and_scheduler": "checkpoint",
    "_load_rng_state": "checkpoint",
    "_maybe_log_save_evaluate": "tr_loss, grad_norm, model, trial, epoch, ignore_keys_for_eval, "
    "start_time, learning_rate",
    "_save": "output_dir, state_dict",
    "_save_checkpoint": "model, trial",
    "_save_optimizer_and_scheduler": "output_dir",
    "_save_rng_state": "output_dir",
}
"""Each with the names of its parameters after `self`."""
CALLERS = {
    "_get_num_items_in_batch": "get_batch_samples",
    "_load_best_model": "_finalize_training",
    "_load_optimizer_and_scheduler": "_prepare_for_training",
    "_load_rng_state": "_run_epoch",
    "_maybe_log_save_evaluate": "_run_epoch",
    "_save": "save_model",
    "_save_checkpoint": "_maybe_log_save_evaluate",
}
"""Where Transformers calls them. The others are called by our `_save_checkpoint`."""


@pytest.mark.parametrize("name", OVERRIDDEN)
def test_transformers_still_has_it(name: str) -> None:
    theirs = getattr(Trainer, name, None)
    assert theirs is not None, (
        f"transformers {transformers.__version__} has no Trainer.{name}, which "
        f"training/trainer.py overrides: look for what replaced it"
    )
    found = ", ".join(list(inspect.signature(theirs).parameters)[1:])
    assert found == OVERRIDDEN[name], (
        f"transformers {transformers.__version__}: Trainer.{name} now takes ({found}); "
        f"compare with training/trainer.py"
    )


@pytest.mark.parametrize(("name", "caller"), CALLERS.items())
def test_transformers_still_calls_it(name: str, caller: str) -> None:
    source = inspect.getsource(getattr(Trainer, caller))
    assert f"self.{name}(" in source, (
        f"transformers {transformers.__version__}: Trainer.{caller} no longer calls {name}, which "
        f"training/trainer.py overrides"
    )


def test_the_list_is_complete() -> None:
    private = {
        name
        for name, member in vars(PushdownTrainer).items()
        if name.startswith("_") and not name.startswith("__") and callable(member)
    }
    assert {name for name in private if hasattr(Trainer, name)} == OVERRIDDEN.keys()
