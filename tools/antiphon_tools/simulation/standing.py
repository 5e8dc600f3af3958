"""The gateway's standing stream to a stage instance, with the real lines at both ends.

Each end detects on its own that the call has broken. Messages in transit may arrive before that, or
they may be lost. The gateway then continues the stream with another call, unless one of the ends
has given up the stream.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from antiphon.errors import Unavailable
from antiphon.runtime.server.line_table import LineTable
from antiphon.runtime.server.numbered_lines import NumberedLines
from antiphon.runtime.server.served_session import ServedSession, SessionRegistry
from antiphon.tracing.tracing import Tracing
from antiphon.v1 import session_pb2, stage_pb2
from antiphon_gateway.sessions.line_requests import LineRequests
from antiphon_gateway.sessions.standing_lines import StandingLine, StandingLines
from antiphon_tools.simulation.caller import Caller
from antiphon_tools.simulation.host import SimulatedStage
from antiphon_tools.simulation.network import GONE, Gone, Violation

WINDOW_BYTES = 160
"""The window size of a line. It is enough for one or two chunks of audio."""
BATCH_REQUESTS = 3
"""Enough for an opening, the message that nothing follows it, and some of another line's
messages.
"""
RESUME_WINDOW_S = 1.0
"""The actual end of this window is determined by the simulation's moves."""
TRACING = Tracing()
REFUSED = Gone()
"""The response if the stage doesn't have the stream or no longer listens."""


class OverrunTable(LineTable):
    """A table that can be made to send messages that exceed a line's window."""

    excess: list[stage_pb2.LineMessage]
    """Messages that the stage sends even though their line's window is full."""

    def take(self) -> list[stage_pb2.LineMessage]:
        """Return the messages that are ready, followed by the excess messages."""
        excess, self.excess = self.excess, []
        return [*excess, *super().take()]


