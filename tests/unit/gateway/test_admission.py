from __future__ import annotations

import itertools
import random
from collections import Counter

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from antiphon_gateway.admission.admission import (
    AdmissionQueue,
    AdmissionRequest,
    Decision,
    Denied,
    Granted,
    Reason,
    Urgency,
)
from antiphon_gateway.admission.priority import Priority
from antiphon_gateway.admission.role_slots import FIRST_PAUSE_S, LONGEST_PAUSE_S

SLOTS = {"thinker": 4, "talker": 2}
TEXT = AdmissionRequest(frozenset({"thinker"}))
AUDIO = AdmissionRequest(frozenset(SLOTS), Urgency.AUDIO)
TURN = AdmissionRequest(frozenset(SLOTS), Urgency.TURN)


def queue(**bounds: float) -> AdmissionQueue:
    given = {"max_calls": 64, "max_waiting": 64, "max_waiting_bytes": 1000, "longest_wait_s": 40.0}
    return AdmissionQueue(**(given | bounds))  # type: ignore[arg-type]


def granted(decisions: list[Decision]) -> list[int]:
    return [each.number for each in decisions if isinstance(each, Granted)]


def reasons(decisions: list[Decision]) -> list[Reason]:
    return [each.reason for each in decisions if isinstance(each, Denied)]


def want_slots(decisions: list[Decision]) -> dict[int, bool]:
    """Of those that are denied, whether more slots would have helped."""
    return {each.number: each.for_slots for each in decisions if isinstance(each, Denied)}


def full_queue(**bounds: float) -> AdmissionQueue:
    """All talkers are taken by 1 and 2, since 0.0."""
    waiting = queue(**bounds)
    for number in (1, 2):
        assert granted(waiting.ask(number, AUDIO, SLOTS, 0.0)) == [number]
    return waiting


def test_a_slot_that_is_free_is_given_at_once_and_one_that_is_freed_too() -> None:
    waiting = full_queue()
    assert waiting.ask(3, AUDIO, SLOTS, 0.0) == []
    assert waiting.waiting == 1
    assert granted(waiting.leave(1, 1.0)) == [3]


def test_turns_go_before_audio_and_audio_before_text() -> None:
    waiting = queue()
    slots = dict.fromkeys(SLOTS, 1)
    waiting.ask(0, AUDIO, slots, 0.0)
    for number, request in enumerate((TEXT, AUDIO, TURN, TEXT, AUDIO, TURN), start=1):
        assert waiting.ask(number, request, slots, 0.1 * number) == []
    order, running = [], 0
    while waiting.waiting:
        (running,) = granted(waiting.leave(running, 1.0))
        order.append(running)
    assert order == [3, 6, 2, 5, 1, 4]


def test_text_is_not_passed_by_audio_that_comes_much_later() -> None:
    waiting = queue(max_calls=2)
    for number in (0, 1, 2):
        waiting.ask(number, TEXT, SLOTS, 0.0)
    waiting.ask(3, AUDIO, SLOTS, 9.9)
    waiting.ask(4, AUDIO, SLOTS, 10.1)
    order, running = [], [0, 1]
    while waiting.waiting:
        running += granted(waiting.leave(running.pop(0), 11.0))
        order.append(running[-1])
    assert order == [3, 2, 4]


def test_text_passes_audio_that_waits_for_a_talker_and_takes_no_thinker_that_it_needs() -> None:
    waiting = full_queue()
    waiting.ask(3, AUDIO, SLOTS, 0.0)
    # Of four thinkers two are held and one is kept for 3.
    assert granted(waiting.ask(4, TEXT, SLOTS, 0.0)) == [4]
    assert waiting.ask(5, TEXT, SLOTS, 0.0) == []
    assert granted(waiting.leave(1, 1.0)) == [3, 5]


def test_a_stage_that_is_done_with_its_part_gives_the_slot_to_others() -> None:
    waiting = full_queue()
    waiting.ask(3, TEXT, SLOTS, 0.0)
    waiting.ask(4, TEXT, SLOTS, 0.0)
    assert waiting.ask(5, TEXT, SLOTS, 0.0) == []
    assert granted(waiting.freed(1, "thinker", 1.0)) == [5]
    assert waiting.freed(1, "thinker", 1.0) == []
    assert waiting.leave(1, 2.0) == []
    assert (waiting.held("thinker"), waiting.held("talker")) == (4, 1)


