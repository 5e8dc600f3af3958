"""Random interleavings of everything that can happen to sessions: the table's laws hold."""

from __future__ import annotations

from collections import Counter

import numpy as np
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from antiphon.errors import AntiphonError, Internal
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import Completed, Emitted, EngineEvent, Failed
from antiphon.runtime.session.facts import (
    ChunkArrived,
    ClientDone,
    EngineStepped,
    LinkLost,
    SegmentCancelled,
    SegmentRequested,
    SegmentStatus,
    SessionRequested,
    StreamLost,
    TimePassed,
)
from antiphon.runtime.session.inbox import CHUNK_BYTES
from antiphon.runtime.session.instructions import (
    Admit,
    Destination,
    End,
    Feed,
    Instruction,
    Release,
    Report,
    Send,
)
from antiphon.runtime.session.plan import SegmentRequest, SessionRequest, StageLimits, StagePlan
from antiphon.runtime.session.states import State
from antiphon.runtime.session.table import SessionTable
from antiphon.values.chunk import Chunk
from antiphon.values.sampling import SamplingRequest
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_testkit.qwen3_omni.fake_engine import NEUTRAL_SAMPLING

NAMES = ("a", "b", "c")
LIMITS = StageLimits(
    slots=2,
    stall_timeout_s=5.0,
    hold_timeout_s=3.0,
    hold_bytes=8 * CHUNK_BYTES,
    idle_session_timeout_s=20.0,
)
names = st.sampled_from(NAMES)


