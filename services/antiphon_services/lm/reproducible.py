"""Configures the matrix library of the CPU so that results do not depend on the batch.

MKL selects a kernel by the number of rows. On Intel CPUs with AVX-512, products of up to 15 rows
are summed in a different order than larger products. MKL has a mode for strict reproducibility
("conditional numerical reproducibility"), which is documented for Intel CPUs with AVX2 or later and
uses the same order for all products. In this mode, padding to `LEAST_ROWS` rows is sufficient.
Other CPUs do not have this mode and have not needed it.
"""

from __future__ import annotations

import os
from pathlib import Path

SETTING = "MKL_CBWR"
_CPU_INFO = Path("/proc/cpuinfo")


def ask_for_equal_digits() -> None:
    """Set this mode of MKL for the process, unless it is already set. Call this before torch is
    imported.
    """
    if _CPU_INFO.exists() and "GenuineIntel" in _CPU_INFO.read_text():
        os.environ.setdefault(SETTING, "AUTO,STRICT")
