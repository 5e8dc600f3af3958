"""When a stage counts as lost, on a clock of the test's own."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest

from antiphon.deployment.gateway_config import HealthConfig
from antiphon.runtime.server.load_watch import IDLE_LONGEST_S, LONGEST_S
from antiphon_gateway.fleet.failure_detector import (
    IDLE_S,
    MISSES_TO_LOSE,
    REPORTS_EXCUSE,
    STARVED_PRESSURE,
    STARVED_WEIGHT,
    FailureDetector,
    Liveness,
    ProbeSchedule,
)

TIMEOUT_S = 1.5
ALIVE, SUSPECTED, LOST = Liveness.ALIVE, Liveness.SUSPECTED, Liveness.LOST
NEVER = (0.0, 0.0)


@dataclass
class Watched:
    """A stage that answers no probe, and what it sends: a period and an end in seconds for output
    and for reports of its load. `late_s` is how late each slice of the gateway's loop ends, and
    `pressure` that of its machine's cores."""

    output: tuple[float, float] = NEVER
    reports: tuple[float, float] = NEVER
    late_s: float = 0.0
    pressure: float = 0.5

    def verdicts(self, until_s: float) -> list[tuple[float, Liveness]]:
        """What is said when, in seconds since the first probe, until it is lost or time is over."""
        detector, now, said = FailureDetector(TIMEOUT_S), 0.0, []
        detector.sent()
        while now < until_s and (not said or said[-1][1] is not LOST):
            slice_s, before = detector.next_slice_s, now
            now += slice_s + self.late_s
            verdict = detector.waited(
                slice_s,
                self.late_s,
                pressure=self.pressure,
                output=_came(self.output, before, now),
                reported=_came(self.reports, before, now),
            )
            if verdict is not ALIVE:
                said.append((round(now, 3), verdict))
                detector.sent()
        return said


def _came(sending: tuple[float, float], after: float, until: float) -> bool:
    period, end = sending
    return period > 0 and int(min(until, end) / period) > int(min(after, end) / period)


def test_a_silent_stage_is_suspected_after_one_timeout_and_lost_after_two() -> None:
    said = Watched().verdicts(60.0)
    assert [verdict for _, verdict in said] == [SUSPECTED, LOST]
    assert said[0][0] == pytest.approx(TIMEOUT_S)
    assert said[1][0] == pytest.approx(MISSES_TO_LOSE * TIMEOUT_S)


def test_a_stage_that_sends_output_is_alive_however_long_its_answer_takes() -> None:
    assert not Watched(output=(1.2, 3600.0)).verdicts(3600.0)


def test_output_that_comes_slower_than_the_timeout_keeps_a_stage_from_being_lost() -> None:
    said = Watched(output=(2.5, 600.0)).verdicts(600.0)
    assert {verdict for _, verdict in said} == {SUSPECTED}


def test_a_stage_that_freezes_while_it_makes_output_is_lost_as_soon_as_any() -> None:
    frozen_s = 10.05
    (_, first), (lost_s, last) = Watched(output=(0.08, frozen_s)).verdicts(60.0)
    assert (first, last) == (SUSPECTED, LOST)
    assert lost_s <= frozen_s + MISSES_TO_LOSE * TIMEOUT_S + 0.1


def test_load_reports_excuse_a_missing_answer_for_a_while_only() -> None:
    excused_s = REPORTS_EXCUSE * TIMEOUT_S
    said = Watched(reports=(1.0, 3600.0)).verdicts(3600.0)
    assert [verdict for _, verdict in said] == [SUSPECTED, LOST]
    assert excused_s < said[0][0] < said[1][0] <= excused_s + MISSES_TO_LOSE * TIMEOUT_S + 0.1


def test_output_renews_what_load_reports_excuse() -> None:
    end = 100.0
    said = Watched(output=(5.0, end), reports=(1.0, 3600.0)).verdicts(3600.0)
    assert said
    assert said[0][0] > end


def test_a_late_gateway_is_more_patient() -> None:
    """Of a loop that is late by most of every slice little time counts."""
    late_s = 0.08
    said = Watched(late_s=late_s).verdicts(600.0)
    assert [verdict for _, verdict in said] == [SUSPECTED, LOST]
    assert said[0][0] > 5 * TIMEOUT_S


def test_a_gateway_whose_loop_stood_still_blames_no_stage() -> None:
    assert not Watched(late_s=3 * TIMEOUT_S).verdicts(600.0)