class SimulatedStanding:
    """A standing stream, which exists until both ends have given it up."""

    def __init__(self, host: SimulatedStage, sessions: SessionRegistry) -> None:
        self.host = host
        self.down: deque[stage_pb2.LineRequest | Gone] = deque()
        self.up: deque[stage_pb2.LineResponse | Gone] = deque()
        self.gateway_sends = self.stage_sends = False
        """Whether this end may have something to send."""
        self.gateway_over = self.stage_over = False
        """Whether this end has given up the stream."""
        self.stage_suspended = False
        """Whether the stage currently has no call for this stream."""
        self._has_call = False
        """Whether the gateway has a call, as far as it knows."""
        self._stage_is_called = False
        """Whether the stage has received the current call and not just an earlier one."""
        self._is_known = False
        """Whether the stage has ever had a call for this stream."""
        self.waiting: set[int] = set()
        """The lines of the stage that are waiting for their readers."""
        self._batch_requests = 0
        """The maximum number of requests that the stage accepts in a batch, as far as the gateway
        knows.
        """
        self.lines = StandingLines(self._gateway_ready)
        self.table = OverrunTable(
            self._serving(sessions), host.role, WINDOW_BYTES, self, self._stage_ready
        )
        self.table.excess = []
        self.numbered = NumberedLines(self.table, self._stage_ready)
        self.call()

    @property
    def is_lost(self) -> bool:
        """Whether an end knows that the call has broken or is going to detect it."""
        over = self.gateway_over or self.stage_over
        suspended = self.lines.is_suspended or self.stage_suspended
        return over or suspended or self._up_is_lost or self._down_is_lost

    @property
    def may_be_continued(self) -> bool:
        """Whether the gateway has to make another call."""
        return not (self._has_call or self.gateway_over)

    @property
    def may_be_given_up(self) -> bool:
        """Whether the stage is the only end that still has the stream and has no call for it."""
        return self.stage_suspended and self.gateway_over and not self.stage_over

    @property
    def _up_is_lost(self) -> bool:
        return any(isinstance(each, Gone) for each in self.up)

    @property
    def _down_is_lost(self) -> bool:
        return any(isinstance(each, Gone) for each in self.down)

    def call(self) -> bool:
        """Begin or continue the stream from the gateway. Returns whether the stage may have the
        stream.
        """
        self._has_call, self._stage_is_called = True, False
        self.down.clear()
        if self.stage_over or (self.lines.is_suspended and not self._is_known):
            self.stage_over = True
            self.up.append(REFUSED)
            return False
        self.up.append(
            stage_pb2.LineResponse(
                window_bytes=WINDOW_BYTES,
                batch_requests=BATCH_REQUESTS,
                resume_window_s=RESUME_WINDOW_S,
            )
        )
        self.down.append(self.lines.hello("stream"))
        return True

    def send_down(self) -> None:
        """Send the pending requests of all lines from the gateway in a single message.

        Raises `Violation` if the batch is larger than the stage accepts.
        """
        request = self.lines.take()
        if request is None:
            self.gateway_sends = False
            return
        if (count := len(request.batch.requests)) > self._batch_requests:
            raise Violation(f"the gateway sends {count} requests in a batch to {self.host.name}")
        if not (self._down_is_lost or self.stage_suspended):
            self.down.append(request)

    def send_up(self) -> None:
        """Send the pending messages of the stage's lines."""
        response = self.numbered.take()
        if response is None:
            self.stage_sends = False
        elif self._stage_is_called and not self._up_is_lost:
            self.up.append(response)

    def arrive_up(self) -> None:
        """Deliver the next message to the gateway or let it detect that the call has broken."""
        response = self.up.popleft()
        if response is REFUSED:
            self.lose_at_gateway()
        elif isinstance(response, Gone):
            self.up.clear()
            self._has_call = self._stage_is_called = False
            self.lines.suspend()
        else:
            self._batch_requests = response.batch_requests or self._batch_requests
            self.lines.receive(response)

    def arrive_down(self) -> None:
        """Deliver the next message to the stage or let it detect that the call has broken."""
        request = self.down.popleft()
        if isinstance(request, Gone):
            self.down.clear()
            self.stage_suspended = True
        elif not request.HasField("hello"):
            self.numbered.handle(request)
        elif self.stage_over:
            self.up = deque([REFUSED])
        else:
            self.stage_suspended = False
            self._is_known, self._stage_is_called = True, self._has_call
            self.numbered.begin(request)

    def sever(self) -> None:
        """Break the call. Messages in transit are lost."""
        if not self.gateway_over:
            self.up = deque([GONE])
        if not self.stage_over:
            self.down = deque([GONE])

    def end_call(self) -> None:
        """Break the call after all messages in transit have been delivered."""
        self.up.append(GONE)
        self.down.append(GONE)

    def lose_at_gateway(self) -> None:
        """Let the gateway give up the stream together with its call."""
        self.gateway_over = True
        self.lines.end(Unavailable("the stage is gone"))
        self.up.clear()
        if not self.stage_over:
            self.down = deque([GONE])

    def lose_at_stage(self) -> None:
        """Let the stage give up the suspended stream."""
        self.stage_over = True
        self.table.close()

    def kill(self) -> None:
        """Kill the stage. Messages that it has already sent may still arrive."""
        self.stage_over = True
        self.down.clear()
        if not (self.gateway_over or self.may_be_continued or self._up_is_lost):
            self.up.append(GONE)

    def overrun(self, number: int) -> None:
        """Make the stage exceed a line's window while it also sends messages on other lines."""
        suspended = session_pb2.SessionSuspended(address="x" * WINDOW_BYTES)
        response = session_pb2.SessionResponse(suspended=suspended)
        message = stage_pb2.LineMessage(line=number, response=response)
        self.table.excess += [message] * 2
        self.stage_sends = True

    # -- what the stage's table reports --------------------------------------------------------

    def stalled(self, number: int) -> None:
        """Record that a line is waiting for its reader."""
        self.waiting.add(number)

    def moved(self, number: int) -> None:
        """Record that a line is no longer waiting."""
        self.waiting.remove(number)

    def _stage_ready(self) -> None:
        self.stage_sends = True

    def _gateway_ready(self) -> None:
        self.gateway_sends = True

    def _serving(
        self, sessions: SessionRegistry
    ) -> Callable[[session_pb2.SessionOpen, Callable[[], None]], ServedSession]:
        def serve(opening: session_pb2.SessionOpen, on_reply: Callable[[], None]) -> ServedSession:
            return ServedSession(sessions, self.host.identity, TRACING, opening, on_reply)

        return serve


@dataclass(eq=False)
class SimulatedStream:
    """The line of a session to one replica and the response that its reader is processing."""

    caller: Caller
    session_id: str
    standing: SimulatedStanding
    requests: LineRequests
    line: StandingLine
    unprocessed_bytes: int = 0

    @property
    def host(self) -> SimulatedStage:
        """The replica."""
        return self.standing.host

    @property
    def readable(self) -> bool:
        """Whether a call to `read` would return a response or detect the end of the stream."""
        return bool(self.unprocessed_bytes or self.line.has_response or self.line.is_over)

    def send(self, request: session_pb2.SessionRequest) -> None:
        """Send a message about the segment."""
        self.requests.add(request)
        self.line.changed()

    def half_close(self) -> None:
        """Close the sending direction."""
        self.requests.done = True
        self.line.changed()

    def read(self) -> session_pb2.SessionResponse | None:
        """Finish processing the previous response and return the next one if it is available."""
        done, self.unprocessed_bytes = self.unprocessed_bytes, 0
        if done:
            self.line.processed(done)
        if (read := self.line.read()) is None:
            return None
        response, self.unprocessed_bytes = read
        return response
