"""What search keeps of a decoder's work, against what it was given."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from pushdown_lm.search import bracket_cells
from pushdown_lm.search.bracket_cells import CellDecoder
from pushdown_lm.search.cells import CellCache, Store
from pushdown_lm.search.word_beam import WordBeam, word_search
from pushdown_lm.trees.linearization import CLOSE, TOKEN
from tests.models import bracket_model


def test_store_grows_and_keeps() -> None:
    store, given = Store(), torch.arange(24.0).view(12, 2)
    for part in given.split([1, 4, 7]):
        store.append(part)
    index = torch.tensor([[11, 0], [5, 5]])
    assert torch.equal(store.rows(index), given[index])
    store.keep(torch.tensor([7, 2, 9]))
    store.append(given[:1])
    assert torch.equal(store.rows(torch.arange(4)), given[[7, 2, 9, 0]])


def test_entries_branch_without_losing_their_past() -> None:
    """Two entries, the second of which branches; then only what the last one sees is kept."""
    cache = CellCache(1, torch.device("cpu"))
    states = torch.arange(40.0).view(5, 2, 1, 4)  # five cells of two heads

    def read(first: int, last: int) -> torch.Tensor:
        keys, values = cache.update(states[first:last], -states[first:last], 0)
        assert torch.equal(keys, -values)
        return keys.transpose(1, 2)  # (N, L, G, d)

    cells = states[:, :, 0]
    cache.branch(torch.tensor([0, 0]))
    assert torch.equal(read(0, 2), cells[torch.tensor([[0], [1]])])
    cache.branch(torch.tensor([1, 1]))
    assert torch.equal(read(2, 4), cells[torch.tensor([[1, 2], [1, 3]])])
    cache.keep(torch.tensor([1, 3]))
    cache.look_up(torch.tensor([[1, 2, 0]]))  # in any order, the new one in the middle
    assert torch.equal(read(4, 5), cells[torch.tensor([[3, 4, 1]])])


@pytest.mark.parametrize("kind", ["plm", "plm-mask", "tg"])
def test_a_step_in_parts_is_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    model = bracket_model(kind, seed=5)
    sentences, beam = [[2, 3, 4, 2], [4, 4]], WordBeam(30, 10, 5, max_actions=6)
    whole = word_search(model, sentences, beam=beam)
    rows: list[int] = []
    read = model.read

    def counted(symbols: torch.Tensor, *args: Any, **options: Any) -> Any:
        rows.append(len(symbols))
        return read(symbols, *args, **options)

    monkeypatch.setattr(model, "read", counted)
    monkeypatch.setattr(bracket_cells, "ROWS_AT_ONCE", 4)
    for one, other in zip(whole, word_search(model, sentences, beam=beam), strict=True):
        assert one.log_prefixes == pytest.approx(other.log_prefixes)
        assert one.log_joints == pytest.approx(other.log_joints)
        assert one.histories.equal(other.histories)
    assert max(rows) == (8 if kind == "tg" else 4)  # second copies of closers are read with them


@torch.inference_mode()
@pytest.mark.parametrize(("kind", "left"), [("plm", 5), ("tg", 3)])
def test_cells_that_nothing_sees_are_dropped(kind: str, left: int) -> None:
    """BOS, two openers, a token and a closer, which in a TG composes the last three."""
    decoder = CellDecoder(bracket_model(kind, seed=6), torch.tensor([[2, 1]]))
    entries = decoder.start()
    for action in (1, 2, TOKEN, CLOSE):
        entries = decoder.step(entries, torch.tensor([action]))
    before = (entries.opens, entries.closes, entries.reads)
    entries = decoder.drop_cells(entries)
    assert decoder.cache.num_cells == entries.cells.shape[1] == left
    assert entries.place.min() >= 0
    assert all(map(torch.equal, before, (entries.opens, entries.closes, entries.reads)))
