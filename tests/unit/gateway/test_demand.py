from __future__ import annotations

import itertools

import pytest

from antiphon_gateway.admission.refused_slots import BUCKETS, RefusedSlots
from antiphon_gateway.scaler.demand import RoleWants, demand_of, target_of
from tests.allocated import bytes_held_after

# A bucket's number and the count of one role; measured: 450.
BUCKET_BYTES = 1000


def test_demand_is_what_is_in_use_waited_for_and_was_refused() -> None:
    gateways = [
        {"talker": RoleWants(2, 0.5), "thinker": RoleWants(9, 9.0)},
        {},
        {"talker": RoleWants(1)},
    ]
    assert demand_of("talker", 4, gateways) == 7.5
    assert demand_of("code2wav", 0, gateways) == 0


def test_demand_does_not_depend_on_the_order_of_the_gateways() -> None:
    refused = (0.1, 0.2, 0.3, 1e9, 1 / 3)
    gateways = [{"talker": RoleWants(refused=each)} for each in refused]
    told = {demand_of("talker", 1, order) for order in itertools.permutations(gateways)}
    assert len(told) == 1


@pytest.mark.parametrize(
    ("share", "slots", "target"),
    [(0.7, (), 11.2), (0.7, (8,), 5.6), (0.5, (8, 16), 6.0), (1.0, (1, 2, 2), 1.667)],
)
def test_target_is_a_share_of_the_slots_of_a_replica(
    share: float, slots: tuple[int, ...], target: float
) -> None:
    assert target_of(share, slots, configured=16) == target


def test_refused_requests_count_as_the_slots_that_they_would_hold_on_average() -> None:
    refused = RefusedSlots(30.0, {"thinker": 6.0, "talker": 60.0}.get)
    for second in range(30):
        refused.add(("thinker", "talker", "code2wav"), 2, 1000.0 + second)
    # 2 a second: held for 6 s each, for longer than the window, and for nobody knows how long.
    told = refused.by_role(1030.0)
    assert told == pytest.approx({"thinker": 12.0, "talker": 60.0, "code2wav": 60.0})


def test_refused_requests_count_for_the_window_and_no_longer() -> None:
    refused = RefusedSlots(30.0, lambda _: None)
    assert refused.next_expiry() is None
    refused.add(("talker",), 1, 100.5)
    refused.add(("talker",), 3, 110.5)
    assert refused.next_expiry() == 131.0
    assert refused.by_role(130.9) == {"talker": 4.0}
    assert refused.by_role(131.0) == {"talker": 3.0}
    assert refused.next_expiry() == 141.0
    assert refused.by_role(141.0) == {}
    assert refused.next_expiry() is None


def test_refused_requests_take_no_more_memory_the_more_they_are() -> None:
    refused = RefusedSlots(3.0, lambda _: None)

    def refuse(first: int, stop: int) -> None:
        for number in range(first, stop):
            refused.add(("talker",), 1, number / 1000)

    refuse(0, 3000)
    # The window was full, and what comes later takes the place of what has left it.
    assert bytes_held_after(lambda: refuse(3000, 10_000)) < BUCKETS * BUCKET_BYTES
    assert refused.by_role(9.999)["talker"] == pytest.approx(3000, rel=0.05)
