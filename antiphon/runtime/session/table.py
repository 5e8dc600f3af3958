"""The session table, which owns all sessions of a stage and turns facts into instructions.

`handle` is called with a fact and the time, and it returns instructions. It has no side effects, so
the same facts at the same times always result in the same instructions. The whole loop is described
in the package docstring.

Invariants:

* Every session ends once, in `LiveSessions.end`. This releases the open segment, closes the stream
  of the session and remembers its ID, so that late chunks are rejected.
* A chunk reaches the engine in order, exactly once, and only if its segment has been admitted.
  Chunks of a later segment are held, up to a limit. Chunks of an earlier segment are dropped.
  Chunks of an unknown session are held, up to a limit, and then rejected.
* The stall clock only runs while an open segment is waiting for input. Its error names the edge.
  The clock stops while output is waiting for credit, because no input is due during that time.
* A segment has a slot while it is in the engine. Any output that remains after that waits for
  credit without a slot.
* A fault ends only the session in which it occurs. Unexpected exceptions become `Internal` and are
  reported so that they can be logged.
* The cost of handling a fact is proportional to the number of sessions that it affects. Only the
  loss of the engine or of a link affects all of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from antiphon.errors import (
    AntiphonError,
    Cancelled,
    DeadlineExceeded,
    FailedPrecondition,
    ResourceExhausted,
    Unavailable,
)
from antiphon.runtime.engine import Advanced, Completed, Emitted, EngineEvent, Failed
from antiphon.runtime.session import facts
from antiphon.runtime.session.facts import Fact
from antiphon.runtime.session.inbox import EarlyChunks
from antiphon.runtime.session.instructions import Destination, Instruction, Opened, Suspended
from antiphon.runtime.session.live_sessions import LiveSessions, TellFault
from antiphon.runtime.session.output_edge import CLOCK_S
from antiphon.runtime.session.plan import StagePlan
from antiphon.runtime.session.session import LiveSession
from antiphon.runtime.session.states import Event, State
from antiphon.runtime.session.tally import Outcome, Tally
from antiphon.values.chunk import MAX_NAME


class SessionTable:
    """All sessions on one stage."""

    def __init__(self, plan: StagePlan, report: TellFault | None = None) -> None:
        self._plan = plan
        self._tally = Tally()
        self._holding = EarlyChunks(
            limit_bytes=plan.limits.hold_bytes, timeout_s=plan.limits.hold_timeout_s
        )
        self._sessions = LiveSessions(plan, self._holding, report)
        self._handlers: dict[type[Fact], Callable[[Any, float], list[Instruction]]] = {
            facts.SessionRequested: self._open,
            facts.SegmentRequested: self._open_segment,
            facts.InputFinished: self._finish_input,
            facts.SegmentCancelled: self._cancel_segment,
            facts.ClientDone: self._client_done,
            facts.StreamLost: self._stream_lost,
            facts.SessionFaulted: self._fail,
            facts.ChunkArrived: self._take_chunk,
            facts.ChunkMalformed: self._refuse_chunk,
            facts.Credited: self._credit,
            facts.UpstreamProgressed: self._note_progress,
            facts.ProducerGone: self._miss_producer,
            facts.LinkSuspended: self._suspend_link,
            facts.LinkLost: self._lose_link,
            facts.ChunksRefused: self._refused,
            facts.DestinationSuspended: self._suspend_target,
            facts.DestinationLost: self._lose_target,
            facts.EngineStepped: self._take_step,
            facts.EngineLost: self._lose_engine,
            facts.DrainBegun: self._begin_drain,
            facts.TimePassed: self._pass_time,
        }

    def handle(self, fact: Fact, now: float) -> list[Instruction]:
        """Return the instructions that result from a fact.

        Only `SessionRequested` raises errors. It raises `FailedPrecondition` if the ID has been
        used before, `InvalidArgument` if a route starts at an unknown edge, and `ResourceExhausted`
        if there are already `max_sessions` sessions. If chunks arrived early, it also raises any
        error that was found in them. All other errors end the session in which they occur.
        """
        self._tally.stalls.now = now
        return self._handlers[type(fact)](fact, now)

    def next_deadline(self) -> float | None:
        """Return the next time at which `TimePassed` should be passed, or None if there are no
        deadlines.
        """
        first, expiry = self._sessions.deadlines.next(), self._holding.next_expiry
        return expiry if first is None or (expiry is not None and expiry < first) else first

    # -- client -----------------------------------------------------------------------

    def _open(self, fact: facts.SessionRequested, now: float) -> list[Instruction]:
        session_id = fact.request.session_id
        if (fault := self._holding.fault(session_id)) is not None:
            raise fault
        if session_id in self._sessions.by_id or self._holding.is_closed(session_id):
            raise FailedPrecondition(f"session {session_id} was already opened")
        most = self._plan.limits.max_sessions
        if len(self._sessions.by_id) >= most:
            self._tally.sessions_refused += 1
            raise ResourceExhausted(
                f"{self._plan.role}: {most} sessions are registered, which is the maximum "
                "(sessions.max_sessions)",
                retry_after_s=1.0,
            )
        rooms = self._sessions.no_slot, self._sessions.leaving
        session = LiveSession(fact.request, self._plan, self._tally, *rooms, now)
        self._sessions.add(session)
        done: list[Instruction] = [Opened(session_id)]
        for arrival in self._holding.take(session_id):
            done += self._take_chunk(arrival, now)
        return done

    def _open_segment(self, fact: facts.SegmentRequested, now: float) -> list[Instruction]:
        """Open a segment in a free slot. A live segment doesn't need a slot at this point."""

        def act(session: LiveSession) -> list[Instruction]:
            try:
                return session.open_segment(fact.request, now)
            except AntiphonError as error:
                if session.segment is None:
                    self._tally.ended(Outcome.REFUSED, error)
                raise

        return self._sessions.act(fact.session_id, act)

    def _finish_input(self, fact: facts.InputFinished, now: float) -> list[Instruction]:
        def act(session: LiveSession) -> list[Instruction]:
            done = session.input_finished(fact.segment, now)
            return [*done, *self._sessions.end_if_done(session)]

        return self._sessions.act(fact.session_id, act)

    def _cancel_segment(self, fact: facts.SegmentCancelled, now: float) -> list[Instruction]:
        def act(session: LiveSession) -> list[Instruction]:
            done = session.cancel_segment(fact.segment, now)
            return [*done, *self._sessions.end_if_done(session)]

        return self._sessions.act(fact.session_id, act)

    def _client_done(self, fact: facts.ClientDone, now: float) -> list[Instruction]:
        def act(session: LiveSession) -> list[Instruction]:
            session.client_done = True
            return self._sessions.end_if_done(session)

        return self._sessions.act(fact.session_id, act)

    def _stream_lost(self, fact: facts.StreamLost, now: float) -> list[Instruction]:
        session = self._sessions.by_id.get(fact.session_id)
        return self._sessions.end(session, Event.STREAM_LOST, None) if session else []

    def _refused(self, fact: facts.ChunksRefused, now: float) -> list[Instruction]:
        """End a session because a downstream stage rejects its chunks. If the session has already
        ended on that stage, nothing is done.

        In that case, the downstream stage reports the reason to the client itself. If this stage
        sent a report as well, it might arrive first and blame the wrong stage.
        """
        if isinstance(fact.error, Cancelled):
            return []
        return self._fail(fact, now)

    def _fail(
        self, fact: facts.SessionFaulted | facts.ChunksRefused, now: float
    ) -> list[Instruction]:
        session = self._sessions.by_id.get(fact.session_id)
        return self._sessions.end(session, Event.FAULT, fact.error) if session else []

    def _note_progress(self, fact: facts.UpstreamProgressed, now: float) -> list[Instruction]:
        if (session := self._sessions.with_segment(fact.key)) is not None:
            session.upstream_progressed(now)
        return []

    def _miss_producer(self, fact: facts.ProducerGone, now: float) -> list[Instruction]:
        """Fail a session that hasn't received anything from a producer that was lost. Without a
        chunk, there is no link whose loss could be noticed.
        """
        session, producer = self._sessions.with_segment(fact.key), fact.producer
        edge = session.unlinked_input(producer) if session is not None else None
        if session is None or edge is None:
            return []
        error = Unavailable(
            f"{self._plan.role}: {producer} was lost before it sent anything on {edge}",
            stage=producer,
            edge=edge,
        )
        return self._sessions.end(session, Event.FAULT, error)

    def _credit(self, fact: facts.Credited, now: float) -> list[Instruction]:
        def act(session: LiveSession) -> list[Instruction]:
            done = session.credited(fact, now)
            return [*done, *self._sessions.end_if_done(session)]

        return self._sessions.act(fact.key.session_id, act)

    # -- links ---------------------------------------------------------------------------

    def _take_chunk(self, fact: facts.ChunkArrived, now: float) -> list[Instruction]:
        session_id = fact.chunk.session_id
        if session_id in self._sessions.by_id:

            def act(session: LiveSession) -> list[Instruction]:
                done = session.chunk_arrived(fact, now)
                return [*done, *self._sessions.end_if_done(session)]

            return self._sessions.act(session_id, act)
        if self._holding.is_closed(session_id):
            return [fact.refusal(Cancelled(f"session {session_id} has ended"))]
        try:
            self._holding.hold(fact, now)
        except ResourceExhausted as error:
            return [fact.refusal(error)]
        return []

    def _refuse_chunk(self, fact: facts.ChunkMalformed, now: float) -> list[Instruction]:
        """Fail the chunk's session. If the session isn't open yet, it fails as soon as it is
        opened.
        """
        session_id = fact.session_id
        if (session := self._sessions.by_id.get(session_id)) is not None:
            return self._sessions.end(session, Event.FAULT, fact.error)
        if len(session_id) <= MAX_NAME and not self._holding.is_closed(session_id):
            self._holding.close(session_id, fact.error)
        return []

    def _lose_link(self, fact: facts.LinkLost, now: float) -> list[Instruction]:
        """Fail all sessions that still need input from this link."""
        done: list[Instruction] = []
        for session in self._sessions:
            edge = session.awaits_link(fact.link_id)
            if edge is not None:
                producer = self._plan.inputs[edge].producer
                error = Unavailable(
                    f"{self._plan.role}: the link from {producer} was lost while {edge} was open",
                    stage=producer,
                    edge=edge,
                )
                done += self._sessions.end(session, Event.FAULT, error)
        return done

    def _suspend_link(self, fact: facts.LinkSuspended, now: float) -> list[Instruction]:
        return self._suspended(fact.address, lambda session: session.awaits_link(fact.link_id))

    def _suspend_target(self, fact: facts.DestinationSuspended, now: float) -> list[Instruction]:
        target = Destination(fact.address, fact.boot_id)
        return self._suspended(fact.address, lambda session: session.edge_to(target))

    def _suspended(
        self, address: str, edge_of: Callable[[LiveSession], str | None]
    ) -> list[Instruction]:
        """Notify all sessions that use the link for one of their edges."""
        needs = ((each.session_id, edge_of(each)) for each in self._sessions)
        return [Suspended(name, edge, address) for name, edge in needs if edge is not None]

    def _lose_target(self, fact: facts.DestinationLost, now: float) -> list[Instruction]:
        """Fail all sessions that send to the process, or that have sent chunks which it hasn't
        acknowledged.
        """
        done: list[Instruction] = []
        target = Destination(fact.address, fact.boot_id)
        for session in self._sessions:
            lost = session.session_id in fact.unacknowledged
            if lost or session.edge_to(target) is not None:
                done += self._sessions.end(session, Event.FAULT, fact.error)
        return done

    # -- engine ----------------------------------------------------------------------------

    def _take_step(self, fact: facts.EngineStepped, now: float) -> list[Instruction]:
        done: list[Instruction] = []
        touched: dict[str, LiveSession] = {}
        self._tally.stepped(fact.step_s, fact.step_segments)
        for event in fact.events:
            if (session := self._sessions.with_segment(event.key)) is not None:
                done += self._sessions.guard(session, self._take_event, event, fact, now)
                touched[session.session_id] = session
        for key, standing in fact.standing.items():
            if (session := self._sessions.with_segment(key)) is not None:
                note = partial(LiveSession.note_standing, worked_on=key in fact.worked_on)
                done += self._sessions.guard(session, note, standing, now)
                touched[session.session_id] = session
        for cost in fact.released:
            if (session := self._sessions.by_id.get(cost.key.session_id)) is not None:
                busy_s = fact.busy_s.get(cost.key, 0.0)
                done += self._sessions.guard(session, LiveSession.released, cost, busy_s)
                done += self._sessions.end_if_done(session)
                touched[session.session_id] = session
        self._sessions.note_deadlines(touched.values())
        if fact.error is not None:
            done += self._lose_engine(facts.EngineLost(fact.error), now)
        return done

    def _take_event(
        self, session: LiveSession, event: EngineEvent, fact: facts.EngineStepped, now: float
    ) -> list[Instruction]:
        match event:
            case Emitted():
                done = session.emit(event, now)
                return done + session.progress(now) if event.key in fact.worked_on else done
            case Advanced():
                return session.advanced(event, now)
            case Completed():
                busy_s = fact.busy_s.get(event.key, 0.0)
                return [*session.complete(event, busy_s, now), *self._sessions.end_if_done(session)]
            case Failed():
                return self._sessions.end(session, Event.FAULT, event.error)

    def _lose_engine(self, fact: facts.EngineLost, now: float) -> list[Instruction]:
        """Fail every session."""
        return [
            instruction
            for session in self._sessions
            for instruction in self._sessions.end(session, Event.FAULT, fact.error)
        ]

    # -- time --------------------------------------------------------------------------------

    def _begin_drain(self, fact: facts.DrainBegun, now: float) -> list[Instruction]:
        self._sessions.draining = True
        return []

    def _pass_time(self, fact: facts.TimePassed, now: float) -> list[Instruction]:
        """Send paced output that is due. Fail sessions whose deadline has expired, whose input has
        stalled, or that weren't opened in time.
        """

        def act(session: LiveSession) -> list[Instruction]:
            sent = session.send_due(now)
            if (error := session.clocks.lateness(session.segment, now)) is None:
                return sent
            return [*sent, *self._sessions.end(session, Event.FAULT, error)]

        done: list[Instruction] = []
        for session_id in self._sessions.deadlines.due(now + CLOCK_S):
            done += self._sessions.act(session_id, act)
        for session_id, arrivals in self._holding.expired(now):
            late = DeadlineExceeded(
                f"{self._plan.role}: session {session_id} was not opened within "
                f"{self._plan.limits.hold_timeout_s:g} s of its first chunk"
            )
            self._holding.close(session_id, late)
            done.append(arrivals[0].refusal(late))
        return done

    # -- observation ---------------------------------------------------------------------------

    @property
    def open_segments(self) -> int:
        """The number of slots that are in use."""
        return sum(segment.in_engine for segment in self._sessions.segments())

    @property
    def held_segments(self) -> int:
        """The number of segments whose output is waiting for credit. These segments don't take part
        in engine steps.
        """
        return sum(segment.held for segment in self._sessions.segments())

    @property
    def tally(self) -> Tally:
        """The counters since the stage started. They must not be modified."""
        return self._tally

    @property
    def session_count(self) -> int:
        """The number of live sessions."""
        return len(self._sessions.by_id)

    @property
    def held_bytes(self) -> int:
        """The total size in bytes of all chunks that are held for sessions that aren't open yet."""
        return self._holding.held_bytes

    def state(self, session_id: str) -> State | None:
        """Return a session's state, or None if the session isn't live."""
        session = self._sessions.by_id.get(session_id)
        return session.state if session else None
