"""The machine that a run was made on: memory and versions."""

from __future__ import annotations

import os
import platform
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import torch

PACKAGES = (
    "pushdown-lm",
    "torch",
    "transformers",
    "accelerate",
    "tokenizers",
    "datasets",
    "numpy",
)


def software() -> dict[str, str]:
    """Versions of Python and of the packages that results depend on, if they are installed."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):
            found[package] = version(package)
    return found


def versions() -> dict[str, Any]:
    """Software and machine, for the record of a run."""
    return {**software(), "platform": platform.platform(), "cores": os.cpu_count()}


def multiplies_bf16(device_type: str) -> bool:
    """Whether the device has instructions for bfloat16: accelerators do, some CPUs do.

    A CPU without them emulates bfloat16, many times slower than float32.
    """
    if device_type != "cpu":
        return True
    import torch

    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "bf16"))


def reset_peak_memory(device: torch.device) -> None:
    """Let the peak begin at the memory held now, as Linux and accelerators can."""
    if device.type != "cpu":
        import torch

        torch.accelerator.reset_peak_memory_stats(device)
        return
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_memory_megabytes(device: torch.device) -> float | None:
    """The most memory held since :func:`reset_peak_memory`: of the accelerator, or of the process
    if there is none.

    None where the operating system does not tell (Windows).
    """
    if device.type != "cpu":
        import torch

        return float(torch.accelerator.max_memory_allocated(device)) / 2**20
    try:
        import resource
    except ImportError:
        return None
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak / (2**20 if sys.platform == "darwin" else 2**10)
