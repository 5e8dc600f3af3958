"""The live sessions of a stage and their deadlines. Sessions are ended only in this module, by a
single function.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from antiphon.errors import AntiphonError, ResourceExhausted, Unavailable, unexpected
from antiphon.runtime.session.deadlines import Deadlines
from antiphon.runtime.session.inbox import EarlyChunks
from antiphon.runtime.session.instructions import End, Instruction
from antiphon.runtime.session.open_segment import Segment
from antiphon.runtime.session.plan import StagePlan
from antiphon.runtime.session.session import LiveSession
from antiphon.runtime.session.states import Event, State
from antiphon.runtime.session.tally import Outcome
from antiphon.values.segment import SegmentKey

TellFault = Callable[[str, Exception], None]
"""A callback for unexpected exceptions in a session. It receives the session's ID and the
exception.
"""


class LiveSessions:
    """All sessions that haven't ended.

    `by_id` must not be modified from outside this class. `holding` remembers the IDs of sessions
    that have ended. While the stage is `draining`, sessions that have already had a segment can't
    open another one.
    """

    def __init__(self, plan: StagePlan, holding: EarlyChunks, report: TellFault | None) -> None:
        self._plan = plan
        self._holding = holding
        self._report = report
        self._by_id: dict[str, LiveSession] = {}
        self.by_id: Mapping[str, LiveSession] = self._by_id
        self.deadlines = Deadlines()
        self.draining = False

    def __iter__(self) -> Iterator[LiveSession]:
        return iter(tuple(self._by_id.values()))

    def add(self, session: LiveSession) -> None:
        """Register a session and its first deadline."""
        self._by_id[session.session_id] = session
        self.note_deadlines([session])

    def note_deadlines(self, sessions: Iterable[LiveSession]) -> None:
        """Update the deadlines of the given sessions, ignoring those that have ended."""
        for session in sessions:
            if session.session_id in self._by_id:
                self.deadlines.enter(
                    session.session_id, session.clocks.next_deadline(session.segment)
                )

    def with_segment(self, key: SegmentKey) -> LiveSession | None:
        """Return the session whose current segment has this key, or None if there is no such
        session.
        """
        session = self._by_id.get(key.session_id)
        is_open = session is not None and session.segment is not None and session.segment.key == key
        return session if is_open else None

    def segments(self) -> Iterator[Segment]:
        """Iterate over the open segments of all sessions."""
        return (each.segment for each in self._by_id.values() if each.segment is not None)

    def leaving(self) -> Unavailable | None:
        """Return the error with which a session's next segment is rejected while the stage is
        draining. Returns None if the stage isn't draining.
        """
        if not self.draining:
            return None
        return Unavailable(
            f"{self._plan.role}: the stage is shutting down and starts no more segments; open a "
            "new session",
            stage=self._plan.role,
            retry_after_s=1.0,
        )

    def no_slot(self) -> ResourceExhausted | None:
        """Return the error with which a segment is rejected, or None if there is a free slot."""
        slots = self._plan.limits.slots
        if sum(segment.in_engine for segment in self.segments()) < slots:
            return None
        return ResourceExhausted(
            f"{self._plan.role}: all {slots} slots are in use",
            stage=self._plan.role,
            retry_after_s=1.0,
        )

    def act(
        self, session_id: str, act: Callable[[LiveSession], list[Instruction]]
    ) -> list[Instruction]:
        """Apply `act` to a session, if it is live, and update its deadline."""
        session = self._by_id.get(session_id)
        if session is None:
            return []
        done = self.guard(session, act)
        if session_id in self._by_id:
            self.deadlines.enter(session_id, session.clocks.next_deadline(session.segment))
        return done

    def guard(
        self, session: LiveSession, act: Callable[..., list[Instruction]], *arguments: Any
    ) -> list[Instruction]:
        """Apply `act` to a session. If it raises an exception, the session ends."""
        try:
            return act(session, *arguments)
        except AntiphonError as error:
            return self.end(session, Event.FAULT, error)
        except Exception as error:
            if self._report is not None:
                self._report(session.session_id, error)
            return self.end(session, Event.FAULT, unexpected(error))

    def end_if_done(self, session: LiveSession) -> list[Instruction]:
        """End a session if its last segment has ended and the client has closed its side."""
        if not session.client_done or session.state is State.OPEN or session.releasing:
            return []
        return self.end(session, Event.CLIENT_DONE, None)

    def end(
        self, session: LiveSession, event: Event, error: AntiphonError | None
    ) -> list[Instruction]:
        """End a session. Its segment is released, its stream is closed and its ID is remembered."""
        if error is not None:
            error.stage = error.stage or self._plan.role
        outcome = Outcome.CANCELLED if error is None else Outcome.FAILED
        # Remove the session first. Otherwise, it would stay around if the code below raised an
        # exception.
        self._by_id.pop(session.session_id, None)
        self.deadlines.forget(session.session_id)
        self._holding.close(session.session_id)
        done = session.drop_segment(outcome, error)
        session.become(event)
        return [*done, End(session.session_id, error)]
