"""The clocks of a session, driven as a stage drives them: it wakes when a deadline is announced."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest

from antiphon.errors import AntiphonError, DeadlineExceeded
from antiphon.pipelines.graph import CLIENT, Pipeline
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.session.facts import (
    ChunkArrived,
    EngineStepped,
    SegmentRequested,
    SegmentStatus,
    SessionRequested,
    TimePassed,
)
from antiphon.runtime.session.instructions import Destination, End
from antiphon.runtime.session.plan import SegmentRequest, SessionRequest, StageLimits, StagePlan
from antiphon.runtime.session.table import SessionTable
from antiphon.values.chunk import Chunk
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import SegmentKey
from antiphon_testkit.qwen3_omni.fake_engine import NEUTRAL_SAMPLING

STALL_S, SPEAKING_S, IDLE_S = 5.0, 30.0, 100.0
LIMITS = StageLimits(
    slots=1,
    stall_timeout_s=STALL_S,
    hold_timeout_s=3.0,
    hold_bytes=10_000,
    idle_session_timeout_s=IDLE_S,
    live_input_timeout_s=SPEAKING_S,
)
KEY = SegmentKey("s", 0)
HEARING_TALKER = replace(
    PIPELINE,
    edges=tuple(
        replace(edge, consumers=(*edge.consumers, "talker")) if edge.producer == CLIENT else edge
        for edge in PIPELINE.edges
    ),
)
"""A talker that gets the client's input as well as the thinker's."""


@dataclass(frozen=True)
class Asked:
    """A segment as it is asked for; its session and its input come at 0."""

    deadline_s: float = 0.0
    stall_timeout_s: float = 0.0
    live: bool = False
    awaits: str | None = "codes"

    def opened(self, table: SessionTable, output: str = "audio") -> None:
        request = SessionRequest(
            "s", {output: (Destination(),)}, stall_timeout_s=self.stall_timeout_s
        )
        table.handle(SessionRequested(request), 0.0)
        outputs = frozenset({output})
        segment = SegmentRequest(
            0, SamplingRequest(), "", outputs, {}, deadline_s=self.deadline_s, live=self.live
        )
        table.handle(SegmentRequested("s", segment), 0.0)


def end_of(table: SessionTable) -> tuple[float, AntiphonError | None]:
    """When the session ends if nothing happens but time, and why."""
    for _ in range(10):
        moment = table.next_deadline()
        assert moment is not None
        ends = [each for each in table.handle(TimePassed(), moment) if isinstance(each, End)]
        if ends:
            return moment, ends[0].error
    raise AssertionError(f"woken ten times, at last at {moment:g}, and nothing was late")


@pytest.mark.parametrize(
    ("asked", "ends_at", "said"),
    [
        (Asked(), STALL_S, "codes did not arrive"),
        (Asked(deadline_s=60.0), STALL_S, "codes did not arrive"),
        (Asked(deadline_s=2.0), 2.0, "deadline"),
        (Asked(deadline_s=60.0, stall_timeout_s=50.0), 50.0, "codes did not arrive"),
        (Asked(deadline_s=60.0, stall_timeout_s=80.0), 60.0, "deadline"),
        (Asked(deadline_s=60.0, awaits=None), 60.0, "deadline"),
        (Asked(live=True, deadline_s=60.0), IDLE_S, "idle_session_timeout_s"),
    ],
)
def test_segment_ends_at_the_first_of_its_deadline_and_its_stall(
    asked: Asked, ends_at: float, said: str
) -> None:
    table = SessionTable(StagePlan.of(PIPELINE, "code2wav", NEUTRAL_SAMPLING, LIMITS))
    asked.opened(table)
    codes = Chunk("s", "codes", tensors={"codes": np.zeros((1, 16), np.uint16)})
    table.handle(ChunkArrived(codes, "link"), 0.0)
    table.handle(EngineStepped(standing={KEY: SegmentStatus(asked.awaits, 1)}), 0.0)
    moment, error = end_of(table)
    assert moment == ends_at
    assert isinstance(error, DeadlineExceeded)
    assert said in error.message


def test_session_without_a_segment_ends_when_it_has_been_idle() -> None:
    table = SessionTable(StagePlan.of(PIPELINE, "code2wav", NEUTRAL_SAMPLING, LIMITS))
    table.handle(SessionRequested(SessionRequest("s", {})), 7.0)
    moment, error = end_of(table)
    assert moment == 7.0 + IDLE_S
    assert error is not None
    assert "idle_session_timeout_s" in error.message


@pytest.mark.parametrize(
    ("pipeline", "role", "output", "waits_s", "setting"),
    [
        (PIPELINE, "thinker", "text", SPEAKING_S, "live_input_timeout_s"),
        (PIPELINE, "talker", "codes", IDLE_S, "idle_session_timeout_s"),
        (HEARING_TALKER, "talker", "codes", SPEAKING_S, "live_input_timeout_s"),
    ],
)
def test_stage_that_any_input_of_the_client_reaches_waits_as_long_as_a_user_may_pause(
    pipeline: Pipeline, role: str, output: str, waits_s: float, setting: str
) -> None:
    table = SessionTable(StagePlan.of(pipeline, role, NEUTRAL_SAMPLING, LIMITS))
    Asked(live=True).opened(table, output)
    moment, error = end_of(table)
    assert moment == waits_s
    assert error is not None
    assert setting in error.message
