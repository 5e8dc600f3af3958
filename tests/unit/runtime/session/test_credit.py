"""Credit: alone, at an outlet, and in the table."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from antiphon.errors import InvalidArgument
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import Emitted, SegmentSettings
from antiphon.runtime.session.credit import Credit, Intake
from antiphon.runtime.session.facts import (
    ClientDone,
    Credited,
    SegmentCancelled,
    SegmentRequested,
    SessionRequested,
    StreamLost,
    TimePassed,
)
from antiphon.runtime.session.instructions import Destination, End, Limit, Release, Report
from antiphon.runtime.session.open_segment import Segment
from antiphon.runtime.session.output_edge import OutputEdge
from antiphon.runtime.session.output_flow import OutputFlow
from antiphon.runtime.session.plan import SegmentRequest, SessionRequest
from antiphon.runtime.session.tally import Tally
from antiphon.values.sampling import Sampling, SamplingRequest
from antiphon.values.segment import ChunkPolicy, Delivery, FinishReason, SegmentKey
from antiphon_testkit.qwen3_omni.fake_engine import SAMPLES_PER_FRAME
from tests.unit.runtime.session.two_stages import (
    DOWNSTREAM,
    FRAMES,
    KEY,
    LIMITS,
    POLICY,
    WINDOWS,
    TwoStages,
)

HERE, THERE = Destination("here:1"), Destination("there:2")
SAMPLING = Sampling(0.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=1)
CODES, AUDIO = PIPELINE.edge("codes"), PIPELINE.edge("audio")


def codes(start: int, count: int) -> dict[str, np.ndarray]:
    return {"codes": np.arange(start, start + count, dtype=np.uint16).repeat(2).reshape(-1, 2)}


# -- the counts ----------------------------------------------------------------------------


def test_credit_covers_what_ends_within_the_grant() -> None:
    credit = Credit(8, [HERE])
    assert credit.covers(3, 5)
    assert not credit.covers(3, 6)
    credit.grant(HERE, 9)
    assert credit.covers(3, 6)


def test_credit_covers_more_than_the_window_only_when_all_was_taken() -> None:
    credit = Credit(8, [HERE])
    assert credit.covers(0, 64)
    assert not credit.covers(64, 64)
    credit.grant(HERE, 71)
    assert not credit.covers(64, 64)
    credit.grant(HERE, 72)
    assert credit.covers(64, 64)


def test_credit_ignores_a_total_that_is_late_and_a_stranger() -> None:
    credit = Credit(8, [HERE])
    credit.grant(HERE, 20)
    credit.grant(HERE, 12)
    credit.grant(THERE, 99)
    assert credit.granted == 20


def test_credit_is_that_of_the_slowest_destination() -> None:
    credit = Credit(8, [HERE, THERE])
    credit.grant(HERE, 100)
    assert credit.granted == 8
    credit.grant(THERE, 30)
    assert credit.granted == 30


def test_intake_grants_all_that_was_taken_and_says_it_once() -> None:
    intake = Intake(8)
    assert intake.take_all() is None
    intake.add(3)
    intake.add(2)
    assert intake.take_all() == 13
    assert intake.take_all() is None


# -- at an outlet --------------------------------------------------------------------------


def outlet(delivery: Delivery = Delivery.STREAM, window: int = 8) -> OutputEdge:
    return OutputEdge(CODES, delivery, POLICY, Credit(window, [HERE]))


def test_outlet_keeps_what_has_no_credit_in_order() -> None:
    out = outlet()
    pieces = out.push(0, codes(0, 12), None)
    assert [len(piece.tensors["codes"]) for piece in pieces] == [1, 2, 4]
    assert out.held
    assert not out.grant(HERE, 11)
    assert out.held
    (piece,) = out.grant(HERE, 12)
    assert (piece.position, len(piece.tensors["codes"])) == (7, 5)


def test_outlet_lets_the_engine_complete_the_chunk_that_it_is_at() -> None:
    out = outlet()
    assert out.limit == 12
    out.grant(HERE, 12)
    assert out.limit == 17


def test_outlet_of_an_ungrouped_edge_stops_the_engine_at_the_grant() -> None:
    out = OutputEdge(AUDIO, Delivery.STREAM, POLICY, Credit(100, [HERE]))
    samples = {"samples": np.zeros(70, np.float32)}
    assert out.limit == 100
    assert len(out.push(0, samples, None)) == 1
    assert out.push(70, samples, None) == []
    assert out.held
    (piece,) = out.grant(HERE, 170)
    assert piece.position == 70


def test_outlet_sends_a_bare_finish_without_credit() -> None:
    out = outlet(window=7)
    assert len(out.push(0, codes(0, 7), None)) == 3
    (finish,) = out.push(7, {}, FinishReason.STOP)
    assert (finish.position, finish.tensors) == (7, {})
    assert out.drained
    assert not out.held


def test_outlet_finishes_after_what_waited_for_credit() -> None:
    out = outlet(window=3)
    assert len(out.push(0, codes(0, 7), None)) == 2
    assert out.push(7, {}, FinishReason.LENGTH) == []
    assert out.finished
    assert out.held
    (last,) = out.grant(HERE, 7)
    assert len(last.tensors["codes"]) == 4
    assert last.finish_reason is FinishReason.LENGTH
    assert out.drained


def test_outlet_is_held_when_its_last_chunk_is_shorter_than_the_limit_and_has_no_credit() -> None:
    out = outlet()
    assert len(out.push(0, codes(0, 10), FinishReason.STOP)) == 3
    assert out.total < (out.limit or 0)
    assert out.held
    (last,) = out.grant(HERE, 10)
    assert (last.position, last.finish_reason, out.held) == (7, FinishReason.STOP, False)


def test_outlet_uses_no_credit_when_delivery_is_whole() -> None:
    out = outlet(Delivery.WHOLE)
    assert out.limit is None
    assert out.push(0, codes(0, 60), None) == []
    assert not out.held
    (piece,) = out.push(60, {}, FinishReason.STOP)
    assert len(piece.tensors["codes"]) == 60


def test_segment_is_held_until_no_edge_of_it_waits_for_credit() -> None:
    edges = {"codes": CODES, "audio": AUDIO}
    outlets = {
        name: OutputEdge(edge, Delivery.STREAM, POLICY, Credit(8, [HERE]))
        for name, edge in edges.items()
    }
    flow = OutputFlow(outlets, edges, {}, Tally())
    settings = SegmentSettings("", SAMPLING, frozenset(edges))
    segment = Segment(KEY, settings, outlets, set(), {}, flow, now=0.0, deadline_s=0.0)
    segment.in_engine = True

    segment.push(Emitted(KEY, "audio", 0, {"samples": np.zeros(7, np.float32)}), 1.0)
    assert not segment.held
    segment.push(Emitted(KEY, "audio", 7, {"samples": np.zeros(1, np.float32)}), 1.0)
    segment.push(Emitted(KEY, "codes", 0, codes(0, 12)), 2.0)
    assert (segment.held, segment.stall_clock_runs) == (True, False)
    segment.grant("audio", HERE, 16, 3.0)
    assert (segment.held, segment.waiting_since) == (True, 0.0)
    segment.grant("codes", HERE, 12, 4.0)
    assert (segment.held, segment.stall_clock_runs) == (False, True)
    assert segment.waiting_since == 4.0


def test_outlet_lets_the_engine_complete_the_chunk_with_its_look_ahead() -> None:
    edge = replace(CODES, look_ahead=3)
    out = OutputEdge(edge, Delivery.STREAM, POLICY, Credit(2, [HERE]))
    assert out.limit == 4
    assert out.push(0, codes(0, 3), None) == []
    assert not out.held
    (first,) = out.push(3, codes(3, 1), None)
    assert len(first.tensors["codes"]) == 4
    assert out.held
    out.grant(HERE, 6)
    assert (out.limit, out.held) == (10, False)
    (second,) = out.push(4, codes(4, 2), None)
    assert len(second.tensors["codes"]) == 2


# -- the table's clock, slots and way out --------------------------------------------------


def test_pause_longer_than_the_stall_timeout_fails_no_stage() -> None:
    stages = TwoStages(FRAMES, WINDOWS, policy=POLICY)
    stages.run(client=False)
    stages.now += 10 * LIMITS.stall_timeout_s
    for host in (stages.talker, stages.code2wav):
        assert host.table.handle(TimePassed(), stages.now) == []
        assert host.table.next_deadline() is None
    stages.run(client=True)
    assert stages.frames_taken == FRAMES


def test_stall_clock_starts_again_when_credit_comes() -> None:
    stages = TwoStages(FRAMES, WINDOWS, policy=POLICY)
    stages.run(client=False)
    table = stages.code2wav.table
    stages.talker.sent.clear()
    stages.talker.table.handle(StreamLost("s"), 0.0)
    stages.now += 10 * LIMITS.stall_timeout_s
    while stages.code2wav.sent:
        stages.run(client=False)
        stages.listen()
    stages.run(client=False)
    assert table.handle(TimePassed(), stages.now + LIMITS.stall_timeout_s - 0.1) == []
    (end,) = (
        e
        for e in table.handle(TimePassed(), stages.now + LIMITS.stall_timeout_s)
        if isinstance(e, End)
    )
    assert end.error is not None
    assert end.error.edge == "codes"


def test_slot_is_free_when_only_the_last_audio_waits_for_credit() -> None:
    windows = {"codes": 100, "audio": 2 * SAMPLES_PER_FRAME}
    stages = TwoStages(8, windows, policy=ChunkPolicy(1, (1, 1, 1), 4))
    stages.run(client=False)
    table = stages.code2wav.table
    while table.open_segments:
        stages.listen()
        stages.run(client=False)
    assert table.open_segments == 0
    assert table.held_segments == 1
    assert stages.code2wav.ended == []
    assert table.handle(TimePassed(), 1e9) == []
    table.handle(ClientDone("s"), 0.0)
    stages.run(client=True)
    assert [type(each) for each in stages.code2wav.ended] == [Report, End]
    assert stages.frames_taken == 8


@pytest.mark.parametrize("drained", [False, True])
def test_cancel_while_held_frees_everything(drained: bool) -> None:
    frames = FRAMES if not drained else 3
    stages = TwoStages(frames, {"codes": 8, "audio": 1}, policy=POLICY)
    stages.run(client=False)
    for host in (stages.talker, stages.code2wav):
        table = host.table
        host.take(table.handle(StreamLost("s"), 0.0))
        assert isinstance(host.ended[-1], End)
        host.step()
        assert table.session_count == table.open_segments == table.held_segments == 0
        assert not host.engine.segments
        assert table.handle(Credited(KEY, "audio", Destination(), 999), 0.0) == []


def test_grant_of_another_segment_says_nothing() -> None:
    stages = TwoStages(FRAMES, WINDOWS, policy=POLICY)
    stages.run(client=False)
    other = SegmentKey("s", 1)
    assert stages.code2wav.table.handle(Credited(other, "audio", Destination(), 10_000), 0.0) == []
    assert stages.code2wav.table.held_segments == 1


def test_cancelled_segment_leaves_the_next_one_a_full_window() -> None:
    stages = TwoStages(FRAMES, WINDOWS, policy=POLICY)
    stages.run(client=False)
    table = stages.talker.table
    assert table.handle(SegmentCancelled("s", 0), 0.0) == [Release(KEY, cancelled=True)]
    turn = SegmentRequest(1, SamplingRequest(), "", frozenset({"audio"}), {}, POLICY)
    admission = table.handle(SegmentRequested("s", turn), 0.0)
    assert admission[2:] == [Limit(SegmentKey("s", 1), "codes", 12)]
    assert table.handle(Credited(KEY, "codes", Destination(DOWNSTREAM), 999), 0.0) == []


def test_grant_for_an_edge_that_is_no_output_fails_the_session() -> None:
    stages = TwoStages(FRAMES, WINDOWS, policy=POLICY)
    (*_, end) = stages.code2wav.table.handle(Credited(KEY, "video", Destination(), 9), 0.0)
    assert isinstance(end, End)
    assert isinstance(end.error, InvalidArgument)
    assert end.error.field == "credit.edge"


@pytest.mark.parametrize(("edge", "window"), [("codes", 0), ("tokens", 5)])
def test_session_is_refused_when_a_window_cannot_be_kept(edge: str, window: int) -> None:
    table = TwoStages(1, {}).talker.table
    request = SessionRequest("new", {"codes": (Destination(DOWNSTREAM),)}, 0, {edge: window})
    with pytest.raises(InvalidArgument, match=edge):
        table.handle(SessionRequested(request), 0.0)


def test_limits_follow_the_admission_and_every_grant() -> None:
    stages = TwoStages(FRAMES, WINDOWS, policy=POLICY)
    assert stages.talker.commands[1:] == [Limit(KEY, "codes", 12)]
    granted = stages.talker.table.handle(Credited(KEY, "codes", Destination(DOWNSTREAM), 20), 0.0)
    assert granted == [Limit(KEY, "codes", 22)]
