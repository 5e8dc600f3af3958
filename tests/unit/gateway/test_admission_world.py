from __future__ import annotations

import heapq
import itertools
import random

import pytest

from antiphon_gateway.admission.admission import (
    AdmissionQueue,
    AdmissionRequest,
    Decision,
    Granted,
    Urgency,
)

SLOTS = {"thinker": 4, "talker": 2}
TEXT = AdmissionRequest(frozenset({"thinker"}))
AUDIO = AdmissionRequest(frozenset(SLOTS), Urgency.AUDIO)
TURN = AdmissionRequest(frozenset(SLOTS), Urgency.TURN)
LONGEST_WAIT_S = 1e6


@pytest.mark.parametrize("seed", range(5))
def test_nobody_starves_among_random_arrivals_cancels_and_refusals(seed: int) -> None:
    """A world in virtual time, with two thirds more work than slots in the rushes, and another
    gateway that comes and goes on the same stages."""
    rng = random.Random(seed)
    waiting = AdmissionQueue(
        max_calls=6, max_waiting=10_000, max_waiting_bytes=1000, longest_wait_s=LONGEST_WAIT_S
    )
    events: list[tuple[float, int, str, int]] = []
    order = itertools.count()
    others = 0
    arrived: dict[int, float] = {}
    wishes: dict[int, AdmissionRequest] = {}
    running: set[int] = set()
    # Granted, and the stages have not answered yet.
    asking: set[int] = set()
    cancelled: set[int] = set()
    begun: dict[int, float] = {}
    alarms: set[float] = set()

    def push(at: float, what: str, number: int) -> None:
        heapq.heappush(events, (at, next(order), what, number))

    at = 0.0
    for number in range(300):
        at += rng.expovariate(3.0 if number % 100 < 60 else 0.7)
        wishes[number] = rng.choice((TEXT, AUDIO, AUDIO, TURN))
        push(at, "ask", number)
    for _ in range(60):
        push(rng.uniform(0.0, at), "other", rng.choice((0, 1, 2)))
    push(at, "other", 0)

    def carry_out(decisions: list[Decision], now: float) -> None:
        for each in decisions:
            assert isinstance(each, Granted), each
            asking.add(each.number)
            push(now + rng.uniform(0.0, 0.02), "answer", each.number)
        moment = waiting.next_deadline()
        if moment is not None and moment not in alarms:
            alarms.add(moment)
            push(moment, "time", 0)

    steps = 0
    while events:
        steps += 1
        assert steps < 100_000, "it goes on for ever"
        now, _, what, number = heapq.heappop(events)
        done: list[Decision] = []
        if what == "ask":
            arrived[number] = now
            done = waiting.ask(number, wishes[number], SLOTS, now)
            if rng.random() < 0.15:
                push(now + rng.expovariate(1.0), "cancel", number)
        elif what == "cancel" and number not in begun:
            cancelled.add(number)
            asking.discard(number)
            done = waiting.leave(number, now)
        elif what == "answer" and number in asking:
            asking.discard(number)
            talkers = sum("talker" in wishes[each].roles for each in running)
            if "talker" in wishes[number].roles and talkers + others >= SLOTS["talker"]:
                done = waiting.refused(number, "talker", now)
            else:
                running.add(number)
                begun[number] = now
                done = waiting.opened(number, now)
                push(now + rng.expovariate(1.0), "end", number)
        elif what == "end":
            running.discard(number)
            done = waiting.leave(number, now)
        elif what == "other":
            others = number
        elif what == "time" and now >= (waiting.next_deadline() or now + 1):
            done = waiting.pass_time(now)
        carry_out(done, now)

    assert waiting.waiting == waiting.calls == 0
    assert set(begun) | cancelled == set(wishes)
    assert {waiting.held(role) for role in SLOTS} == {0}
    assert at < LONGEST_WAIT_S / 4, "the classes are strict here"
    for request in (TEXT, AUDIO, TURN):
        alike = [n for n in wishes if wishes[n] == request and n in begun]
        passed = sum(begun[m] < begun[n] - 0.1 for n, m in itertools.pairwise(alike))
        assert passed < len(alike) / 10, (
            "those that are alike begin in the order in which they came"
        )
