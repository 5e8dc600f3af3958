"""The gateway's side of the lines on a shared stream, without the stream itself. This module
performs no I/O.

Each line queues its responses until its reader fetches them. For each line, the stage may send up
to one window of data that the reader hasn't processed yet, or a single response that is larger than
the window. This means that a slow client doesn't delay other clients. If a stage exceeds the
window, the gateway closes the line. An error affects only one line, but if the stream ends, all of
its lines fail.

The stage's first response contains the window size, the maximum number of requests in a batch, and
the time for which the stage keeps the sessions of a broken stream. Until this response arrives, or
if the stage doesn't support batches, each request is sent as a separate message. Messages are
numbered so that the stream can continue on a new call (see `antiphon.transport.numbered_stream`).
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator

from antiphon.errors import DataLoss, Unavailable
from antiphon.transport.numbered_stream import NumberedStream
from antiphon.v1 import session_pb2, stage_pb2
from antiphon_gateway.sessions.connection_errors import ConnectionCancelled, WindowExceeded
from antiphon_gateway.sessions.line_requests import LineRequests

BATCH_REQUESTS = 64
"""The maximum number of requests in one message. The limit applies even if the stage accepts more,
because it processes all requests in a message without interruption.
"""
BATCH_BYTES = 64 << 10
"""The size in bytes at which a message is sent, even if more requests are ready."""


class StandingLines:
    """The lines of a stream. `on_ready` is called when `take` has something to return. If `for_one`
    is true, the stream has only one line, and the gateway leaves the stream when that line ends.
    """

    def __init__(self, on_ready: Callable[[], None], *, for_one: bool = False) -> None:
        self.window_bytes = 0
        self.resume_window_s = 0.0
        """The number of seconds for which the stage keeps the sessions on a broken stream. This is
        0 until the stage has reported it and stays 0 if the lines can't outlive a call.
        """
        self.is_suspended = False
        self.has_left = False
        """Whether the gateway has said goodbye, after which it sends nothing more on any line."""
        self._for_one = for_one
        self._leaves = self._asks = False
        self._batch_requests = 1
        self.stream: NumberedStream[stage_pb2.LineRequest] = NumberedStream()
        self._on_ready = on_ready
        self._lines: dict[int, StandingLine] = {}
        self._numbers = itertools.count(1)
        self._ready: dict[int, None] = {}
        """The lines that have something to send, in the order in which they will be served."""

    def connect(self, requests: LineRequests, on_arrived: Callable[[], None]) -> StandingLine:
        """Open a line. `on_arrived` is called when a response arrives or the line ends."""
        number = next(self._numbers)
        self._lines[number] = line = StandingLine(self, number, requests, on_arrived)
        self.serve(number)
        return line

    @property
    def progress(self) -> int:
        """The number of messages that have been received from or confirmed by the stage."""
        return self.stream.received + self.stream.oldest

    @property
    def open(self) -> int:
        """The number of lines that the stage hasn't ended."""
        return len(self._lines)

    def serve(self, number: int) -> None:
        """Mark a line as having something to send."""
        self._ready[number] = None
        self._on_ready()

    def forget(self, number: int) -> None:
        """Remove a line that the stage has ended or has never seen."""
        del self._lines[number]
        if self._for_one and not self._lines:
            self.leave()

    def hello(self, stream_id: str) -> stage_pb2.LineRequest:
        """Return the first request of a call. It starts a new stream or continues the stream if it
        is suspended.
        """
        hello = stage_pb2.LineHello(stream_id=stream_id, resume=self.is_suspended)
        return stage_pb2.LineRequest(hello=hello, received=self.stream.count())

    def suspend(self) -> None:
        """Record that the stream's call is over. Nothing is sent until the stage resumes the
        stream.
        """
        self.is_suspended = True

    def ask(self) -> None:
        """Send a message whose only purpose is to be confirmed."""
        self._asks = True
        self._on_ready()

    def leave(self) -> None:
        """Say goodbye to the stage, which then ends all of its sessions. Nothing else is sent after
        that.
        """
        self._leaves = True
        self._on_ready()

    def receive(self, response: stage_pb2.LineResponse) -> None:
        """Pass the messages in a response to their lines. Raises `Unavailable` if the stage's first
        response doesn't state the window, and `DataLoss` if the message counts are wrong.
        """
        if not self.window_bytes:
            self._begin(response)
        if self.resume_window_s:
            self._count(response)
        for message in response.messages:
            if (line := self._lines.get(message.line)) is None:
                continue
            if message.HasField("response"):
                line.receive(message.response)
            elif message.HasField("end"):
                self.forget(message.line)
                line.end(None)

    def end(self, failure: Exception) -> None:
        """End all lines with this failure, because the stream has ended."""
        lines, self._lines = list(self._lines.values()), {}
        self.stream.clear()
        for line in lines:
            line.end(failure)

    def _begin(self, response: stage_pb2.LineResponse) -> None:
        self.window_bytes = response.window_bytes
        if not self.window_bytes:
            raise Unavailable("it didn't specify the window for its lines")
        self._batch_requests = max(1, min(response.batch_requests, BATCH_REQUESTS))
        self.resume_window_s = response.resume_window_s
        if not self.resume_window_s:
            self.stream = NumberedStream()
        if self._ready:
            self._on_ready()

    def _count(self, response: stage_pb2.LineResponse) -> None:
        """Update the message counts from a response."""
        stream, was_full = self.stream, self.stream.is_full
        if response.resumed:
            stream.rewind(response.received)
            self.is_suspended = False
            self._on_ready()
        elif self.is_suspended and response.messages:
            raise DataLoss("it continues the stream without specifying the position")
        else:
            stream.confirmed(response.received)
        if response.messages:
            stream.arrived(response.ByteSize())
        if was_full or stream.owes_count:
            self._on_ready()

    def take(self) -> stage_pb2.LineRequest | None:
        """Return the next message to send, or None if nothing is ready. A message combines requests
        from several lines, up to a maximum size.
        """
        if self.is_suspended or self.has_left:
            return None
        if self._leaves:
            self.has_left = True
            return stage_pb2.LineRequest(goodbye=stage_pb2.LineGoodbye())
        if self.window_bytes and not self.resume_window_s:
            return self._take()
        request = self._next()
        if request is not None:
            request.received = self.stream.count()
        return request

    def _next(self) -> stage_pb2.LineRequest | None:
        stream = self.stream
        if (request := stream.again()) is not None:
            return request
        request = None if stream.is_full else self._take() or self._question()
        if request is not None:
            stream.sent(request, request.ByteSize())
            return request
        return stage_pb2.LineRequest() if stream.owes_count else None

    def _question(self) -> stage_pb2.LineRequest | None:
        asks, self._asks = self._asks, False
        return stage_pb2.LineRequest(ping=stage_pb2.LinePing()) if asks else None

    def _take(self) -> stage_pb2.LineRequest | None:
        """Return a message with new requests from all lines, or None if there are none."""
        requests: list[stage_pb2.LineRequest] = []
        left_bytes = BATCH_BYTES
        while self._ready and left_bytes > 0 and len(requests) < self._batch_requests:
            number = next(iter(self._ready))
            del self._ready[number]
            if (line := self._lines.get(number)) is None:
                continue
            for request in line.take():
                requests.append(request)
                left_bytes -= request.ByteSize()
                if left_bytes <= 0 or len(requests) == self._batch_requests:
                    # The line may have more to send. Put it at the back of the queue, so that the
                    # other lines are served first.
                    self._ready[number] = None
                    break
        if len(requests) > 1:
            return stage_pb2.LineRequest(batch=stage_pb2.LineRequests(requests=requests))
        return requests[0] if requests else None


