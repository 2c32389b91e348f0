"""What is known of the machine."""

from __future__ import annotations

import os

import pytest
import torch

from pushdown_lm.machine import peak_memory_megabytes, reset_peak_memory

CPU = torch.device("cpu")


def peak_while_holding(megabytes: int) -> float:
    held = torch.ones(megabytes * 2**18)
    assert held.sum() == held.numel()
    peak = peak_memory_megabytes(CPU)
    assert peak is not None
    return peak


@pytest.mark.skipif(
    not os.access("/proc/self/clear_refs", os.W_OK), reason="the system cannot reset the peak"
)
def test_the_peak_of_memory_begins_anew() -> None:
    before = peak_while_holding(100)
    reset_peak_memory(CPU)
    empty, after = peak_while_holding(0), peak_while_holding(50)
    assert empty < before - 90
    assert empty + 40 < after < before - 40
