"""Sessions whose downstream process is gone, where another one has come to its address."""

from __future__ import annotations

from antiphon.errors import Unavailable
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.session.facts import (
    DestinationLost,
    DestinationSuspended,
    SegmentRequested,
    SessionRequested,
)
from antiphon.runtime.session.instructions import Destination, End, Suspended
from antiphon.runtime.session.plan import SegmentRequest, SessionRequest, StageLimits, StagePlan
from antiphon.runtime.session.states import State
from antiphon.runtime.session.table import SessionTable
from antiphon.sampling import SamplingRequest
from antiphon.testing.qwen3_omni.fake_engine import NEUTRAL_SAMPLING

LIMITS = StageLimits(slots=2, stall_timeout_s=30.0, hold_timeout_s=10.0, hold_bytes=1000)


def test_destination_lost_spares_sessions_with_its_successor_at_the_same_address() -> None:
    sessions = SessionTable(StagePlan.of(PIPELINE, "talker", NEUTRAL_SAMPLING, LIMITS))
    for boot in ("before", "after"):
        routes = {"codes": (Destination("here:1", boot),)}
        sessions.handle(SessionRequested(SessionRequest(boot, 0, routes)), 0.0)
        segment = SegmentRequest(0, SamplingRequest(), "", frozenset({"audio"}), {})
        sessions.handle(SegmentRequested(boot, segment), 0.0)
    suspended = sessions.handle(DestinationSuspended("here:1", "after"), 0.0)
    assert suspended == [Suspended("after", "codes", "here:1")]
    error = Unavailable("gone")
    ends = sessions.handle(DestinationLost("here:1", error, boot_id="before"), 0.0)
    assert [each.session_id for each in ends if isinstance(each, End)] == ["before"]
    assert sessions.state("before") is None
    assert sessions.state("after") is State.OPEN