def test_several_choices_begin_together_or_not_at_all() -> None:
    waiting = queue(max_calls=4)
    three = AdmissionRequest(frozenset({"thinker"}), count=3)
    assert granted(waiting.ask(1, three, SLOTS, 0.0)) == [1]
    assert waiting.ask(2, three, SLOTS, 0.0) == []
    assert waiting.ask(3, TEXT, SLOTS, 0.0) == [], "what 2 needs is kept for it"
    assert granted(waiting.leave(1, 1.0)) == [2, 3]
    assert reasons(waiting.ask(4, AdmissionRequest(frozenset(), count=5), SLOTS, 1.0)) == [
        Reason.TOO_MANY
    ]


def test_slots_are_wanted_by_those_alone_who_would_begin_if_there_were_more() -> None:
    plenty = dict.fromkeys(SLOTS, 16)
    one_call = queue(max_calls=1, max_waiting=1, longest_wait_s=1.0)
    one_call.ask(1, AUDIO, plenty, 0.0)
    one_call.ask(2, AUDIO, plenty, 0.0)
    assert one_call.waiting == 1
    assert not one_call.wanted()
    assert want_slots(one_call.ask(3, AUDIO, plenty, 0.0)) == {3: False}
    assert want_slots(one_call.pass_time(1.0)) == {2: False}
    two_talkers = full_queue(max_waiting=2, longest_wait_s=1.0)
    two_talkers.ask(3, AUDIO, SLOTS, 0.0)
    two_talkers.ask(4, TURN, SLOTS, 0.0)
    assert two_talkers.wanted() == {"thinker": 2, "talker": 2}
    assert want_slots(two_talkers.ask(5, AUDIO, SLOTS, 0.0)) == {5: True}
    assert want_slots(two_talkers.pass_time(1.0)) == {3: True, 4: True}


def test_slots_are_wanted_by_who_asks_for_more_than_there_are_unless_calls_are_too_few() -> None:
    waiting = queue(max_calls=8)
    for number, (count, wanted) in enumerate(((5, True), (8, True), (9, False))):
        many = AdmissionRequest(frozenset(SLOTS), count=count)
        assert want_slots(waiting.ask(number, many, SLOTS, 0.0)) == {number: wanted}


def test_slots_are_wanted_by_who_is_refused_by_a_stage() -> None:
    waiting = queue(max_waiting=0)
    waiting.ask(1, AUDIO, SLOTS, 0.0)
    assert want_slots(waiting.refused(1, "talker", 0.1)) == {1: True}


def test_who_is_refused_by_a_stage_keeps_its_place() -> None:
    waiting = queue()
    waiting.ask(1, AUDIO, SLOTS, 0.0)
    waiting.ask(2, AUDIO, SLOTS, 0.0)
    waiting.ask(3, AUDIO, SLOTS, 0.0)
    assert waiting.refused(1, "talker", 0.01) == []
    assert waiting.waiting == 2
    # What is given back here goes on at once.
    assert granted(waiting.leave(2, 0.02)) == [1]


def test_refusal_by_nobody_known_makes_a_pause_too() -> None:
    waiting = queue()
    waiting.ask(1, AUDIO, SLOTS, 0.0)
    assert waiting.refused(1, "", 0.0) == []
    assert waiting.next_deadline() == pytest.approx(FIRST_PAUSE_S)
    assert granted(waiting.pass_time(FIRST_PAUSE_S)) == [1]


def test_slots_of_others_are_tried_for_after_pauses_that_grow_and_end() -> None:
    waiting = queue()
    waiting.ask(1, AUDIO, SLOTS, 0.0)
    now, pauses = 0.0, []
    for _ in range(9):
        assert waiting.refused(1, "talker", now) == []
        moment = waiting.next_deadline()
        assert moment is not None
        pauses.append(moment - now)
        assert waiting.pass_time(moment - 0.001) == []
        assert granted(waiting.pass_time(moment)) == [1]
        now = moment
    assert pauses[0] == pytest.approx(FIRST_PAUSE_S)
    assert pauses == sorted(pauses)
    assert pauses[-2:] == pytest.approx([LONGEST_PAUSE_S] * 2)
    assert waiting.ask(2, AUDIO, SLOTS, now) == [], "one tries at a time"
    assert granted(waiting.opened(1, now)) == [2], "who succeeds lets another try"


def test_text_goes_on_while_a_stage_that_it_does_not_need_is_full_of_others() -> None:
    waiting = queue()
    waiting.ask(1, AUDIO, SLOTS, 0.0)
    waiting.refused(1, "talker", 0.0)
    for number in range(2, 10):
        waiting.ask(number, AUDIO, SLOTS, 0.0)
    assert granted(waiting.ask(10, TEXT, SLOTS, 0.0)) == [10]


