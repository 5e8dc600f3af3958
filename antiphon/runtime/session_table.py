"""The sole owner of a stage's sessions: facts in, instructions out.

The table is pure: the time is an argument, and what it wants done it returns.
Laws it keeps:

* Every session leaves through `_end`, once: it releases the open segment, tells
  the session's stream, and remembers the id so that late chunks are refused.
* A chunk reaches the engine in order, exactly once, and only for an admitted
  segment. Chunks of a later segment wait, bounded; chunks of an earlier one are
  dropped; chunks of an unknown session are held, bounded, then refused.
* The stall clock runs only while an open segment waits for input, and names the
  edge that it waited for. It stands while output waits for credit: then the input
  is not missed.
* A slot is taken for as long as the engine has the segment; what has yet to leave
  when the engine is done waits for credit without one.
* A fault ends the session it is about and no other, whatever was raised. What nobody
  expected becomes an `Internal`, and `report` hears of it.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from functools import partial

from antiphon.chunk import MAX_NAME
from antiphon.errors import (
    AntiphonError,
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    ResourceExhausted,
    Unavailable,
    unexpected,
)
from antiphon.runtime.engine import Completed, Emitted, EngineEvent, Failed
from antiphon.runtime.inbox import Arrival, Holding
from antiphon.runtime.instructions import (
    Destination,
    End,
    Instruction,
    Opened,
    Refuse,
    Suspended,
)
from antiphon.runtime.live_session import LiveSession
from antiphon.runtime.plan import SegmentRequest, SessionRequest, StagePlan
from antiphon.runtime.segment import Segment
from antiphon.runtime.session import OPEN, Event, State
from antiphon.runtime.tally import Outcome, Tally
from antiphon.segment import SegmentKey


class SessionTable:
    """All sessions of one stage. `report` is told of exceptions that nobody expected, with
    the session's id."""

    def __init__(
        self, plan: StagePlan, report: Callable[[str, Exception], None] | None = None
    ) -> None:
        self._plan = plan
        self._report = report
        self._sessions: dict[str, LiveSession] = {}
        self._tally = Tally()
        self._holding = Holding(
            limit_bytes=plan.limits.hold_bytes, timeout_s=plan.limits.hold_timeout_s
        )

    # -- what the client says ----------------------------------------------------------

    def open(self, request: SessionRequest, now: float) -> list[Instruction]:
        """Register a session and deliver what was held for it.

        Raises `FailedPrecondition` for an id that was used before, `InvalidArgument`
        for a route from an edge that the stage does not have, `ResourceExhausted` when
        there are too many, and what was wrong with a chunk that came before.
        """
        session_id = request.session_id
        if (fault := self._holding.fault(session_id)) is not None:
            raise fault
        if session_id in self._sessions or self._holding.is_closed(session_id):
            raise FailedPrecondition(f"session {session_id} was opened before")
        most = self._plan.limits.max_sessions
        if len(self._sessions) >= most:
            raise ResourceExhausted(
                f"{self._plan.role}: {most} sessions are registered, no more may be (max_sessions)",
                retry_after_s=1.0,
            )
        self._sessions[session_id] = LiveSession(request, self._plan, self._tally, now)
        done: list[Instruction] = [Opened(session_id)]
        for arrival in self._holding.take(session_id):
            done += self.chunk_arrived(arrival, now)
        return done

    def open_segment(
        self, session_id: str, request: SegmentRequest, now: float
    ) -> list[Instruction]:
        """Open a turn in a free slot."""

        def act(session: LiveSession) -> list[Instruction]:
            try:
                self._check_slots()
                return session.open_segment(request, now)
            except AntiphonError as error:
                if session.segment is None:
                    self._tally.ended(Outcome.REFUSED, error)
                raise

        return self._on(session_id, act)

    def input_finished(self, session_id: str, segment: int, now: float) -> list[Instruction]:
        """The client sends no more input for the turn."""
        return self._on(session_id, lambda session: session.input_finished(segment, now))

    def cancel_segment(self, session_id: str, segment: int, now: float) -> list[Instruction]:
        """End a turn at once; the session stays and may open another."""

        def act(session: LiveSession) -> list[Instruction]:
            is_open = session.segment is not None and session.segment.key.segment == segment
            if not is_open:
                return []
            return [*session.park(Outcome.CANCELLED, now), *self._end_if_done(session)]

        return self._on(session_id, act)

    def client_done(self, session_id: str) -> list[Instruction]:
        """The client has closed its side: the session ends after its open segment."""

        def act(session: LiveSession) -> list[Instruction]:
            session.client_done = True
            return self._end_if_done(session)

        return self._on(session_id, act)

    def stream_lost(self, session_id: str) -> list[Instruction]:
        """The session's stream is gone: the client cancelled, or died."""
        session = self._sessions.get(session_id)
        return self._end(session, Event.STREAM_LOST, None) if session else []

    def fail(self, session_id: str, error: AntiphonError) -> list[Instruction]:
        """End a session with an error that was found elsewhere."""
        session = self._sessions.get(session_id)
        return self._end(session, Event.FAULT, error) if session else []

    def upstream_progressed(self, key: SegmentKey, now: float) -> None:
        """A stage before this one works on the segment."""
        if (session := self._with_segment(key)) is not None:
            session.upstream_progressed(now)

    def credited(
        self, key: SegmentKey, edge: str, destination: Destination, positions: int, now: float
    ) -> list[Instruction]:
        """A destination takes more of an output: up to `positions` in all, of that segment."""

        def act(session: LiveSession) -> list[Instruction]:
            done = session.credited(key, edge, destination, positions, now)
            return [*done, *self._end_if_done(session)]

        return self._on(key.session_id, act)

    # -- what links bring ----------------------------------------------------------------

    def chunk_arrived(self, arrival: Arrival, now: float) -> list[Instruction]:
        """A chunk came, on a link or on the session's own stream."""
        session_id = arrival.chunk.session_id
        if session_id in self._sessions:
            return self._on(session_id, lambda session: session.chunk_arrived(arrival, now))
        if self._holding.is_closed(session_id):
            return [_refusal(arrival, Cancelled(f"session {session_id} has ended"))]
        try:
            self._holding.hold(arrival, now)
        except ResourceExhausted as error:
            return [_refusal(arrival, error)]
        return []

    def chunk_malformed(self, session_id: str, error: AntiphonError) -> list[Instruction]:
        """A chunk came on a link and cannot be read: its session fails, now or as it opens."""
        if session_id in self._sessions:
            return self.fail(session_id, error)
        if len(session_id) <= MAX_NAME and not self._holding.is_closed(session_id):
            self._holding.close(session_id, error)
        return []

    def link_lost(self, link_id: str) -> list[Instruction]:
        """An upstream process is gone: sessions that still need its edges fail."""
        done: list[Instruction] = []
        for session in list(self._sessions.values()):
            edge = session.awaits_link(link_id)
            if edge is not None:
                producer = self._plan.inputs[edge].producer
                error = Unavailable(
                    f"{self._plan.role}: the link from {producer} was lost while {edge} was open",
                    stage=producer,
                    edge=edge,
                )
                done += self._end(session, Event.FAULT, error)
        return done

    def link_suspended(self, link_id: str, address: str) -> list[Instruction]:
        """The link from an upstream process broke: say so to the sessions that need it."""
        return [
            Suspended(session.session_id, edge, address)
            for session in self._sessions.values()
            if (edge := session.awaits_link(link_id)) is not None
        ]

    def destination_suspended(self, address: str) -> list[Instruction]:
        """The link to a downstream process broke: say so to the sessions that need it."""
        return [
            Suspended(session.session_id, edge, address)
            for session in self._sessions.values()
            if (edge := session.edge_to(address)) is not None
        ]

    def destination_lost(
        self, address: str, error: AntiphonError, unacknowledged: Collection[str] = ()
    ) -> list[Instruction]:
        """A downstream process cannot be reached: sessions that send to it, or whose chunks it
        has not acknowledged, fail."""
        done: list[Instruction] = []
        for session in list(self._sessions.values()):
            if session.session_id in unacknowledged or session.edge_to(address) is not None:
                done += self._end(session, Event.FAULT, error)
        return done

    # -- what the engine says --------------------------------------------------------------

    def engine_stepped(
        self,
        events: Iterable[EngineEvent],
        awaited: Mapping[SegmentKey, str | None],
        busy_s: Mapping[SegmentKey, float],
        now: float,
        accepted: Mapping[SegmentKey, int] | None = None,
        moved_up: frozenset[SegmentKey] = frozenset(),
    ) -> list[Instruction]:
        """Results of a step, and what each touched segment waits for now.

        `accepted` is how many chunks the engine had been given of each; see `EngineBatch`.
        """
        done: list[Instruction] = []
        self._tally.stepped(busy_s)
        for key, seconds in busy_s.items():
            if (session := self._with_segment(key)) and session.segment:
                session.segment.note_busy(seconds)
        for event in events:
            if self._with_segment(event.key) is not None:
                done += self._on(event.key.session_id, partial(self._take, event, now))
        for key, edge in awaited.items():
            if self._with_segment(key) is not None:
                note = partial(LiveSession.note_awaited, edge=edge, now=now)
                known = (accepted or {}).get(key, 0)
                act = partial(note, accepted=known, worked_on=key in busy_s or key in moved_up)
                done += self._on(key.session_id, act)
        return done

    def engine_lost(self, error: AntiphonError) -> list[Instruction]:
        """The engine's state is unknown: every session fails."""
        return [
            instruction
            for session in list(self._sessions.values())
            for instruction in self._end(session, Event.FAULT, error)
        ]

    # -- time --------------------------------------------------------------------------------

    def next_deadline(self) -> float | None:
        """When `tick` will next have something to do; None: not until something happens."""
        moments = [moment for each in self._sessions.values() for moment in each.deadlines()]
        expiry = self._holding.next_expiry()
        return min(moments if expiry is None else [*moments, expiry], default=None)

    def tick(self, now: float) -> list[Instruction]:
        """Send what has waited for its pace; fail what is late: deadlines, stalls, chunks
        whose session was never opened."""
        done: list[Instruction] = []
        for session_id in list(self._sessions):
            done += self._on(session_id, lambda session: session.send_due(now))
            done += self._on(session_id, lambda session: self._end_if_late(session, now))
        for session_id, arrivals in self._holding.expired(now):
            late = DeadlineExceeded(
                f"{self._plan.role}: session {session_id} was not opened within "
                f"{self._plan.limits.hold_timeout_s:g} s of its first chunk"
            )
            done.append(_refusal(arrivals[0], late))
        return done

    # -- observation ---------------------------------------------------------------------------

    @property
    def open_segments(self) -> int:
        """Slots in use."""
        return sum(segment.in_engine for segment in self._segments())

    @property
    def held_segments(self) -> int:
        """Segments whose output waits for credit; they cost no steps."""
        return sum(segment.held for segment in self._segments())

    @property
    def output_positions(self) -> Mapping[str, int]:
        """Positions that the engine has made since the start, by edge."""
        return self._tally.positions

    @property
    def tally(self) -> Tally:
        """What was counted since the start; others only read it."""
        return self._tally

    @property
    def session_count(self) -> int:
        """Sessions that have not ended."""
        return len(self._sessions)

    @property
    def held_bytes(self) -> int:
        """Bytes of chunks that wait for their session to be opened."""
        return self._holding.held_bytes

    def state(self, session_id: str) -> State | None:
        """Where a session stands; None when it is not here."""
        session = self._sessions.get(session_id)
        return session.state if session else None

    # -- inside ----------------------------------------------------------------------------------

    def _on(
        self, session_id: str, act: Callable[[LiveSession], list[Instruction]]
    ) -> list[Instruction]:
        """Act on a session if it is here; a fault ends it."""
        session = self._sessions.get(session_id)
        if session is None:
            return []
        try:
            return act(session)
        except AntiphonError as error:
            return self._end(session, Event.FAULT, error)
        except Exception as error:
            if self._report is not None:
                self._report(session_id, error)
            return self._end(session, Event.FAULT, unexpected(error))

    def _take(self, event: EngineEvent, now: float, session: LiveSession) -> list[Instruction]:
        match event:
            case Emitted():
                self._count(event)
                return session.emit(event, now)
            case Completed():
                return [*session.complete(event, now), *self._end_if_done(session)]
            case Failed():
                return self._end(session, Event.FAULT, event.error)

    def _end_if_late(self, session: LiveSession, now: float) -> list[Instruction]:
        error = session.lateness(now)
        return [] if error is None else self._end(session, Event.FAULT, error)

    def _count(self, event: Emitted) -> None:
        edge = self._plan.outputs.get(event.edge)
        if edge is not None:
            self._tally.positions[edge.name] += len(event.tensors.get(edge.counted_by, ()))

    def _check_slots(self) -> None:
        slots = self._plan.limits.slots
        if self.open_segments >= slots:
            raise ResourceExhausted(
                f"{self._plan.role}: all {slots} slots are taken", retry_after_s=1.0
            )

    def _segments(self) -> Iterator[Segment]:
        return (each.segment for each in self._sessions.values() if each.segment is not None)

    def _with_segment(self, key: SegmentKey) -> LiveSession | None:
        """The session whose open segment has this key."""
        session = self._sessions.get(key.session_id)
        is_open = session is not None and session.segment is not None and session.segment.key == key
        return session if is_open else None

    def _end_if_done(self, session: LiveSession) -> list[Instruction]:
        if not session.client_done or session.state in OPEN:
            return []
        return self._end(session, Event.CLIENT_DONE, None)

    def _end(
        self, session: LiveSession, event: Event, error: AntiphonError | None
    ) -> list[Instruction]:
        """The one way out."""
        if error is not None:
            error.stage = error.stage or self._plan.role
        outcome = Outcome.CANCELLED if error is None else Outcome.FAILED
        # First of all: nothing that is raised below may keep it here.
        self._sessions.pop(session.session_id, None)
        self._holding.close(session.session_id)
        done = session.drop_segment(outcome, error)
        session.become(event)
        return [*done, End(session.session_id, error)]


def _refusal(arrival: Arrival, error: AntiphonError) -> Refuse:
    chunk = arrival.chunk
    return Refuse(arrival.link_id, chunk.session_id, chunk.edge, chunk.attempt, error)
