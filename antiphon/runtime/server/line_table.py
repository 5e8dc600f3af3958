"""The stage's side of the lines on a `RunSessions` stream, without the stream itself. This module
performs no I/O.

Each session on the stream is a numbered line. Requests are handled as soon as they arrive, so there
is no request queue, and sessions don't need their own tasks. Each session's replies wait in its
outbox until `take` combines the replies of all lines into a batch:

    table → outbox of a session → ready line → batch → one message to the gateway

Requests also arrive in batches. A batch contains everything that the gateway had ready when it
wrote to the stream.

A line may be at most one window ahead of what its reader has processed. Further replies stay in the
outbox, which has its own limit, so a slow reader can only delay or fail its own session.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from google.protobuf.message import DecodeError

from antiphon.errors import AntiphonError, InvalidArgument
from antiphon.runtime.server.outbox import Outbox
from antiphon.runtime.server.served_session import check_opening, refusal
from antiphon.runtime.server.stage import Reply
from antiphon.v1 import session_pb2, stage_pb2

BATCH_BYTES = 256 << 10
"""The size in bytes at which a response is sent, even if more replies are ready."""
BATCH_REQUESTS = 64
"""The maximum number of requests in a batch. It is limited because a batch is handled without
interruption. The gateway learns this number from the first response.
"""


class LineSession(Protocol):
    """The session interface that a line depends on. `ServedSession` implements it."""

    @property
    def replies(self) -> Outbox[Reply]:
        """The replies that are waiting to be sent."""

    def begin(self, opening: session_pb2.SessionOpen) -> None:
        """Open the first segment."""

    def handle(self, request: session_pb2.SessionRequest) -> None:
        """Handle a request."""

    def done(self) -> None:
        """Record that the client will send no more requests."""

    def response(self, reply: Reply) -> session_pb2.SessionResponse | None:
        """Convert a reply to a response. Returns None if there is nothing to send."""

    def close(self) -> None:
        """Free all resources of the session."""


Serve = Callable[[session_pb2.SessionOpen, Callable[[], None]], LineSession]
"""A function that registers a session and raises the same errors as `ServedSession`. Its second
argument is a callback that is called when there are replies.
"""


class LineEvents(Protocol):
    """Callbacks for state changes of the lines' windows."""

    def stalled(self, number: int) -> None:
        """The line's window is full, so it has to wait for its reader."""

    def moved(self, number: int) -> None:
        """A line that was waiting for its reader can continue or has ended."""


@dataclass(slots=True)
class _ServedLine:
    session: LineSession
    sent_bytes: int = 0
    processed_bytes: int = 0
    is_stalled: bool = False


