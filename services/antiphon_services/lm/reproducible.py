"""Configures the CPU's matrix library so that results don't depend on the batch.

MKL selects a kernel based on the number of rows. On Intel CPUs with AVX-512, products of up to 15
rows are summed in a different order than larger products. MKL has a mode for strict reproducibility
("conditional numerical reproducibility") in which all products use the same order. According to its
documentation, this mode requires an Intel CPU with AVX2 or later. When it is enabled, padding to
`LEAST_ROWS` rows is sufficient. Other CPUs don't support the mode. So far, none of them has needed
it.
"""

from __future__ import annotations

import os
from pathlib import Path

SETTING = "MKL_CBWR"
_CPU_INFO = Path("/proc/cpuinfo")


def ask_for_equal_digits() -> None:
    """Enable this mode of MKL for the process, unless it has already been set. Call this function
    before importing torch.
    """
    if _CPU_INFO.exists() and "GenuineIntel" in _CPU_INFO.read_text():
        os.environ.setdefault(SETTING, "AUTO,STRICT")
