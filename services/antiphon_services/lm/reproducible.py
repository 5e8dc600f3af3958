"""Configures the CPU's matrix library for digits that are independent of the batch.

MKL selects a kernel by the number of rows. On Intel CPUs with AVX-512, products of up to 15 rows
are summed in another order than larger ones. Its strict reproducibility mode ("conditional
numerical reproducibility", documented for Intel CPUs from AVX2 on) uses one order for all; padding
to `LEAST_ROWS` is then enough. Other CPUs lack this mode and have not needed it.
"""

from __future__ import annotations

import os
from pathlib import Path

SETTING = "MKL_CBWR"
_CPU_INFO = Path("/proc/cpuinfo")


def ask_for_equal_digits() -> None:
    """Set MKL's mode for this process unless it is set. Call it before importing torch."""
    if _CPU_INFO.exists() and "GenuineIntel" in _CPU_INFO.read_text():
        os.environ.setdefault(SETTING, "AUTO,STRICT")