def test_without_a_queue_a_refusal_is_final() -> None:
    waiting = queue(max_waiting=0)
    waiting.ask(1, AUDIO, SLOTS, 0.0)
    assert reasons(waiting.refused(1, "talker", 0.0)) == [Reason.STAGE_FULL]
    assert granted(waiting.ask(2, AUDIO, SLOTS, 0.0)) == [2], "the stage decides"
    waiting = full_queue(max_waiting=0)
    assert reasons(waiting.ask(3, AUDIO, SLOTS, 0.0)) == [Reason.QUEUE_LENGTH]
    assert waiting.calls == 2


def test_queue_is_bounded_in_length_bytes_and_time() -> None:
    waiting = full_queue(max_waiting=1)
    assert waiting.ask(3, AUDIO, SLOTS, 0.0) == []
    assert reasons(waiting.ask(4, AUDIO, SLOTS, 0.0)) == [Reason.QUEUE_LENGTH]
    assert waiting.next_deadline() == 40.0
    assert reasons(waiting.pass_time(40.0)) == [Reason.TIME]
    large = AdmissionRequest(AUDIO.roles, Urgency.AUDIO, size_bytes=600)
    waiting.leave(1, 41.0)
    assert granted(waiting.ask(8, AUDIO, SLOTS, 41.0)) == [8]
    assert waiting.ask(5, large, SLOTS, 41.0) == []
    waiting = full_queue()
    waiting.ask(6, large, SLOTS, 0.0)
    assert reasons(waiting.ask(7, large, SLOTS, 0.0)) == [Reason.QUEUE_BYTES]
    assert waiting.waiting_bytes == 600
    waiting.leave(6, 1.0)
    assert waiting.waiting_bytes == 0


def measured_queue(service_s: float) -> tuple[AdmissionQueue, float]:
    """Both talkers are taken, and are known to be held so long; and the moment."""
    waiting = full_queue(longest_wait_s=100.0)
    for number in (1, 2):
        waiting.opened(number, 0.0)
        waiting.leave(number, service_s)
    for number in (3, 4):
        waiting.ask(number, AUDIO, SLOTS, service_s)
    return waiting, service_s


def test_retry_after_is_the_time_that_the_slots_take_for_those_before() -> None:
    waiting, now = measured_queue(10.0)
    # Two talkers, 10 s each: one is free every 5 s.
    assert waiting.retry_after_s(AUDIO, now) == pytest.approx(5.0)
    for number in (5, 6, 7):
        assert waiting.ask(number, AUDIO, SLOTS, now) == []
    assert waiting.retry_after_s(AUDIO, now) == pytest.approx(20.0)
    assert waiting.retry_after_s(TEXT, now) == pytest.approx(5.0), "4 thinkers, 6 are wanted"


def test_work_that_cannot_begin_in_time_is_refused_at_once() -> None:
    """5 s until one of two slots is free; with two standard deviations 15."""
    waiting, now = measured_queue(10.0)
    soon = AdmissionRequest(AUDIO.roles, Urgency.AUDIO, start_within_s=14.0)
    (denied,) = waiting.ask(5, soon, SLOTS, now)
    assert isinstance(denied, Denied)
    assert denied.reason is Reason.LATE
    assert denied.retry_after_s == pytest.approx(5.0)
    done_in = AdmissionRequest(AUDIO.roles, Urgency.AUDIO, finish_within_s=24.0)
    assert reasons(waiting.ask(6, done_in, SLOTS, now)) == [Reason.LATE]
    assert waiting.ask(7, AdmissionRequest(AUDIO.roles, start_within_s=16.0), SLOTS, now) == []
    assert (
        waiting.ask(
            8, AdmissionRequest(AUDIO.roles, Urgency.AUDIO, finish_within_s=26.0), SLOTS, now
        )
        == []
    )


def test_longest_wait_counts_before_anything_is_measured_by_how_long_slots_are_held() -> None:
    waiting = full_queue()
    assert waiting.ask(3, AUDIO, SLOTS, 20.0) == []
    late = "20 s for two, and by two standard deviations 48"
    assert reasons(waiting.ask(4, AUDIO, SLOTS, 20.0)) == [Reason.LATE], late


def test_all_who_wait_are_denied_at_the_end() -> None:
    waiting = full_queue()
    waiting.ask(3, AUDIO, SLOTS, 0.0)
    assert reasons(waiting.deny_all()) == [Reason.SHUTDOWN]
    assert (waiting.waiting, waiting.next_deadline()) == (0, None)
    assert reasons(waiting.refused(1, "talker", 1.0)) == [Reason.SHUTDOWN]


