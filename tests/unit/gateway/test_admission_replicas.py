"""Who may begin when replicas come and go."""

from __future__ import annotations

from antiphon_gateway.admission.admission import (
    AdmissionQueue,
    AdmissionRequest,
    Decision,
    Denied,
    Granted,
    Reason,
    Urgency,
)
from antiphon_gateway.admission.role_slots import LONGEST_PAUSE_S

SLOTS = {"thinker": 4, "talker": 2}
TEXT = AdmissionRequest(frozenset({"thinker"}))
AUDIO = AdmissionRequest(frozenset(SLOTS), Urgency.AUDIO)


def queue() -> AdmissionQueue:
    return AdmissionQueue(max_calls=64, max_waiting=64, max_waiting_bytes=1000, longest_wait_s=40.0)


def granted(decisions: list[Decision]) -> list[int]:
    return [each.number for each in decisions if isinstance(each, Granted)]


def reasons(decisions: list[Decision]) -> list[Reason]:
    return [each.reason for each in decisions if isinstance(each, Denied)]


def test_a_replica_that_comes_is_used_at_once_also_after_refusals() -> None:
    subject, now = queue(), 0.0
    slots = {"thinker": 64, "talker": 4}
    subject.ask(0, AUDIO, slots, now)
    while (subject.next_deadline() or now) - now < LONGEST_PAUSE_S:
        now = subject.next_deadline() if subject.waiting else now  # type: ignore[assignment]
        subject.pass_time(now)
        subject.refused(0, "talker", now)
    for number in range(1, 8):
        assert granted(subject.ask(number, AUDIO, slots, now)) == []
    assert granted(subject.resize({"talker": 6}, now)) == [0, 1], "two new slots"
    assert granted(subject.resize({"talker": 6}, now)) == [], "which are taken"


def test_choices_wait_for_slots_that_there_were_and_keep_nobody_from_those_that_there_are() -> None:
    subject = queue()
    three = AdmissionRequest(frozenset({"thinker"}), count=3)
    subject.resize({"thinker": 4}, 0.0)
    subject.resize({"thinker": 2}, 1.0)
    slots = {"thinker": 2}
    assert subject.ask(1, three, slots, 2.0) == []
    assert granted(subject.ask(2, TEXT, slots, 3.0)) == [2]
    assert granted(subject.resize({"thinker": 4}, 4.0)) == [1]
    five = AdmissionRequest(frozenset({"thinker"}), count=5)
    assert reasons(subject.ask(3, five, slots, 5.0)) == [Reason.TOO_MANY]


def test_a_request_that_goes_on_to_other_stages_has_no_slot_of_theirs_yet() -> None:
    subject = queue()
    subject.ask(1, TEXT, SLOTS, 0.0)
    subject.opened(1, 1.0)
    subject.asked_again(1)
    subject.leave(1, 2.0)
    assert subject.hold_s("thinker") is None, "what it held was not measured to its end"