class StandingLine:
    """A single line, with its outgoing requests and the responses that haven't been read yet."""

    def __init__(
        self,
        lines: StandingLines,
        number: int,
        requests: LineRequests,
        on_arrived: Callable[[], None],
    ) -> None:
        self.is_over = False
        """Whether the line has ended. Responses that have already arrived can still be read."""
        self.failure: Exception | None = None
        """The error that ended the line, or None if its session ended normally."""
        self._lines = lines
        self.number = number
        self._requests = requests
        self._on_arrived = on_arrived
        self._has_begun = self._cancelled = self._said_done = False
        self._responses: deque[tuple[session_pb2.SessionResponse, int]] = deque()
        self._waiting_bytes = self._processed_bytes = self._reported_bytes = 0

    @property
    def _owes_report(self) -> bool:
        """Whether a report of the processed bytes is due."""
        if self.is_over:
            return False
        unreported_bytes = self._processed_bytes - self._reported_bytes
        return unreported_bytes > 0 and unreported_bytes >= self._lines.window_bytes // 4

    @property
    def has_response(self) -> bool:
        """Whether a response is waiting to be read."""
        return bool(self._responses)

    def changed(self) -> None:
        """Send the new requests."""
        self._lines.serve(self.number)

    def cancel(self) -> None:
        """End the line and discard any unread responses."""
        if self._cancelled or self.is_over:
            return
        self._cancelled = True
        self._responses.clear()
        self.end(ConnectionCancelled())
        if self._has_begun:
            self._lines.serve(self.number)
        else:
            self._lines.forget(self.number)

    def end(self, failure: Exception | None) -> None:
        """End the line. The reader first receives the remaining responses, and then the failure, if
        any.
        """
        if not self.is_over:
            self.is_over, self.failure = True, failure
            self._on_arrived()

    def receive(self, response: session_pb2.SessionResponse) -> None:
        """Queue a response for the reader. If the stage has exceeded the window, cancel the line
        instead.
        """
        if self.is_over:
            return
        size_bytes = response.ByteSize()
        if self._waiting_bytes >= self._lines.window_bytes:
            self.cancel()
            self.failure = WindowExceeded("it exceeded the window of its line")
            return
        self._waiting_bytes += size_bytes
        self._responses.append((response, size_bytes))
        self._on_arrived()

    def take(self) -> Iterator[stage_pb2.LineRequest]:
        """Remove and yield everything that the line has to send."""
        number = self.number
        if self._cancelled:
            yield stage_pb2.LineRequest(line=number, cancel=stage_pb2.LineCancel())
            return
        for request in self._requests.take():
            self._has_begun = True
            yield stage_pb2.LineRequest(line=number, request=request)
        if (self._requests.done or self._requests.has_all_input) and not self._said_done:
            self._said_done = True
            yield stage_pb2.LineRequest(line=number, done=stage_pb2.LineDone())
        if self._owes_report:
            self._reported_bytes = self._processed_bytes
            yield stage_pb2.LineRequest(line=number, processed_bytes=self._processed_bytes)

    def read(self) -> tuple[session_pb2.SessionResponse, int] | None:
        """Return the next response and its size in bytes, or None if no response is waiting. The
        reader must pass the size to `processed`.
        """
        return self._responses.popleft() if self._responses else None

    def processed(self, size_bytes: int) -> None:
        """Record that the reader has processed a response."""
        self._waiting_bytes -= size_bytes
        self._processed_bytes += size_bytes
        if self._owes_report:
            self._lines.serve(self.number)