class LineTable:
    """The lines of a single stream. Call `close` when the stream has ended.

    `on_ready` is called when `take` has something to return, and when the last line has ended.
    """

    def __init__(
        self,
        serve: Serve,
        role: str,
        window_bytes: int,
        events: LineEvents,
        on_ready: Callable[[], None],
    ) -> None:
        self._serve = serve
        self._role = role
        self._window_bytes = window_bytes
        self._events = events
        self._on_ready = on_ready
        self._lines: dict[int, _ServedLine] = {}
        self._newest = 0
        self._ready: dict[int, None] = {}
        """The lines that have replies, in the order in which they will be served."""
        self._urgent: list[stage_pb2.LineMessage] = []
        """Messages for lines that have no outbox."""

    @property
    def open(self) -> int:
        """The number of sessions that have not ended."""
        return len(self._lines)

    @property
    def is_idle(self) -> bool:
        """Whether no line is open and no message is waiting."""
        return not self._lines and not self._urgent

    def handle(self, request: stage_pb2.LineRequest) -> None:
        """Handle a request or a batch of requests. Raises `InvalidArgument` if a batch contains
        more than `BATCH_REQUESTS` requests, in which case none of them are handled.
        """
        if not request.HasField("batch"):
            self._handle(request)
            return
        requests = request.batch.requests
        if len(requests) > BATCH_REQUESTS:
            raise InvalidArgument(
                f"batch.requests: must have at most {BATCH_REQUESTS} entries, got {len(requests)}",
                field="batch.requests",
            )
        for each in requests:
            self._handle(each)

    def _handle(self, request: stage_pb2.LineRequest) -> None:
        """Handle a single request. If its line number is new, this opens the line. If the line has
        already ended, the request is ignored.
        """
        number = request.line
        line = self._lines.get(number)
        if line is None:
            if number > self._newest:
                self._newest = number
                self._open(number, request.request)
            return
        match request.WhichOneof("message"):
            case "request":
                line.session.handle(request.request)
            case "processed_bytes":
                self._processed(number, line, request.processed_bytes)
            case "done":
                line.session.done()
            case "cancel":
                self._drop(number)
                self._say_end(number)

    def done(self) -> None:
        """Record that the client won't send anything more on any line."""
        for line in list(self._lines.values()):
            line.session.done()

    def give_up(self, number: int, error: AntiphonError) -> None:
        """End a line and its session with an error."""
        self._drop(number)
        self._refuse(number, error)

    def close(self) -> None:
        """Free the resources of all sessions."""
        for number in list(self._lines):
            self._drop(number)

    def take(self) -> list[stage_pb2.LineMessage]:
        """Remove and return the messages that are ready, up to the maximum size of a batch."""
        messages, self._urgent = self._urgent, []
        size_bytes = 0
        while self._ready and size_bytes < BATCH_BYTES:
            number = next(iter(self._ready))
            del self._ready[number]
            if (line := self._lines.get(number)) is not None:
                size_bytes += self._take_from(number, line, BATCH_BYTES - size_bytes, messages)
        return messages

    def _open(self, number: int, first: session_pb2.SessionRequest) -> None:
        try:
            opening = check_opening(first)
            session = self._serve(opening, lambda: self._queue(number))
        except (AntiphonError, DecodeError) as error:
            self._refuse(number, error)
            return
        self._lines[number] = _ServedLine(session)
        session.begin(opening)

    def _processed(self, number: int, line: _ServedLine, total_bytes: int) -> None:
        line.processed_bytes = total_bytes
        if line.is_stalled and line.sent_bytes - total_bytes < self._window_bytes:
            line.is_stalled = False
            self._events.moved(number)
            self._queue(number)

    def _queue(self, number: int) -> None:
        """Mark a line as having replies to send."""
        self._ready[number] = None
        self._on_ready()

    def _take_from(
        self, number: int, line: _ServedLine, most_bytes: int, messages: list[stage_pb2.LineMessage]
    ) -> int:
        """Move a line's replies to `messages` and return their total size in bytes."""
        replies, taken_bytes = line.session.replies, 0
        while not replies.is_empty:
            if line.sent_bytes - line.processed_bytes >= self._window_bytes:
                if not line.is_stalled:
                    line.is_stalled = True
                    self._events.stalled(number)
                return taken_bytes
            if taken_bytes >= most_bytes:
                self._queue(number)
                return taken_bytes
            response = line.session.response(replies.take_nowait())
            if response is not None:
                size_bytes = response.ByteSize()
                line.sent_bytes += size_bytes
                taken_bytes += size_bytes
                messages.append(stage_pb2.LineMessage(line=number, response=response))
        if replies.is_over:
            self._drop(number)
            messages.append(_end_of(number))
        return taken_bytes

    def _drop(self, number: int) -> None:
        """Remove a line and free its session."""
        line = self._lines.pop(number)
        self._ready.pop(number, None)
        if line.is_stalled:
            self._events.moved(number)
        line.session.close()
        if not self._lines:
            self._on_ready()

    def _refuse(self, number: int, error: Exception) -> None:
        """Send an error for a line that has no session and end the line."""
        response = refusal(error, self._role)
        self._urgent.append(stage_pb2.LineMessage(line=number, response=response))
        self._say_end(number)

    def _say_end(self, number: int) -> None:
        self._urgent.append(_end_of(number))
        self._on_ready()


def _end_of(number: int) -> stage_pb2.LineMessage:
    return stage_pb2.LineMessage(line=number, end=stage_pb2.LineEnd())
