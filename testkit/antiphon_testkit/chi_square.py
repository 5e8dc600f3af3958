"""Pearson's chi-square test, which determines whether counts follow a distribution."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

LEAST_EXPECTED = 5.0
"""Cells with a lower expected count are combined."""


def chi_square_p(counts: npt.ArrayLike, expected: npt.ArrayLike) -> float:
    """Return the probability of counts that differ from the expected counts by at least as much as
    these do.

    Both arguments have one number per cell and the same sum. Cells whose expected count is below
    `LEAST_EXPECTED` are combined into one. The result is 0 if a cell with an expected count of zero
    has a count.
    """
    seen = np.asarray(counts, np.float64).reshape(-1)
    awaited = np.asarray(expected, np.float64).reshape(-1)
    if not np.isclose(seen.sum(), awaited.sum(), rtol=1e-6):
        raise ValueError(f"{seen.sum():g} are counted and {awaited.sum():g} expected")
    if seen[awaited == 0.0].any():
        return 0.0
    rare = awaited < LEAST_EXPECTED
    seen = np.append(seen[~rare], seen[rare].sum())
    awaited = np.append(awaited[~rare], awaited[rare].sum())
    if awaited[-1] < LEAST_EXPECTED:
        # Even combined, they are too few, so add them to the smallest of the other cells.
        least = int(awaited[:-1].argmin())
        seen[least] += seen[-1]
        awaited[least] += awaited[-1]
        seen, awaited = seen[:-1], awaited[:-1]
    statistic = float(((seen - awaited) ** 2 / awaited).sum())
    freedom = torch.tensor((len(awaited) - 1) / 2, dtype=torch.float64)
    half = torch.tensor(statistic / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, half))
