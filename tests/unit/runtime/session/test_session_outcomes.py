"""Every segment is counted once, by the way in which it ended."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from antiphon.errors import Cancelled, ErrorCode, Internal, InvalidArgument
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import Completed, Emitted, Failed
from antiphon.runtime.session.facts import (
    ClientDone,
    Credited,
    EngineLost,
    EngineStepped,
    SegmentCancelled,
    SegmentRequested,
    SessionFaulted,
    SessionRequested,
    StreamLost,
    TimePassed,
)
from antiphon.runtime.session.instructions import Destination, Report
from antiphon.runtime.session.plan import SegmentRequest, SessionRequest, StageLimits, StagePlan
from antiphon.runtime.session.table import SessionTable
from antiphon.runtime.session.tally import Outcome
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_testkit.qwen3_omni.fake_engine import NEUTRAL_SAMPLING

LIMITS = StageLimits(slots=1, stall_timeout_s=30.0, hold_timeout_s=5.0, hold_bytes=1000)
KEY = SegmentKey("s", 0)
SAMPLES = {"samples": np.zeros(8, np.float32), "codes": np.zeros((2, 2), np.uint16)}
STOP = FinishReason.STOP


def segment(number: int = 0) -> SegmentRequest:
    return SegmentRequest(number, SamplingRequest(), "", frozenset({"audio"}), {})


def table(window: int = 0) -> SessionTable:
    """One whose session "s" has its first segment open, with credit for so many positions."""
    sessions = SessionTable(StagePlan.of(PIPELINE, "code2wav", NEUTRAL_SAMPLING, LIMITS))
    windows = {"audio": window} if window else {}
    sessions.handle(
        SessionRequested(SessionRequest("s", {"audio": (Destination(),)}, windows=windows)), 0.0
    )
    sessions.handle(SegmentRequested("s", segment()), 0.0)
    return sessions


def finish(sessions: SessionTable) -> None:
    """The engine makes 16 samples in two emissions, and is done."""
    first, last = Emitted(KEY, "audio", 0, SAMPLES), Emitted(KEY, "audio", 8, SAMPLES, STOP)
    done = Completed(KEY, STOP, 4, 16)
    sessions.handle(EngineStepped([first, last, done], {}, {KEY: 0.5}, 0.5, 1), 1.0)


def fail(sessions: SessionTable) -> None:
    sessions.handle(EngineStepped([Failed(KEY, Internal("broken"))]), 1.0)


@pytest.mark.parametrize(
    ("end", "outcome", "code"),
    [
        (finish, Outcome.FINISHED, None),
        (lambda sessions: sessions.handle(SegmentCancelled("s", 0), 1.0), Outcome.CANCELLED, None),
        (lambda sessions: sessions.handle(StreamLost("s"), 0.0), Outcome.CANCELLED, None),
        (
            lambda sessions: sessions.handle(SessionFaulted("s", Cancelled("over there")), 0.0),
            Outcome.CANCELLED,
            None,
        ),
        (fail, Outcome.FAILED, ErrorCode.INTERNAL),
        (
            lambda sessions: sessions.handle(TimePassed(), 30.0),
            Outcome.FAILED,
            ErrorCode.DEADLINE_EXCEEDED,
        ),
        (
            lambda sessions: sessions.handle(EngineLost(InvalidArgument("all")), 0.0),
            Outcome.FAILED,
            ErrorCode.INVALID_ARGUMENT,
        ),
        # Another one was opened on top of it, which ends the session.
        (
            lambda sessions: sessions.handle(SegmentRequested("s", segment(1)), 1.0),
            Outcome.FAILED,
            ErrorCode.RESOURCE_EXHAUSTED,
        ),
    ],
)
def test_segment_is_counted_once_when_it_ends(
    end: Callable[[SessionTable], None], outcome: Outcome, code: ErrorCode | None
) -> None:
    sessions = table()
    assert not sessions.tally.segments
    end(sessions)
    counted = {(outcome, code.value if code else ""): 1}
    assert sessions.tally.segments == counted
    sessions.handle(ClientDone("s"), 0.0)
    sessions.handle(StreamLost("s"), 0.0)
    assert sessions.tally.segments == counted


def test_refused_segment_is_counted_and_the_open_one_is_not() -> None:
    sessions = table()
    sessions.handle(SessionRequested(SessionRequest("t", {})), 0.0)
    sessions.handle(SegmentRequested("t", segment()), 0.0)
    assert sessions.tally.segments == {(Outcome.REFUSED, "resource_exhausted"): 1}


def test_finished_segment_is_counted_when_its_last_output_has_left() -> None:
    sessions = table(window=4)
    finish(sessions)
    assert not sessions.tally.segments
    assert sessions.tally.positions == {"audio": 16}
    sessions.handle(Credited(KEY, "audio", Destination(), 100), 2.0)
    assert sessions.tally.segments == {(Outcome.FINISHED, ""): 1}


def test_output_and_steps_are_counted() -> None:
    sessions = table()
    finish(sessions)
    assert sessions.tally.positions == {"audio": 16}
    assert sessions.tally.chunks == {"audio": 2}
    assert sum(sessions.tally.step_seconds.counts) == 1
    assert sessions.tally.step_seconds.total == 0.5
    assert sessions.tally.step_segments.total == 1


def test_report_of_a_finished_segment_has_the_engines_time_on_it() -> None:
    sessions = table()
    events = [Emitted(KEY, "audio", 0, SAMPLES, STOP), Completed(KEY, STOP, 2, 8)]
    done = sessions.handle(EngineStepped(events, busy_s={KEY: 0.25}), 1.0)
    (report,) = [each for each in done if isinstance(each, Report)]
    assert report.busy_s == 0.25
