"""The lines of one `RunSessions` stream at the stage, without the stream. Pure.

Each session is a line with a number. Requests are handled as they come, so there is nothing that
waits to be handled, and no task for each session. Replies wait in the outbox of their session, and
`take` moves what all lines have into one batch:

    table → outbox of a session → ready line → batch → one message to the gateway

Requests come in batches, too, which the gateway makes of what is ready when it writes.

A line is taken at most a window ahead of what its reader has processed. The rest stays in the
line's outbox, which has its own bound, so a slow reader delays and fails its own session only.
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
"""A response is sent when it has so many bytes, though more is ready."""
BATCH_REQUESTS = 64
"""Most requests of a batch, which are handled in one go. The first response states it."""


class LineSession(Protocol):
    """A session as its line needs it; see `ServedSession`."""

    @property
    def replies(self) -> Outbox[Reply]:
        """What waits to be sent."""

    def begin(self, opening: session_pb2.SessionOpen) -> None:
        """Open the first segment."""

    def handle(self, request: session_pb2.SessionRequest) -> None:
        """Act on a request."""

    def done(self) -> None:
        """The client sends no more."""

    def response(self, reply: Reply) -> session_pb2.SessionResponse | None:
        """A reply as it is sent; None if nothing is."""

    def close(self) -> None:
        """Free everything that the session still holds."""


Serve = Callable[[session_pb2.SessionOpen, Callable[[], None]], LineSession]
"""Registers a session, whose replies are announced by the callback. Raises as `ServedSession`."""


class LineEvents(Protocol):
    """What a table reports of its windows while it handles something."""

    def stalled(self, number: int) -> None:
        """A line waits for its reader: its window is full."""

    def moved(self, number: int) -> None:
        """A line that was stalled waits no more, or has ended."""


@dataclass(slots=True)
class _ServedLine:
    session: LineSession
    sent_bytes: int = 0
    processed_bytes: int = 0
    is_stalled: bool = False


class LineTable:
    """The lines of one stream; `close` it when the stream has ended.

    `on_ready` is called when there is something to `take`, or the last line is gone.
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
        """Lines with replies, in the order in which they are served."""
        self._urgent: list[stage_pb2.LineMessage] = []
        """Messages of lines that have no outbox."""

    @property
    def open(self) -> int:
        """Sessions that have not ended."""
        return len(self._lines)

    @property
    def is_idle(self) -> bool:
        """Whether no line is left, and nothing has to be sent."""
        return not self._lines and not self._urgent

    def handle(self, request: stage_pb2.LineRequest) -> None:
        """Act on a request or a batch. Raises `InvalidArgument`, and handles none of a batch, if it
        has more than `BATCH_REQUESTS`."""
        if not request.HasField("batch"):
            self._handle(request)
            return
        requests = request.batch.requests
        if len(requests) > BATCH_REQUESTS:
            raise InvalidArgument(
                f"batch.requests: {len(requests)} in one batch, at most {BATCH_REQUESTS} may be",
                field="batch.requests",
            )
        for each in requests:
            self._handle(each)

    def _handle(self, request: stage_pb2.LineRequest) -> None:
        """Act on a request; a line that is unknown has ended, unless its number is new."""
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
        """The client sends nothing more on any line."""
        for line in list(self._lines.values()):
            line.session.done()

    def give_up(self, number: int, error: AntiphonError) -> None:
        """End a line with an error, and its session."""
        self._drop(number)
        self._refuse(number, error)

    def close(self) -> None:
        """Free what all sessions still hold."""
        for number in list(self._lines):
            self._drop(number)

    def take(self) -> list[stage_pb2.LineMessage]:
        """What is ready, up to a batch."""
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
        """Serve a line: it has replies."""
        self._ready[number] = None
        self._on_ready()

    def _take_from(
        self, number: int, line: _ServedLine, most_bytes: int, messages: list[stage_pb2.LineMessage]
    ) -> int:
        """Move replies of a line to the messages; how many bytes they have."""
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
        """Forget a line and free its session."""
        line = self._lines.pop(number)
        self._ready.pop(number, None)
        if line.is_stalled:
            self._events.moved(number)
        line.session.close()
        if not self._lines:
            self._on_ready()

    def _refuse(self, number: int, error: Exception) -> None:
        """End a line that has no session with an error."""
        response = refusal(error, self._role)
        self._urgent.append(stage_pb2.LineMessage(line=number, response=response))
        self._say_end(number)

    def _say_end(self, number: int) -> None:
        self._urgent.append(_end_of(number))
        self._on_ready()


def _end_of(number: int) -> stage_pb2.LineMessage:
    return stage_pb2.LineMessage(line=number, end=stage_pb2.LineEnd())