WISHES = st.builds(
    AdmissionRequest,
    st.sampled_from([frozenset({"thinker"}), frozenset({"talker"}), frozenset(SLOTS)]),
    st.sampled_from(list(Urgency)),
    st.integers(1, 5),
    st.integers(0, 400),
    st.sampled_from([1.0, 30.0, float("inf")]),
    st.just(float("inf")),
    st.sampled_from(["", "a", "b"]),
    st.sampled_from(list(Priority)),
)


class EveryFact(RuleBasedStateMachine):
    """Whatever happens, in any order: slots are never lost, nor given twice."""

    @initialize(slots=st.sampled_from([SLOTS, dict.fromkeys(SLOTS, 0)]), most=st.integers(0, 8))
    def begin(self, slots: dict[str, int], most: int) -> None:
        self.slots = slots
        self.now = 0.0
        self.numbers = itertools.count()
        self.queue = queue(max_calls=5, max_waiting=most)
        self.waiting: dict[int, AdmissionRequest] = {}
        self.running: dict[int, AdmissionRequest] = {}
        self.given_back: set[tuple[int, str]] = set()

    def take(self, decisions: list[Decision]) -> None:
        for each in decisions:
            request = self.waiting.pop(each.number)
            if isinstance(each, Granted):
                self.running[each.number] = request
            else:
                assert 1.0 <= each.retry_after_s <= 60.0

    @rule(request=WISHES)
    def ask(self, request: AdmissionRequest) -> None:
        number = next(self.numbers)
        self.waiting[number] = request
        self.take(self.queue.ask(number, request, self.slots, self.now))

    @rule(random=st.randoms(use_true_random=False), left=st.sampled_from(["waiting", "running"]))
    def leave(self, random: random.Random, left: str) -> None:
        if numbers := list(getattr(self, left)):
            number = random.choice(numbers)
            getattr(self, left).pop(number)
            self.take(self.queue.leave(number, self.now))
            assert self.queue.leave(number, self.now) == []

    @rule(random=st.randoms(use_true_random=False), what=st.sampled_from(["o", "f", "r"]))
    def hear(self, random: random.Random, what: str) -> None:
        if not self.running:
            return
        number = random.choice(list(self.running))
        role = random.choice(sorted(self.running[number].roles))
        if what == "o":
            self.take(self.queue.opened(number, self.now))
        elif what == "f":
            self.given_back.add((number, role))
            self.take(self.queue.freed(number, role, self.now))
        else:
            self.waiting[number] = self.running.pop(number)
            self.given_back -= {(number, each) for each in SLOTS}
            self.take(self.queue.refused(number, role, self.now))

    @rule(seconds=st.sampled_from([0.01, 0.5, 10.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        moment = self.queue.next_deadline()
        if moment is not None and moment <= self.now:
            self.take(self.queue.pass_time(self.now))

    @invariant()
    def slots_add_up(self) -> None:
        held = Counter[str]()
        for number, request in self.running.items():
            held[""] += request.count
            for role in request.roles:
                held[role] += request.count * ((number, role) not in self.given_back)
        for role in SLOTS:
            assert self.queue.held(role) == held[role]
            assert held[role] <= (self.slots[role] or 99)
        assert self.queue.calls == held[""] <= 5
        assert self.queue.waiting == len(self.waiting)
        assert self.queue.waiting_bytes == sum(each.size_bytes for each in self.waiting.values())

    @invariant()
    def a_time_is_awaited_while_someone_waits(self) -> None:
        assert (self.queue.next_deadline() is None) is (not self.waiting)

    def teardown(self) -> None:
        for number in [*self.waiting, *self.running]:
            self.waiting.pop(number, None)
            self.take(self.queue.leave(number, self.now))
        for role in ("", *SLOTS):
            assert self.queue.held(role) == 0


EveryFact.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestEveryFact = EveryFact.TestCase


def test_slots_of_more_replicas_let_more_begin_and_those_of_fewer_stop_it() -> None:
    subject = queue()
    for number in range(3):
        subject.ask(number, AUDIO, SLOTS, 0.0)
    assert subject.waiting == 1
    assert granted(subject.resize({"talker": 4}, 1.0)) == [2]
    assert subject.resize({"talker": 2}, 2.0) == []
    assert granted(subject.ask(3, AUDIO, {"thinker": 4, "talker": 2}, 3.0)) == []
    assert granted(subject.leave(0, 4.0)) == []
    assert granted(subject.leave(1, 5.0)) == [3]
    assert subject.resize({"vocoder": 4}, 6.0) == []
