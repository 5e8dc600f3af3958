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
from dataclasses import dataclass

import grpc
from google.protobuf.message import DecodeError

from antiphon.deadlines.wait_deadline import WaitDeadline
from antiphon.errors import AntiphonError, DataLoss, InvalidArgument, NotFound, Unavailable
from antiphon.runtime.server.served_lines import LineCall, ServedLines, Write, bounds
from antiphon.v1 import stage_pb2

log = logging.getLogger(__name__)

MAX_ID_BYTES = 256
MAX_SUSPENDED_BYTES = 256 << 20
"""The maximum total size of the messages that are kept for suspended streams. If it is exceeded,
the streams that have been suspended the longest are ended.
"""
MAX_ENDED_SESSIONS = 64
"""The maximum number of suspended streams beyond the number of sessions that a stage may have. They
allow for streams whose sessions have ended but whose last messages haven't been confirmed.
"""


@dataclass(frozen=True, slots=True)
class _Suspension:
    """A suspended stream. `expiry` is the task that ends it when the resume window is over, and
    `size_bytes` is the total size of the messages that are kept for it.
    """

    expiry: asyncio.Task[None]
    size_bytes: int


class LineStreams:
    """Serves all `RunSessions` calls until the `closed` event is set.

    `new` creates a stream. `patience_s` is the maximum time in seconds for writing the first
    response. `outcomes` counts the suspensions that have ended with `resumed` or `ended`. At most
    `max_sessions` + `MAX_ENDED_SESSIONS` streams are suspended at the same time, because each
    session may have a stream of its own.
    """

    def __init__(
        self,
        new: Callable[[], ServedLines],
        patience_s: float,
        resume_window_s: float,
        closed: asyncio.Event,
        outcomes: Counter[str],
        max_sessions: int,
    ) -> None:
        self._new = new
        self._outcomes = outcomes
        self._patience_s = patience_s
        self._resume_window_s = resume_window_s
        self._closed = closed
        self._streams: dict[str, ServedLines] = {}
        """All streams that have an ID, including suspended ones."""
        self._max_suspended = max_sessions + MAX_ENDED_SESSIONS
        self._suspended: dict[str, _Suspension] = {}
        """The suspended streams, starting with the one that has been suspended the longest."""
        self._suspended_bytes = 0

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
        if hello.stream_id in self._suspended:
            self._leave_suspension(hello.stream_id, "resumed").expiry.cancel()
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
        size_bytes = lines.kept_bytes
        while self._suspended and self._is_full(size_bytes):
            oldest = next(iter(self._suspended))
            self._leave_suspension(oldest, "ended").expiry.cancel()
            self._end(oldest, self._streams[oldest])
        log.warning("a gateway with %d sessions has disconnected: suspending them", lines.open)
        expiry = asyncio.create_task(self._expire(stream_id, lines))
        self._suspended[stream_id] = _Suspension(expiry, size_bytes)
        self._suspended_bytes += size_bytes

    def _is_full(self, more_bytes: int) -> bool:
        """Return whether another stream of this size can't be suspended."""
        is_full = len(self._suspended) >= self._max_suspended
        return is_full or self._suspended_bytes + more_bytes > MAX_SUSPENDED_BYTES

    def _leave_suspension(self, stream_id: str, outcome: str) -> _Suspension:
        suspension = self._suspended.pop(stream_id)
        self._suspended_bytes -= suspension.size_bytes
        self._outcomes[outcome] += 1
        return suspension

    async def _expire(self, stream_id: str, lines: ServedLines) -> None:
        """End a suspended stream when the resume window is over or the stage closes."""
        try:
            # Unlike `wait_for`, this is always cancelled when the stream is resumed.
            async with asyncio.timeout(self._resume_window_s):
                await self._closed.wait()
        except TimeoutError:
            log.warning("a gateway with %d sessions has not reconnected", lines.open)
        self._leave_suspension(stream_id, "ended")
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