class Table(RuleBasedStateMachine):
    """Plays client, link, engine and clock at once, and keeps the engine's books."""

    @initialize()
    def start(self) -> None:
        self.table = SessionTable(StagePlan.of(PIPELINE, "code2wav", NEUTRAL_SAMPLING, LIMITS))
        self.now = 0.0
        self.admitted: set[SegmentKey] = set()
        self.seen: set[SegmentKey] = set()
        self.fed: Counter[SegmentKey] = Counter()
        self.opened: set[str] = set()
        self.ended: set[str] = set()
        self.sent: dict[tuple[str, str], int] = {}
        self.sequence: Counter[str] = Counter()
        self.cancelled: set[SegmentKey] = set()
        self.reported: set[SegmentKey] = set()

    def take(self, instructions: list[Instruction]) -> None:
        for each in instructions:
            match each:
                case Admit(key):
                    assert key not in self.seen, "a key is admitted once"
                    self.admitted.add(key)
                    self.seen.add(key)
                case Feed(key):
                    assert key in self.admitted, "only admitted segments are fed"
                    self.fed[key] += 1
                case Release(key, cancelled):
                    assert key in self.admitted, "only admitted segments are released"
                    self.admitted.remove(key)
                    if cancelled:
                        self.cancelled.add(key)
                case Report(key):
                    assert key not in self.cancelled, "what is cancelled is reported when free"
                    assert key not in self.reported, "a segment is reported once"
                    assert key.session_id not in self.ended, "nothing after the end"
                    self.reported.add(key)
                case Send(_, chunk):
                    at = (chunk.session_id, chunk.edge)
                    assert chunk.sequence == self.sent.get(at, 0), "numbers have no gap"
                    self.sent[at] = chunk.sequence + 1
                    assert chunk.session_id not in self.ended, "nothing after the end"
                case End(session_id):
                    assert session_id not in self.ended, "a session ends once"
                    self.ended.add(session_id)

    @rule(name=names)
    def open(self, name: str) -> None:
        request = SessionRequest(name, {"audio": (Destination(),)})
        try:
            self.take(self.table.handle(SessionRequested(request), self.now))
            self.opened.add(name)
        except AntiphonError:
            assert name in self.opened or self.table.state(name) is None

    @rule(name=names, number=st.integers(0, 2), deadline_s=st.sampled_from([0.0, 0.0, 3.0]))
    def open_segment(self, name: str, number: int, deadline_s: float) -> None:
        request = SegmentRequest(
            number, SamplingRequest(), "", frozenset({"audio"}), {}, deadline_s=deadline_s
        )
        self.take(self.table.handle(SegmentRequested(name, request), self.now))

    @rule(name=names, number=st.integers(0, 2), skip=st.integers(0, 8), end=st.booleans())
    def chunk(self, name: str, number: int, skip: int, end: bool) -> None:
        sequence = self.sequence[name] + (1 if skip == 8 else 0)
        self.sequence[name] += 1
        chunk = Chunk(
            name,
            "codes",
            segment=number,
            sequence=sequence,
            tensors={"codes": np.zeros((1, 2), np.uint16)},
            segment_finished=end,
            finish_reason=FinishReason.STOP if end else None,
        )
        self.take(self.table.handle(ChunkArrived(chunk, "link"), self.now))

    @rule(name=names, number=st.integers(0, 2))
    def cancel(self, name: str, number: int) -> None:
        self.take(self.table.handle(SegmentCancelled(name, number), self.now))

    @rule()
    def release_cancelled(self) -> None:
        freed, self.cancelled = self.cancelled, set()
        told = tuple(Completed(key, FinishReason.CANCELLED, 0, 0) for key in sorted(freed))
        waiting = {key for key in freed if self.table.state(key.session_id) is not None}
        self.take(self.table.handle(EngineStepped(released=told), self.now))
        assert waiting <= self.reported, "what the engine has released is reported"

    @rule(name=names)
    def client_done(self, name: str) -> None:
        self.take(self.table.handle(ClientDone(name), 0.0))

    @rule(name=names)
    def stream_lost(self, name: str) -> None:
        self.take(self.table.handle(StreamLost(name), 0.0))
        assert self.table.state(name) is None

    @rule(seconds=st.sampled_from([3.0, 5.0, 20.0]) | st.floats(0, 4))
    def pass_time(self, seconds: float) -> None:
        self.now += seconds
        due = self.table.next_deadline()
        done = self.table.handle(TimePassed(), self.now)
        assert not done or (due is not None and due <= self.now), "it is woken to do something"
        left = self.table.next_deadline()
        assert left is None or left > self.now, "it leaves nothing that is due"
        self.take(done)

    @rule()
    def lose_link(self) -> None:
        self.take(self.table.handle(LinkLost("link"), 0.0))

    @rule(
        name=names,
        number=st.integers(0, 2),
        what=st.sampled_from(["emit", "finish", "fail"]),
        awaited=st.sampled_from([None, "codes"]),
    )
    def engine(self, name: str, number: int, what: str, awaited: str | None) -> None:
        key = SegmentKey(name, number)
        events: list[EngineEvent] = []
        if what == "emit":
            events = [Emitted(key, "audio", 0, {})]
        elif what == "finish":
            events = [
                Emitted(key, "audio", 0, {}, FinishReason.STOP),
                Completed(key, FinishReason.STOP, 1, 0),
            ]
        else:
            events = [Failed(key, Internal("broken"))]
        standing = {key: SegmentStatus(awaited, self.fed[key])}
        self.take(self.table.handle(EngineStepped(events, standing), self.now))

    @invariant()
    def books_agree(self) -> None:
        if not hasattr(self, "table"):
            return
        assert self.table.open_segments == len(self.admitted) <= LIMITS.slots
        assert self.table.held_bytes <= LIMITS.hold_bytes
        assert {key.session_id for key in self.admitted}.isdisjoint(self.ended)
        deadline = self.table.next_deadline()
        assert deadline is None or deadline > self.now, "nothing is overdue"
        states = {self.table.state(name) for name in NAMES}
        assert deadline is not None or states <= {None, State.OPEN}, "all else has a clock"
        assert deadline is None or deadline <= self.now + LIMITS.idle_session_timeout_s

    def teardown(self) -> None:
        for name in NAMES:
            self.take(self.table.handle(StreamLost(name), 0.0))
        assert not self.admitted


TestTable = Table.TestCase
TestTable.settings = settings(max_examples=150, stateful_step_count=40)
