"""Sessions whose downstream or upstream process is gone."""

from __future__ import annotations

from antiphon.errors import Cancelled, ResourceExhausted, Unavailable
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.session.facts import (
    ChunkArrived,
    ChunksRefused,
    DestinationLost,
    DestinationSuspended,
    LinkLost,
    ProducerGone,
    SegmentRequested,
    SessionRequested,
)
from antiphon.runtime.session.instructions import Destination, End, Suspended
from antiphon.runtime.session.plan import SegmentRequest, SessionRequest, StageLimits, StagePlan
from antiphon.runtime.session.states import State
from antiphon.runtime.session.table import SessionTable
from antiphon.values.chunk import Chunk
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_testkit.qwen3_omni.fake_engine import NEUTRAL_SAMPLING

LIMITS = StageLimits(slots=2, stall_timeout_s=30.0, hold_timeout_s=10.0, hold_bytes=1000)


def test_destination_lost_spares_sessions_with_its_successor_at_the_same_address() -> None:
    sessions = SessionTable(StagePlan.of(PIPELINE, "talker", NEUTRAL_SAMPLING, LIMITS))
    for boot in ("before", "after"):
        routes = {"codes": (Destination("here:1", boot),)}
        sessions.handle(SessionRequested(SessionRequest(boot, routes)), 0.0)
        segment = SegmentRequest(0, SamplingRequest(), "", frozenset({"audio"}), {})
        sessions.handle(SegmentRequested(boot, segment), 0.0)
    suspended = sessions.handle(DestinationSuspended("here:1", "after"), 0.0)
    assert suspended == [Suspended("after", "codes", "here:1")]
    error = Unavailable("gone")
    ends = sessions.handle(DestinationLost("here:1", error, boot_id="before"), 0.0)
    assert [each.session_id for each in ends if isinstance(each, End)] == ["before"]
    assert sessions.state("before") is None
    assert sessions.state("after") is State.OPEN


def test_a_lost_link_fails_sessions_that_had_one_edge_whole_and_nothing_of_another() -> None:
    """Both come from the same process, of which the other edge is awaited in vain."""
    sessions = SessionTable(StagePlan.of(PIPELINE, "talker", NEUTRAL_SAMPLING, LIMITS))
    sessions.handle(SessionRequested(SessionRequest("s", {})), 0.0)
    segment = SegmentRequest(0, SamplingRequest(), "", frozenset({"audio"}), {})
    sessions.handle(SegmentRequested("s", segment), 0.0)
    prompt = Chunk("s", "prompt", segment_finished=True, finish_reason=FinishReason.STOP)
    sessions.handle(ChunkArrived(prompt, "link"), 0.0)
    assert sessions.handle(LinkLost("other"), 0.0) == []
    (end,) = (e for e in sessions.handle(LinkLost("link"), 0.0) if isinstance(e, End))
    assert isinstance(end.error, Unavailable)
    assert (end.error.stage, end.error.edge) == ("thinker", "tokens")


def test_that_a_session_has_ended_downstream_is_told_by_that_stage_alone() -> None:
    """It may have done its part, so that nothing is missed; or it says itself what went wrong."""
    sessions = SessionTable(StagePlan.of(PIPELINE, "talker", NEUTRAL_SAMPLING, LIMITS))
    sessions.handle(SessionRequested(SessionRequest("s", {})), 0.0)
    segment = SegmentRequest(0, SamplingRequest(), "", frozenset({"audio"}), {})
    sessions.handle(SegmentRequested("s", segment), 0.0)
    assert sessions.handle(ChunksRefused("s", Cancelled("session s has ended")), 0.0) == []
    assert sessions.state("s") is State.OPEN
    full = ResourceExhausted("no room for what it holds")
    (end,) = (e for e in sessions.handle(ChunksRefused("s", full), 0.0) if isinstance(e, End))
    assert end.error is full


def test_a_producer_that_is_gone_before_anything_came_of_it_is_not_waited_for() -> None:
    """No link of it will break, as there was none."""
    sessions = SessionTable(StagePlan.of(PIPELINE, "talker", NEUTRAL_SAMPLING, LIMITS))
    for name in ("s", "linked"):
        sessions.handle(SessionRequested(SessionRequest(name, {})), 0.0)
        segment = SegmentRequest(0, SamplingRequest(), "", frozenset({"audio"}), {})
        sessions.handle(SegmentRequested(name, segment), 0.0)
    prompt = Chunk("linked", "prompt", segment_finished=True, finish_reason=FinishReason.STOP)
    sessions.handle(ChunkArrived(prompt, "link"), 0.0)
    nobody = (
        ProducerGone(SegmentKey("linked", 0), "thinker"),
        ProducerGone(SegmentKey("s", 0), "code2wav"),
        ProducerGone(SegmentKey("s", 1), "thinker"),
        ProducerGone(SegmentKey("t", 0), "thinker"),
    )
    assert [sessions.handle(each, 0.0) for each in nobody] == [[], [], [], []]
    gone = sessions.handle(ProducerGone(SegmentKey("s", 0), "thinker"), 0.0)
    (end,) = (each for each in gone if isinstance(each, End))
    assert isinstance(end.error, Unavailable)
    assert (end.error.stage, end.error.edge) == ("thinker", "prompt")
