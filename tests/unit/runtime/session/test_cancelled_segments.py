"""A cancelled segment is reported when it holds nothing, a refused one leaves the session."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from antiphon.errors import FailedPrecondition, Internal, ResourceExhausted
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import Completed, Emitted
from antiphon.runtime.session.facts import (
    ClientDone,
    EngineLost,
    EngineStepped,
    SegmentCancelled,
    SegmentRequested,
    SessionRequested,
)
from antiphon.runtime.session.instructions import (
    Admit,
    Destination,
    End,
    Release,
    Report,
    SegmentOpened,
    SegmentRefused,
)
from antiphon.runtime.session.plan import SegmentRequest, SessionRequest, StageLimits, StagePlan
from antiphon.runtime.session.states import State
from antiphon.runtime.session.table import SessionTable
from antiphon.values.chunk import Tensors
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import Delivery, FinishReason, SegmentKey
from antiphon_testkit.qwen3_omni.fake_engine import NEUTRAL_SAMPLING

LIMITS = StageLimits(
    slots=1, stall_timeout_s=5.0, hold_timeout_s=3.0, hold_bytes=4000, idle_session_timeout_s=20.0
)
KEY = SegmentKey("s", 0)
NEXT = SegmentKey("s", 1)
FREED = Completed(KEY, FinishReason.CANCELLED, 3, 96, input_audio_positions=2)
SEGMENT = SegmentRequest(0, SamplingRequest(), "", frozenset({"audio"}), {})


def opened(table: SessionTable, name: str = "s", number: int = 0) -> list[object]:
    if not number:
        request = SessionRequest(name, {"audio": (Destination(),)})
        table.handle(SessionRequested(request), 0.0)
    return list(table.handle(SegmentRequested(name, replace(SEGMENT, segment=number)), 0.0))


@pytest.fixture
def table() -> SessionTable:
    table = SessionTable(StagePlan.of(PIPELINE, "code2wav", NEUTRAL_SAMPLING, LIMITS))
    opened(table)
    return table


def test_cancelled_segment_is_reported_when_the_engine_has_released_it(
    table: SessionTable,
) -> None:
    assert table.handle(SegmentCancelled("s", 0), 1.0) == [Release(KEY, cancelled=True)]
    assert table.state("s") is State.PARKED
    assert table.handle(SegmentCancelled("s", 0), 1.0) == []
    (report,) = table.handle(EngineStepped(released=(FREED,), busy_s={KEY: 0.5}), 2.0)
    assert isinstance(report, Report)
    assert (report.key, report.finish_reason) == (KEY, FinishReason.CANCELLED)
    assert (report.input_positions, report.output_positions, report.busy_s) == (3, 96, 0.5)
    assert report.input_audio_positions == 2
    assert table.handle(EngineStepped(released=(FREED,)), 3.0) == []


def test_next_segment_does_not_wait_for_the_report(table: SessionTable) -> None:
    table.handle(SegmentCancelled("s", 0), 1.0)
    assert [type(each) for each in opened(table, number=1)] == [SegmentOpened, Admit]
    (report,) = table.handle(EngineStepped(released=(FREED,)), 2.0)
    assert isinstance(report, Report)
    assert report.key == KEY
    assert table.state("s") is State.OPEN


def test_session_ends_after_the_report_when_the_client_is_done(table: SessionTable) -> None:
    table.handle(SegmentCancelled("s", 0), 1.0)
    assert table.handle(ClientDone("s"), 1.0) == []
    report, end = table.handle(EngineStepped(released=(FREED,)), 2.0)
    assert isinstance(report, Report)
    assert end == End("s", None)


def test_lost_engine_ends_a_session_whose_segment_is_being_released(table: SessionTable) -> None:
    table.handle(SegmentCancelled("s", 0), 1.0)
    error = Internal("gone")
    assert table.handle(EngineLost(error), 2.0) == [End("s", error)]
    assert table.handle(EngineStepped(released=(FREED,)), 3.0) == []


def test_completed_segment_whose_output_waits_is_reported_as_cancelled_at_once() -> None:
    table = SessionTable(StagePlan.of(PIPELINE, "code2wav", NEUTRAL_SAMPLING, LIMITS))
    request = SessionRequest("s", {"audio": (Destination(),)}, windows={"audio": 1})
    table.handle(SessionRequested(request), 0.0)
    whole = replace(SEGMENT, delivery={"audio": Delivery.STREAM})
    table.handle(SegmentRequested("s", whole), 0.0)
    made = [
        Emitted(KEY, "audio", 0, _audio()),
        Emitted(KEY, "audio", 1920, _audio(), FinishReason.STOP),
        Completed(KEY, FinishReason.STOP, 2, 3840),
    ]
    done = table.handle(EngineStepped(made), 1.0)
    assert Release(KEY) in done
    (report,) = table.handle(SegmentCancelled("s", 0), 2.0)
    assert isinstance(report, Report)
    assert (report.finish_reason, report.output_positions) == (FinishReason.CANCELLED, 3840)


def test_later_segment_without_a_slot_leaves_the_session(table: SessionTable) -> None:
    table.handle(SegmentCancelled("s", 0), 1.0)
    assert opened(table, "other")
    (refused,) = opened(table, number=1)
    assert isinstance(refused, SegmentRefused)
    assert refused.key == NEXT
    assert isinstance(refused.error, ResourceExhausted)
    assert refused.error.stage == "code2wav"
    assert table.state("s") is State.PARKED
    table.handle(SegmentCancelled("other", 0), 1.0)
    assert [type(each) for each in opened(table, number=2)] == [SegmentOpened, Admit]


def test_first_segment_without_a_slot_ends_the_session(table: SessionTable) -> None:
    (end,) = opened(table, "late")
    assert isinstance(end, End)
    assert isinstance(end.error, ResourceExhausted)


def test_refused_segment_uses_its_number_up(table: SessionTable) -> None:
    table.handle(SegmentCancelled("s", 0), 1.0)
    opened(table, "other")
    opened(table, number=1)
    (end,) = opened(table, number=1)
    assert isinstance(end, End)
    assert isinstance(end.error, FailedPrecondition)


def _audio() -> Tensors:
    return {"samples": np.zeros(1920, np.float32), "codes": np.zeros((1, 16), np.uint16)}
