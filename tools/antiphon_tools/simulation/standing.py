"""The gateway's standing stream to an instance of a stage, with the real lines of both ends.

The stream also contains the messages in transit. Each end detects the loss of the stream
independently, either after or instead of the messages in transit.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from antiphon.errors import Unavailable
from antiphon.runtime.server.line_table import LineTable
from antiphon.runtime.server.served_session import ServedSession, SessionRegistry
from antiphon.tracing.tracing import Tracing
from antiphon.v1 import session_pb2, stage_pb2
from antiphon_gateway.sessions.line_requests import LineRequests
from antiphon_gateway.sessions.standing_lines import StandingLine, StandingLines
from antiphon_tools.simulation.caller import Caller
from antiphon_tools.simulation.host import SimulatedStage
from antiphon_tools.simulation.network import GONE, Gone, Violation

WINDOW_BYTES = 160
"""The size of one or two chunks of audio."""
BATCH_REQUESTS = 3
"""Enough for an opening, its half-close, and part of the requests of another line."""
TRACING = Tracing()


class SimulatedStanding:
    """A standing stream, which remains open until both ends have detected its loss."""

    def __init__(self, host: SimulatedStage, sessions: SessionRegistry) -> None:
        self.host = host
        self.down: deque[stage_pb2.LineRequest | Gone] = deque()
        self.up: deque[stage_pb2.LineResponse | Gone] = deque()
        self.gateway_sends = self.stage_sends = False
        """Whether an end may have something to send."""
        self.gateway_over = self.stage_over = False
        """Whether an end has detected the loss."""
        self.waiting: set[int] = set()
        """The lines of the stage that wait for their readers."""
        self._batch_requests = 0
        """The maximum batch size of the stage that the gateway currently knows."""
        self._excess: list[stage_pb2.LineMessage] = []
        """Messages that the stage sends although the window of their line is full."""
        self.lines = StandingLines(self._gateway_ready)
        self.table = LineTable(
            self._serving(sessions), host.role, WINDOW_BYTES, self, self._stage_ready
        )
        self.up.append(
            stage_pb2.LineResponse(window_bytes=WINDOW_BYTES, batch_requests=BATCH_REQUESTS)
        )

    @property
    def is_lost(self) -> bool:
        """Whether an end has detected the loss, or is about to."""
        return self.gateway_over or self.stage_over or GONE in self.up or GONE in self.down

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
        self.down.append(request)

    def send_up(self) -> None:
        """Send the pending messages of all lines from the stage."""
        messages, self._excess = [*self._excess, *self.table.take()], []
        if messages:
            self.up.append(stage_pb2.LineResponse(messages=messages))
        else:
            self.stage_sends = False

    def arrive_up(self) -> None:
        """Deliver the next message, or the loss of the stream, to the gateway."""
        response = self.up.popleft()
        if isinstance(response, Gone):
            self.gateway_over = True
            self.lines.end(Unavailable("the stage is gone"))
        else:
            self._batch_requests = response.batch_requests or self._batch_requests
            self.lines.receive(response)

    def arrive_down(self) -> None:
        """Deliver the next message, or the loss of the stream, to the stage."""
        request = self.down.popleft()
        if isinstance(request, Gone):
            self.stage_over = True
            self.table.close()
        else:
            self.table.handle(request)

    def sever(self) -> None:
        """Break the stream. Messages in transit are lost."""
        if not self.gateway_over:
            self.up = deque([GONE])
        if not self.stage_over:
            self.down = deque([GONE])

    def kill(self) -> None:
        """Kill the stage. Messages that it has already sent may still arrive."""
        self.stage_over = True
        self.down.clear()
        if not self.gateway_over and GONE not in self.up:
            self.up.append(GONE)

    def overrun(self, number: int) -> None:
        """Let the stage exceed the window of a line, together with messages of other lines."""
        suspended = session_pb2.SessionSuspended(address="x" * WINDOW_BYTES)
        response = session_pb2.SessionResponse(suspended=suspended)
        message = stage_pb2.LineMessage(line=number, response=response)
        self._excess += [message] * 2
        self.stage_sends = True

    # -- what the stage's table reports --------------------------------------------------------

    def stalled(self, number: int) -> None:
        """Record that a line waits for its reader."""
        self.waiting.add(number)

    def moved(self, number: int) -> None:
        """Record that a line no longer waits."""
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
    """The line of a session to one replica, and the response that its reader is processing."""

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
        """Whether the reader can make progress or detect the end."""
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
        """Finish processing the previous response, and return the next one if it is available."""
        done, self.unprocessed_bytes = self.unprocessed_bytes, 0
        if done:
            self.line.processed(done)
        if (read := self.line.read()) is None:
            return None
        response, self.unprocessed_bytes = read
        return response
