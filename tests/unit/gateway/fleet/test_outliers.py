"""Replicas that fail in a row, and how they come back."""

from __future__ import annotations

import pytest

from antiphon_gateway.fleet.outliers import Outliers

KNOWN = 8


def outliers() -> Outliers[str]:
    return Outliers(failures=3, first_s=2.0, longest_s=10.0)


def eject(subject: Outliers[str], key: str, now: float = 0.0, known: int = KNOWN) -> bool:
    return [subject.failed(key, known, now) for _ in range(3)][-1]


def test_three_failures_in_a_row_eject_and_a_success_between_counts_anew() -> None:
    subject = outliers()
    assert not subject.failed("a", KNOWN, 0.0)
    assert not subject.failed("a", KNOWN, 0.0)
    assert not subject.succeeded("a")
    assert not subject.failed("a", KNOWN, 0.0)
    assert not subject.failed("a", KNOWN, 0.0)
    assert not subject.is_out("a")
    assert subject.failed("a", KNOWN, 0.0)
    assert subject.is_out("a")
    assert subject.ejections == 1


def test_when_its_time_is_over_it_gets_one_session_and_then_all_or_none() -> None:
    subject = outliers()
    eject(subject, "a")
    assert subject.next_deadline() == 2.0
    assert subject.pass_time(1.9) == []
    assert subject.pass_time(2.0) == ["a"]
    assert not subject.is_out("a")
    trial = subject.picked("a")
    assert trial is not None
    assert subject.is_out("a"), "the session that tries it has yet to tell"
    assert subject.next_deadline() is None
    assert subject.succeeded("a", trial)
    assert not subject.is_out("a")
    assert subject.picked("a") is None


def test_each_ejection_lasts_twice_as_long_up_to_a_bound() -> None:
    subject, now = outliers(), 0.0
    eject(subject, "a")
    for lasts_s in (2.0, 4.0, 8.0, 10.0, 10.0):
        until = subject.next_deadline()
        assert until == pytest.approx(now + lasts_s)
        now = until or 0.0
        subject.pass_time(now)
        trial = subject.picked("a")
        assert subject.failed("a", KNOWN, now, trial), "one failure is enough for one that is tried"


def test_a_session_that_tells_nothing_lets_another_try() -> None:
    subject = outliers()
    eject(subject, "a")
    subject.pass_time(2.0)
    assert subject.undecided("a", subject.picked("a"))
    assert not subject.is_out("a")
    assert subject.picked("a") is not None


def test_what_older_sessions_tell_of_one_that_is_out_changes_nothing() -> None:
    subject = outliers()
    eject(subject, "a")
    assert not subject.succeeded("a")
    assert not subject.failed("a", KNOWN, 1.0)
    assert not subject.undecided("a", None)
    assert subject.next_deadline() == 2.0


@pytest.mark.parametrize(("known", "most"), [(1, 0), (2, 1), (3, 1), (8, 4)])
def test_never_more_than_half_are_out(known: int, most: int) -> None:
    subject = outliers()
    ejected = [eject(subject, f"r{number}", known=known) for number in range(known)]
    assert sum(ejected) == most


def test_one_that_is_on_trial_still_counts_as_out() -> None:
    subject = outliers()
    eject(subject, "a", known=2)
    subject.pass_time(2.0)
    assert not eject(subject, "b", 2.0, known=2)


def test_one_that_is_gone_is_forgotten() -> None:
    subject = outliers()
    eject(subject, "a")
    subject.forget("a")
    assert not subject.is_out("a")
    assert subject.next_deadline() is None
    assert subject.pass_time(99.0) == []


def test_only_the_session_that_tries_a_replica_decides() -> None:
    subject = outliers()
    eject(subject, "a")
    subject.pass_time(2.0)
    old = subject.picked("a")
    assert subject.undecided("a", old)
    trial = subject.picked("a")
    for other in (None, old):
        assert not subject.succeeded("a", other)
        assert not subject.undecided("a", other)
        assert not subject.failed("a", KNOWN, 3.0, other)
        assert subject.is_out("a")
        assert subject.picked("a") is None
    assert subject.succeeded("a", trial)
    assert not subject.is_out("a")


def test_of_fewer_replicas_fewer_are_out_the_first_that_is_due_is_back() -> None:
    subject = outliers()
    eject(subject, "a", 1.0)
    eject(subject, "b", 0.0)
    assert subject.let_back(["a", "b", "c", "d"]) == []
    assert subject.let_back(["a", "b", "c"]) == ["b"]
    assert not subject.is_out("b")
    assert subject.is_out("a")
    assert subject.let_back(["b", "c"]) == [], "one that does not serve takes nobody's place"
    assert subject.let_back(["a"]) == ["a"]
    assert subject.next_deadline() is None
    assert not subject.failed("b", 1, 2.0)
    assert subject.failed("b", 2, 2.0), "one more failure is enough"


def test_the_last_replica_is_used_while_a_session_tries_it() -> None:
    subject = outliers()
    eject(subject, "a")
    subject.pass_time(2.0)
    trial = subject.picked("a")
    assert subject.let_back(["a"]) == ["a"]
    assert not subject.is_out("a")
    assert not subject.undecided("a", trial)
