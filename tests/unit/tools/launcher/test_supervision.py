"""How long a service that ended stays down."""

from __future__ import annotations

from antiphon_tools.launcher.supervision import Backoff


def test_pause_doubles_up_to_the_longest_when_a_service_ends_again_and_again() -> None:
    backoff = Backoff(first_s=0.5, longest_s=30.0, steady_s=60.0)
    pauses = [backoff.pause_s(ready_for_s) for ready_for_s in (0, 59.9, 0, 3, 0, 0, 0, 0, 0)]
    assert pauses == [0.5, 1, 2, 4, 8, 16, 30, 30, 30]


def test_pause_is_the_shortest_again_when_the_service_was_steady() -> None:
    backoff = Backoff(first_s=0.5, longest_s=30.0, steady_s=60.0)
    assert [backoff.pause_s(each) for each in (0, 0, 60, 0, 1000)] == [0.5, 1, 0.5, 1, 0.5]
