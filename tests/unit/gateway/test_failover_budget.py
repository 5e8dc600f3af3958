from __future__ import annotations

from antiphon_gateway.failover.budget import FailoverBudget


def test_so_many_may_be_continued_at_once_and_as_many_in_a_minute() -> None:
    budget = FailoverBudget(per_minute=60, max_bytes=0)
    assert [budget.spend(100.0) for _ in range(61)] == [True] * 60 + [False]
    assert [budget.spend(102.0) for _ in range(3)] == [True, True, False]
    assert [budget.spend(1e6) for _ in range(61)] == [True] * 60 + [False]


def test_no_more_bytes_are_kept_than_there_is_room_for() -> None:
    budget = FailoverBudget(per_minute=1, max_bytes=10)
    assert budget.keep(6)
    assert not budget.keep(5)
    assert budget.keep(4)
    budget.drop(6)
    assert budget.kept_bytes == 4
    assert budget.keep(6)
