"""The lines of one standing stream at the gateway, without the stream. Pure.

A line's responses wait for its reader. The stage sends a window of them, or one, ahead of what the
reader has processed, so one slow client holds up no other. A stage that exceeds that loses the
line. An error ends one line; the end of the stream ends all of them, as if each had broken.

The stage states the window in the first response of the stream, and how many requests it takes in
a batch. Until then, and to a stage that takes no batches, each request is a message.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Callable, Iterator

from antiphon.errors import Unavailable
from antiphon.v1 import session_pb2, stage_pb2
from antiphon_gateway.sessions.connection_errors import ConnectionCancelled, WindowExceeded
from antiphon_gateway.sessions.line_requests import LineRequests

BATCH_REQUESTS = 64
"""Most requests in a message, though the stage may take more: it handles them in one go."""
BATCH_BYTES = 64 << 10
"""A message is sent when it has so many bytes, though more is ready."""


class StandingLines:
    """The lines of a stream. `on_ready` is called when there is something to `take`."""

    def __init__(self, on_ready: Callable[[], None]) -> None:
        self.window_bytes = 0
        self._batch_requests = 1
        self._on_ready = on_ready
        self._lines: dict[int, StandingLine] = {}
        self._numbers = itertools.count(1)
        self._ready: dict[int, None] = {}
        """Lines with something to send, in the order in which they are served."""

    def connect(self, requests: LineRequests, on_arrived: Callable[[], None]) -> StandingLine:
        """Open a line. `on_arrived` is called when there is something to read of it."""
        number = next(self._numbers)
        self._lines[number] = line = StandingLine(self, number, requests, on_arrived)
        self.serve(number)
        return line

    @property
    def open(self) -> int:
        """Lines that the stage has not ended."""
        return len(self._lines)

    def serve(self, number: int) -> None:
        """Send what a line has."""
        self._ready[number] = None
        self._on_ready()

    def forget(self, number: int) -> None:
        """Drop a line that has sent nothing."""
        del self._lines[number]

    def receive(self, response: stage_pb2.LineResponse) -> None:
        """Give each line what has come for it. Raises `Unavailable` if the stage does not begin
        with the window."""
        if not self.window_bytes:
            self.window_bytes = response.window_bytes
            if not self.window_bytes:
                raise Unavailable("it does not state the window of its lines")
            self._batch_requests = max(1, min(response.batch_requests, BATCH_REQUESTS))
        for message in response.messages:
            if (line := self._lines.get(message.line)) is None:
                continue
            if message.HasField("response"):
                line.receive(message.response)
            elif message.HasField("end"):
                del self._lines[message.line]
                line.end(None)

    def end(self, failure: Exception) -> None:
        """The stream is over: all lines end with the failure."""
        lines, self._lines = list(self._lines.values()), {}
        for line in lines:
            line.end(failure)

    def take(self) -> stage_pb2.LineRequest | None:
        """What is ready of all lines, in one message of bounded size; None if nothing is."""
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
                    # It may have more, which is served after that of the others.
                    self._ready[number] = None
                    break
        if len(requests) > 1:
            return stage_pb2.LineRequest(batch=stage_pb2.LineRequests(requests=requests))
        return requests[0] if requests else None


class StandingLine:
    """One line: what it sends, and the responses that wait for its reader."""

    def __init__(
        self,
        lines: StandingLines,
        number: int,
        requests: LineRequests,
        on_arrived: Callable[[], None],
    ) -> None:
        self.is_over = False
        """Nothing more comes than what waits."""
        self.failure: Exception | None = None
        """Why the line is over, if its session has not ended."""
        self._lines = lines
        self.number = number
        self._requests = requests
        self._on_arrived = on_arrived
        self._has_begun = self._cancelled = self._said_done = False
        self._responses: deque[tuple[session_pb2.SessionResponse, int]] = deque()
        self._waiting_bytes = self._processed_bytes = self._reported_bytes = 0

    @property
    def _owes_report(self) -> bool:
        """Whether the stage should learn how much has been processed."""
        if self.is_over:
            return False
        unreported_bytes = self._processed_bytes - self._reported_bytes
        return unreported_bytes > 0 and unreported_bytes >= self._lines.window_bytes // 4

    @property
    def has_response(self) -> bool:
        """Whether a response waits."""
        return bool(self._responses)

    def changed(self) -> None:
        """Send what is new."""
        self._lines.serve(self.number)

    def cancel(self) -> None:
        """End the line; what the stage has sent of it is dropped."""
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
        """Nothing more comes; the reader gets the failure, if there is one, after what came."""
        if not self.is_over:
            self.is_over, self.failure = True, failure
            self._on_arrived()

    def receive(self, response: session_pb2.SessionResponse) -> None:
        """Keep a response for the reader, within the window."""
        if self.is_over:
            return
        size_bytes = response.ByteSize()
        if self._waiting_bytes >= self._lines.window_bytes:
            self.cancel()
            self.failure = WindowExceeded("it has sent more than the window of its line")
            return
        self._waiting_bytes += size_bytes
        self._responses.append((response, size_bytes))
        self._on_arrived()

    def take(self) -> Iterator[stage_pb2.LineRequest]:
        """Remove and return what the line has to send, one by one."""
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
        """The next response and its bytes, which its reader reports to `processed`; None if none
        waits."""
        return self._responses.popleft() if self._responses else None

    def processed(self, size_bytes: int) -> None:
        """The reader is done with a response."""
        self._waiting_bytes -= size_bytes
        self._processed_bytes += size_bytes
        if self._owes_report:
            self._lines.serve(self.number)
