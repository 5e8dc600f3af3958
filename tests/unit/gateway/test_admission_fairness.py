"""Who waits for whom: keys take turns, and priorities do not."""

from __future__ import annotations

import heapq
import itertools
from collections import Counter
from dataclasses import replace

import pytest

from antiphon_gateway.admission.admission import AdmissionQueue, Decision, Denied, Granted, Reason
from antiphon_gateway.admission.admission_request import AdmissionRequest, Urgency
from antiphon_gateway.admission.priority import Priority

SLOTS = {"thinker": 4, "talker": 2}
FEW = dict.fromkeys(SLOTS, 1)
TEXT = AdmissionRequest(frozenset({"thinker"}))
AUDIO = AdmissionRequest(frozenset(SLOTS), Urgency.AUDIO)


def queue(**bounds: float) -> AdmissionQueue:
    given = {"max_calls": 1, "max_waiting": 64, "max_waiting_bytes": 1000, "longest_wait_s": 40.0}
    return AdmissionQueue(**(given | bounds))  # type: ignore[arg-type]


def of(
    key: str, request: AdmissionRequest = TEXT, priority: Priority = Priority.NORMAL
) -> AdmissionRequest:
    return replace(request, key=key, priority=priority)


def granted(decisions: list[Decision]) -> list[int]:
    return [each.number for each in decisions if isinstance(each, Granted)]


def denied(decisions: list[Decision]) -> dict[int, Reason]:
    return {each.number: each.reason for each in decisions if isinstance(each, Denied)}


class Line:
    """One slot, taken by the first who asks; the others wait, and begin one after the other."""

    def __init__(self, **bounds: float) -> None:
        self.queue = queue(**bounds)
        self.now = 0.0
        self.names: dict[int, str] = {}
        self.running = self.ask("first", of("nobody"))
        self.queue.opened(self.running, self.now)

    def ask(self, name: str, request: AdmissionRequest) -> int:
        number = len(self.names)
        self.names[number] = name
        self.now += 0.001
        assert not denied(self.queue.ask(number, request, SLOTS, self.now))
        return number

    def refused(self, request: AdmissionRequest, name: str = "newcomer") -> dict[str, Reason]:
        """Who is refused when that comes."""
        number = len(self.names)
        self.names[number] = name
        self.now += 0.001
        told = denied(self.queue.ask(number, request, SLOTS, self.now))
        return {self.names[each]: reason for each, reason in told.items()}

    def next(self) -> str:
        """Who begins when the one that runs ends, after a second."""
        self.now += 1.0
        (self.running,) = granted(self.queue.leave(self.running, self.now))
        self.queue.opened(self.running, self.now)
        return self.names[self.running]

    def rest(self) -> str:
        """All who wait, as they begin."""
        return "".join(self.next() for _ in range(self.queue.waiting))


def test_a_key_that_floods_the_queue_makes_another_wait_for_one_turn() -> None:
    line = Line(longest_wait_s=100.0)
    for _ in range(20):
        line.ask("a", of("flood"))
    assert line.next() == line.next() == "a"
    line.ask("b", of("other"))
    line.ask("b", of("other"))
    assert line.rest() == "bab" + 17 * "a"


def test_calls_that_become_shorter_do_not_make_a_turn_into_many() -> None:
    line = Line(longest_wait_s=1e6)
    line.now = 30.0
    for _ in range(6):
        line.ask("a", of("flood"))
    line.ask("b", of("other"))
    assert line.rest() == "abaaaaa"


def test_keys_take_turns_and_a_late_one_gets_nothing_for_what_it_missed() -> None:
    line = Line()
    for _ in range(6):
        line.ask("a", of("one"))
        line.ask("b", of("two"))
    assert [line.next() for _ in range(6)] == list("ababab")
    for _ in range(4):
        line.ask("c", of("three"))
    assert line.rest() == "cabcabcabc"


def test_those_without_a_key_are_one() -> None:
    line = Line()
    for _ in range(8):
        line.ask("a", TEXT)
    line.ask("k", of("key"))
    assert "k" in line.rest()[:2]


