"""More comes than there are slots for: the queue alone, in simulated time."""

from __future__ import annotations

import heapq
import itertools
import math
import random
from collections.abc import Iterable

import pytest

from antiphon_gateway.admission.admission import AdmissionQueue, Decision, Granted
from antiphon_gateway.admission.admission_request import AdmissionRequest

SLOTS = {"talker": 6}
WISH = AdmissionRequest(frozenset(SLOTS))
HOLD_S = 0.86
LONGEST_WAIT_S = 0.5
SECONDS, WARM_UP_S = 140.0, 20.0


class Overload:
    """Requests come at random, so many times as many as can be answered."""

    def __init__(self, load: float, spread: float) -> None:
        self._chance = random.Random(7)
        self._rate_hz = load * SLOTS["talker"] / HOLD_S
        self._spread = spread
        self._queue = AdmissionQueue(
            max_calls=100,
            max_waiting=100,
            max_waiting_bytes=1,
            longest_wait_s=LONGEST_WAIT_S,
        )
        # What is to come: when, and the number of the request; whether it comes or is over.
        self._coming: list[tuple[float, int, bool]] = []
        self._asked_at: dict[int, float] = {}
        self.refused_after_s: list[float] = []
        self.held_s = 0.0

    def run(self) -> None:
        numbers = itertools.count()
        now, is_over, number = 0.0, False, next(numbers)
        self._asked_at[number] = now
        while now < SECONDS:
            if is_over:
                self._take(self._queue.leave(number, now), now)
            else:
                following = next(numbers)
                self._asked_at[following] = now + self._chance.expovariate(self._rate_hz)
                heapq.heappush(self._coming, (self._asked_at[following], following, False))
                self._take(self._queue.ask(number, WISH, SLOTS, now), now)
            while (late := self._queue.next_deadline() or math.inf) < self._coming[0][0]:
                self._take(self._queue.pass_time(late), late)
            now, number, is_over = heapq.heappop(self._coming)

    def _take(self, decisions: Iterable[Decision], now: float) -> None:
        for each in decisions:
            counts = now >= WARM_UP_S
            if isinstance(each, Granted):
                self._queue.opened(each.number, now)
                hold_s = HOLD_S * self._chance.uniform(1 - self._spread, 1 + self._spread)
                heapq.heappush(self._coming, (now + hold_s, each.number, True))
                self.held_s += hold_s * counts
            elif counts:
                self.refused_after_s.append(now - self._asked_at[each.number])


@pytest.mark.parametrize("spread", [0.1, 0.7], ids=["alike", "various"])
@pytest.mark.parametrize(("load", "used"), [(1.6, 0.9), (3.0, 0.95)])
def test_whoever_is_refused_is_so_at_once_and_slots_stay_in_use(
    load: float, used: float, spread: float
) -> None:
    overload = Overload(load, spread)
    overload.run()
    after_s = sorted(overload.refused_after_s)
    assert len(after_s) > 300
    assert after_s[int(0.99 * len(after_s))] < 0.1
    assert overload.held_s / (SLOTS["talker"] * (SECONDS - WARM_UP_S)) > used
