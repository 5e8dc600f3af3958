from __future__ import annotations

import pytest

from antiphon_testkit.chi_square import chi_square_p


def test_probability_is_that_of_the_tables() -> None:
    assert chi_square_p([60, 40], [50, 50]) == pytest.approx(0.0455, abs=1e-4)
    assert chi_square_p([30, 20, 50], [25, 25, 50]) == pytest.approx(0.3679, abs=1e-4)
    assert chi_square_p([50, 50], [50, 50]) == 1.0


def test_cells_that_expect_little_are_one() -> None:
    joined = chi_square_p([45, 45, 1, 4, 5], [44, 46, 2, 3, 5])
    assert joined == chi_square_p([45, 45, 5, 5], [44, 46, 5, 5])


def test_cells_that_expect_little_together_go_with_the_least_of_the_others() -> None:
    joined = chi_square_p([1, 2, 60, 40], [2, 1, 47, 53])
    assert joined == chi_square_p([63, 40], [50, 53])


def test_what_never_comes_and_has_come_is_impossible() -> None:
    assert chi_square_p([1, 49, 50], [0, 50, 50]) == 0.0
    assert chi_square_p([0, 50, 50], [0, 50, 50]) == 1.0


def test_counts_of_other_sums_are_refused() -> None:
    with pytest.raises(ValueError, match="101 are counted and 100 expected"):
        chi_square_p([51, 50], [50, 50])