def test_choices_count_as_so_many_turns() -> None:
    waiting = queue(max_calls=3)
    three = replace(of("one"), count=3)
    for number, request in enumerate((three, three, three, *(of("two"),) * 4)):
        waiting.ask(number, request, {"thinker": 16}, 0.001 * number)
    assert granted(waiting.opened(0, 0.1) + waiting.leave(0, 1.0)) == [1]
    waiting.opened(1, 1.0)
    assert granted(waiting.leave(1, 2.0)) == [3, 4, 5]


def test_urgency_counts_within_a_round() -> None:
    line = Line()
    line.ask("t", of("one"))
    line.ask("t", of("one"))
    line.ask("A", of("two", AUDIO))
    line.ask("T", of("three", replace(AUDIO, urgency=Urgency.TURN)))
    assert line.rest() == "TAtt"


@pytest.mark.parametrize("long_s", [1.0, 8.0])
def test_keys_get_about_equal_time_however_long_their_calls_take(long_s: float) -> None:
    """Two keys that always have more to do, in virtual time."""
    waiting = queue(max_calls=4, longest_wait_s=1e9)
    took_s = {"long": long_s, "short": 1.0}
    ends: list[tuple[float, int, str]] = []
    numbers, had_s, keys = itertools.count(), Counter[str](), dict[int, str]()

    def begin(decisions: list[Decision], now: float) -> None:
        for number in granted(decisions):
            begin(waiting.opened(number, now), now)
            heapq.heappush(ends, (now + took_s[keys[number]], number, keys[number]))

    def ask(key: str, now: float) -> None:
        number = next(numbers)
        keys[number] = key
        begin(waiting.ask(number, of(key), {"thinker": 16}, now), now)

    for _ in range(8):
        for key in took_s:
            ask(key, 0.0)
    now = 0.0
    while now < 400.0:
        now, number, key = heapq.heappop(ends)
        had_s[key] += took_s[key]
        begin(waiting.leave(number, now), now)
        ask(key, now)
    assert 0.75 < had_s["long"] / had_s["short"] < 1.33, "8 times as long, by turns alone"


def test_a_higher_priority_goes_first_and_does_not_take_turns() -> None:
    line = Line()
    line.ask("l", of("one", AUDIO, Priority.LOW))
    line.ask("n", of("two"))
    for _ in range(3):
        line.ask("h", of("three", TEXT, Priority.HIGH))
    line.ask("n", of("three"))
    assert line.rest() == "hhhnnl"


def test_a_higher_priority_has_what_it_needs_kept_for_it() -> None:
    waiting = queue(max_calls=64)
    for number in (1, 2):
        waiting.ask(number, of("low", AUDIO, Priority.LOW), SLOTS, 0.0)
    assert waiting.ask(3, of("high", AUDIO, Priority.HIGH), SLOTS, 0.0) == []
    assert waiting.ask(4, of("high", AUDIO, Priority.HIGH), SLOTS, 0.0) == []
    # Of four thinkers two are held, and two are kept.
    assert waiting.ask(5, of("low", TEXT, Priority.LOW), SLOTS, 0.0) == []
    assert granted(waiting.leave(1, 1.0)) == [3, 5], "one is left"
    assert granted(waiting.leave(2, 1.0)) == [4]


def test_a_full_queue_sheds_the_lowest_priority_and_of_that_the_key_with_most() -> None:
    line = Line(max_waiting=4)
    for name in ("l1", "l2", "l3"):
        line.ask(name, of("crowd", TEXT, Priority.LOW))
    line.ask("other", of("other", TEXT, Priority.LOW))
    assert line.refused(of("crowd", TEXT, Priority.LOW)) == {"newcomer": Reason.QUEUE_LENGTH}
    assert line.refused(of("third", TEXT, Priority.LOW), "third") == {"l3": Reason.SHED}
    assert line.refused(of("crowd")) == {"l2": Reason.SHED}
    assert line.refused(of("crowd", TEXT, Priority.HIGH)) == {"third": Reason.SHED}
    assert line.queue.waiting == 4


