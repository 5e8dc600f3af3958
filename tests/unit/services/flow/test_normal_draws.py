"""Normal numbers depend on key, step and place alone, and are normal."""

from __future__ import annotations

from math import erf

import numpy as np
import pytest

from antiphon_services.flow.normal_draws import normal_draws

KEY = (1 << 127) + 12_345
COUNT = 200_000
RECORDED = (
    *(1.2485756874084473, 0.2279421091079712, 0.9751996994018555),
    *(1.2483482360839844, -0.5577129125595093, -0.24623900651931763),
)


def test_numbers_stay_the_same() -> None:
    """So that no release of a library changes what a seed says."""
    np.testing.assert_allclose(normal_draws(KEY, 7, 6), RECORDED, rtol=0, atol=1e-6)


@pytest.mark.parametrize("count", [0, 1, 2, 7, 256])
def test_more_numbers_begin_with_the_same(count: int) -> None:
    made = normal_draws(KEY, 3, count)
    assert (made.dtype, made.shape) == (np.float32, (count,))
    np.testing.assert_array_equal(made, normal_draws(KEY, 3, 400)[:count])


@pytest.mark.parametrize(("key", "step"), [(KEY, 4), (KEY + 1, 3), (KEY - (1 << 127), 3), (0, 0)])
def test_other_keys_and_steps_share_nothing(key: int, step: int) -> None:
    """Not even in other places; a few float32 values are equal by chance."""
    one, other = normal_draws(KEY, 3, 4096), normal_draws(key, step, 4096)
    assert len(np.intersect1d(one, other)) < 8


def test_numbers_are_standard_normal() -> None:
    """Within five standard errors of mean, variance and covariance of neighbours; the distribution
    by Kolmogorov and Smirnov at 0.001."""
    made = normal_draws(KEY, 0, COUNT).astype(np.float64)
    error = 1 / np.sqrt(COUNT)
    assert abs(made.mean()) < 5 * error
    assert abs(made.var() - 1) < 5 * np.sqrt(2) * error
    assert abs(np.mean(made[::2] * made[1::2])) < 5 * np.sqrt(2) * error
    cumulative = np.array([0.5 * (1 + erf(each / np.sqrt(2))) for each in np.sort(made)])
    assert np.abs(cumulative - np.arange(1, COUNT + 1) / COUNT).max() < 1.95 * error
