"""Asks the CPU's matrix library for products whose rows have the same digits in any company.

MKL picks a kernel by the number of rows, and on Intel CPUs with AVX-512 products of up to 15
rows are summed in another order than larger ones. Its strict reproducibility mode ("conditional
numerical reproducibility", documented for Intel CPUs from AVX2 on) uses one order for all; what
is filled up to `LEAST_ROWS` then has company enough. CPUs of other makes have no such mode and
have not needed it.
"""

from __future__ import annotations

import os
from pathlib import Path

SETTING = "MKL_CBWR"
_CPU_INFO = Path("/proc/cpuinfo")


def ask_for_equal_digits() -> None:
    """Set MKL's mode for this process, unless somebody has chosen one; call it before torch
    is imported, for MKL reads it once."""
    if _CPU_INFO.exists() and "GenuineIntel" in _CPU_INFO.read_text():
        os.environ.setdefault(SETTING, "AUTO,STRICT")