def test_equal_shares_of_a_full_queue_are_left_alone() -> None:
    line = Line(max_waiting=4)
    for name in ("a", "b"):
        for number in (1, 2):
            line.ask(f"{name}{number}", of(name))
    for name in ("a", "b"):
        assert line.refused(of(name)) == {"newcomer": Reason.QUEUE_LENGTH}
        assert line.refused(of(name, TEXT, Priority.LOW)) == {"newcomer": Reason.QUEUE_LENGTH}
    assert set(line.refused(of("c"))) == {"b2"}
    assert set(line.refused(of("c"))) == {"newcomer"}, "its second turn is no earlier than a2's"
    assert set(line.refused(of("d"))) == {"a2"}


def test_a_head_start_takes_no_place_in_a_full_queue() -> None:
    line = Line(max_waiting=1)
    line.ask("text", of("one"))
    for key in ("one", "two"):
        assert line.refused(of(key, AUDIO)) == {"newcomer": Reason.QUEUE_LENGTH}


def test_bytes_are_shared_alike_and_nobody_goes_for_one_who_must_go_anyway() -> None:
    large = replace(TEXT, size_bytes=400)
    line = Line()
    for name in ("a1", "a2"):
        line.ask(name, of("a", large))
    assert line.refused(of("a", large)) == {"newcomer": Reason.QUEUE_BYTES}
    assert line.refused(replace(of("b", large), size_bytes=900)) == {
        "newcomer": Reason.QUEUE_BYTES
    }, "a1 has as early a turn, so a2 would go in vain"
    assert line.refused(of("b", large)) == {"a2": Reason.SHED}
    assert line.queue.waiting_bytes == 800


def measured() -> AdmissionQueue:
    """One call, which is taken by 1, and is known to be held for 10 s. So the second who waits does
    for 20 s, or with two standard deviations for 48, and the third for 30 or 65."""
    waiting = queue(longest_wait_s=56.0)
    waiting.ask(0, of("first"), SLOTS, -10.0)
    waiting.opened(0, -10.0)
    waiting.leave(0, 0.0)
    waiting.ask(1, of("first"), SLOTS, 0.0)
    return waiting


def test_who_is_passed_and_cannot_begin_in_time_any_more_is_refused_at_once() -> None:
    waiting = measured()
    for number in (2, 3):
        assert waiting.ask(number, of("low", TEXT, Priority.LOW), SLOTS, 0.0) == []
    (shed,) = waiting.ask(4, of("high", TEXT, Priority.HIGH), SLOTS, 0.0)
    assert isinstance(shed, Denied)
    assert (shed.number, shed.reason) == (3, Reason.LATE)
    assert shed.retry_after_s == pytest.approx(30.0), "behind 1, 4 and 2"
    assert waiting.retry_after_s(of("high", TEXT, Priority.HIGH), 0.0) == pytest.approx(20.0)
    assert waiting.retry_after_s(of("new", TEXT, Priority.NORMAL), 0.0) == pytest.approx(20.0)


def test_a_key_that_shares_waits_for_its_turn_alone_by_the_estimate_too() -> None:
    waiting = measured()
    for number in (2, 3):
        assert waiting.ask(number, of("flood"), SLOTS, 0.0) == []
    assert denied(waiting.ask(4, of("flood"), SLOTS, 0.0)) == {4: Reason.LATE}
    assert denied(waiting.ask(5, of("other"), SLOTS, 0.0)) == {3: Reason.LATE}


def test_who_is_refused_by_a_stage_has_not_had_its_turn() -> None:
    waiting = queue()
    for number, key in enumerate(("one", "one", "two")):
        waiting.ask(number, of(key), SLOTS, 0.1 * number)
    waiting.opened(0, 0.3)
    assert granted(waiting.leave(0, 1.0)) == [1]
    assert waiting.refused(1, "thinker", 1.1) == []
    moment = waiting.next_deadline()
    assert moment is not None
    assert granted(waiting.pass_time(moment)) == [1]
    waiting.opened(1, moment)
    assert granted(waiting.leave(1, moment + 1)) == [2]