def test_on_a_starved_machine_silence_counts_for_less_and_still_counts() -> None:
    said = Watched(pressure=STARVED_PRESSURE).verdicts(600.0)
    assert [verdict for _, verdict in said] == [SUSPECTED, LOST]
    assert said[1][0] == pytest.approx(MISSES_TO_LOSE * TIMEOUT_S / STARVED_WEIGHT)


def test_probes_that_fail_are_misses_and_an_answer_forgets_them() -> None:
    detector = FailureDetector(TIMEOUT_S)
    assert detector.failed() is SUSPECTED
    detector.answered()
    assert detector.misses == 0
    assert detector.failed() is SUSPECTED
    assert detector.failed() is LOST
    assert detector.misses == MISSES_TO_LOSE


INTERVAL_S = HealthConfig().probe_interval_s


def probes_in(
    seconds: float, report_every_s: float, *, ready: bool = True, idle: bool = False
) -> int:
    """Of a stage that answers each probe at once."""
    schedule = ProbeSchedule(INTERVAL_S, TIMEOUT_S)
    now, wait_s, probes = 0.0, INTERVAL_S, 0
    while (now := now + wait_s) < seconds:
        reported_at = now // report_every_s * report_every_s
        wait_s = schedule.left_s(now, reported_at, ready=ready, idle=idle)
        if not wait_s:
            probes += 1
            schedule.confirmed(now)
            wait_s = INTERVAL_S
    return probes


@pytest.mark.parametrize(
    ("every_s", "idle"), [(LONGEST_S, False), (IDLE_LONGEST_S, True)], ids=["sessions", "idle"]
)
def test_stage_that_reports_its_load_is_hardly_probed(every_s: float, *, idle: bool) -> None:
    assert probes_in(600.0, every_s, idle=idle) <= 600 / (REPORTS_EXCUSE * TIMEOUT_S)


@pytest.mark.parametrize("interval_s", [0.1, INTERVAL_S, 5.0])
@pytest.mark.parametrize("timeout_s", [0.2, TIMEOUT_S])
def test_idle_stage_that_freezes_is_suspected_as_soon_as_any(
    interval_s: float, timeout_s: float
) -> None:
    schedule, detector = ProbeSchedule(interval_s, timeout_s), FailureDetector(timeout_s)
    schedule.confirmed(0.0)
    now = schedule.left_s(0.0, 0.0, ready=True, idle=True)
    overdue_s = schedule.overdue_s(now, 0.0)
    # The probe has at least half of its time.
    assert overdue_s <= timeout_s / 2
    detector.sent(overdue_s)
    verdict = ALIVE
    while verdict is ALIVE:
        slice_s = detector.next_slice_s
        now += slice_s
        verdict = detector.waited(slice_s, 0.0, pressure=0.5, output=False, reported=False)
    assert now == pytest.approx(interval_s + timeout_s)


def test_silence_counts_before_a_probe_only_as_far_as_it_is_overdue() -> None:
    schedule = ProbeSchedule(INTERVAL_S, TIMEOUT_S)
    assert schedule.overdue_s(10.0, 10.0) == schedule.overdue_s(10.5, 10.0) == 0
    assert schedule.overdue_s(10.6, 10.0) == pytest.approx(0.1)
    most_s = IDLE_S - INTERVAL_S
    assert schedule.overdue_s(10.0, -math.inf) == pytest.approx(most_s)


def test_stage_that_reports_nothing_or_is_not_ready_is_probed_at_intervals() -> None:
    assert probes_in(60.0, 3600.0) == 60 / INTERVAL_S - 1
    assert probes_in(60.0, LONGEST_S, ready=False) == 60 / INTERVAL_S - 1


def test_probe_is_due_as_soon_as_a_report_is_late() -> None:
    schedule = ProbeSchedule(INTERVAL_S, TIMEOUT_S)
    schedule.confirmed(10.0)
    assert schedule.left_s(10.4, 10.0, ready=True) == pytest.approx(0.1)
    assert schedule.left_s(10.5, 10.0, ready=True) == 0


def test_stage_whose_answer_contradicts_it_is_probed_again() -> None:
    schedule = ProbeSchedule(INTERVAL_S, TIMEOUT_S)
    assert schedule.left_s(10.0, 10.0, ready=True) == 0
