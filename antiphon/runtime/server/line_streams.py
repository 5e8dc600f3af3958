"""The `RunSessions` streams of a stage.

If the call that carries a stream breaks, the stream's sessions are suspended for the length of the
resume window, as they are when a link breaks. The client can continue the stream on a new call
within this time. Otherwise, the sessions end.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Callable

import grpc
from google.protobuf.message import DecodeError

from antiphon.deadlines.wait_deadline import WaitDeadline
from antiphon.errors import AntiphonError, DataLoss, InvalidArgument, NotFound, Unavailable
from antiphon.runtime.server.served_lines import LineCall, ServedLines, Write, bounds
from antiphon.v1 import stage_pb2

log = logging.getLogger(__name__)

MAX_ID_BYTES = 256
MAX_SUSPENDED = 64
"""The maximum number of suspended streams. If there are more, the one that has been suspended the
longest is ended.
"""


class LineStreams:
    """Serves all `RunSessions` calls until the `closed` event is set.

    `new` creates a stream. `patience_s` is the maximum time in seconds for writing the first
    response. `outcomes` counts the suspensions that have ended with `resumed` or `ended`.
    """

    def __init__(
        self,
        new: Callable[[], ServedLines],
        patience_s: float,
        resume_window_s: float,
        closed: asyncio.Event,
        outcomes: Counter[str],
    ) -> None:
        self._new = new
        self._outcomes = outcomes
        self._patience_s = patience_s
        self._resume_window_s = resume_window_s
        self._closed = closed
        self._streams: dict[str, ServedLines] = {}
        """All streams that have an ID, including suspended ones."""
        self._suspended: dict[str, asyncio.Task[None]] = {}
        """The tasks that end the suspended streams when the resume window is over."""

    async def serve(self, requests: AsyncIterator[stage_pb2.LineRequest], write: Write) -> None:
        """Serve a call. Raises the error that ended it."""
        async with WaitDeadline(self._patience_s) as patience:
            patience.begin()
            await write(bounds(self._resume_window_s))
            patience.end()
        if (first := await self._first(requests)) is None:
            return
        stream_id, lines = self._stream_of(first)
        call = LineCall(first, requests, write, numbered=self._resume_window_s > 0)
        is_broken = True
        try:
            await lines.run(call, self._closed)
        except (InvalidArgument, DataLoss, DecodeError, TimeoutError) as fault:
            is_broken = False
            _log_fault(fault, lines)
            raise
        except (Unavailable, grpc.aio.InternalError):
            log.info("the call of a gateway with %d sessions failed", lines.open)
            raise
        finally:
            if lines.call is call:
                self._ended(stream_id, lines, is_broken=is_broken)

    async def _first(
        self, requests: AsyncIterator[stage_pb2.LineRequest]
    ) -> stage_pb2.LineRequest | None:
        """Return the first request, or None if the stage closes or the client ends the call before
        sending one.
        """
        reading = asyncio.ensure_future(anext(requests, None))
        closing = asyncio.create_task(self._closed.wait())
        try:
            await asyncio.wait((reading, closing), return_when=asyncio.FIRST_COMPLETED)
            return await reading if reading.done() else None
        finally:
            reading.cancel()
            closing.cancel()
            await asyncio.gather(reading, closing, return_exceptions=True)

    def _stream_of(self, first: stage_pb2.LineRequest) -> tuple[str, ServedLines]:
        """Return the call's stream ID and its stream. Raises `InvalidArgument` if the ID is invalid
        or already in use, and `NotFound` if there is no stream to resume.
        """
        if not first.HasField("hello"):
            return "", self._new()
        hello = first.hello
        if fault := self._fault(hello):
            raise fault
        if expiry := self._suspended.pop(hello.stream_id, None):
            expiry.cancel()
            self._outcomes["resumed"] += 1
        if hello.resume:
            lines = self._streams[hello.stream_id]
            log.info("a gateway with %d sessions has reconnected", lines.open)
        else:
            lines = self._new()
            if self._resume_window_s:
                self._streams[hello.stream_id] = lines
        return hello.stream_id, lines

    def _fault(self, hello: stage_pb2.LineHello) -> AntiphonError | None:
        field = "hello.stream_id"
        if not 0 < len(hello.stream_id.encode()) <= MAX_ID_BYTES:
            return InvalidArgument(f"{field}: must have 1 to {MAX_ID_BYTES} bytes", field=field)
        known = hello.stream_id in self._streams
        if hello.resume and not known:
            return NotFound(
                f"{field}: unknown stream: the stage was restarted, or the stream was suspended "
                f"for more than {self._resume_window_s:g} s (resume_window_s); open new "
                "sessions",
                field=field,
            )
        if known and not hello.resume:
            return InvalidArgument(f"{field}: the stream already exists", field=field)
        return None

    def _ended(self, stream_id: str, lines: ServedLines, *, is_broken: bool) -> None:
        """Suspend a stream whose call has ended. If it can't be resumed, end it."""
        known = self._streams.get(stream_id) is lines
        if not (known and is_broken and lines.may_continue) or self._closed.is_set():
            self._end(stream_id, lines)
            return
        if len(self._suspended) >= MAX_SUSPENDED:
            oldest = next(iter(self._suspended))
            self._suspended.pop(oldest).cancel()
            self._outcomes["ended"] += 1
            self._end(oldest, self._streams[oldest])
        log.warning("a gateway with %d sessions has disconnected: suspending them", lines.open)
        self._suspended[stream_id] = asyncio.create_task(self._expire(stream_id, lines))

    async def _expire(self, stream_id: str, lines: ServedLines) -> None:
        """End a suspended stream when the resume window is over or the stage closes."""
        try:
            await asyncio.wait_for(self._closed.wait(), self._resume_window_s)
        except TimeoutError:
            log.warning("a gateway with %d sessions has not reconnected", lines.open)
        self._suspended.pop(stream_id, None)
        self._outcomes["ended"] += 1
        self._end(stream_id, lines)

    def _end(self, stream_id: str, lines: ServedLines) -> None:
        if self._streams.get(stream_id) is lines:
            del self._streams[stream_id]
        lines.close()


def _log_fault(fault: Exception, lines: ServedLines) -> None:
    if isinstance(fault, TimeoutError):
        log.warning("a gateway with %d sessions isn't reading", lines.open)
    else:
        log.warning("a gateway with %d sessions violated the protocol: %s", lines.open, fault)
