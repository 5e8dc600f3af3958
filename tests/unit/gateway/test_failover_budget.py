from __future__ import annotations

from antiphon_gateway.failover.budget import FailoverBudget


def test_so_many_may_be_continued_at_once_and_as_many_in_a_minute() -> None:
    budget = FailoverBudget(per_minute=60)
    assert [budget.spend(100.0) for _ in range(61)] == [True] * 60 + [False]
    assert [budget.spend(102.0) for _ in range(3)] == [True, True, False]
    assert [budget.spend(1e6) for _ in range(61)] == [True] * 60 + [False]
