"""Serves many sessions on a single `RunSessions` stream.

`line_table.py` manages the lines, and `numbered_lines.py` numbers their messages. For each call,
this module runs one task that reads requests and another that writes responses.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext

from antiphon.deadlines.wait_deadline import WaitDeadline
from antiphon.errors import DeadlineExceeded, Unavailable
from antiphon.runtime.server.line_table import BATCH_REQUESTS, LineTable, Serve
from antiphon.runtime.server.numbered_lines import NumberedLines
from antiphon.transport.confirmation_clock import CONFIRMED_WITHIN_S, ConfirmationClock
from antiphon.v1 import stage_pb2

log = logging.getLogger(__name__)

WINDOW_BYTES = 1 << 20
"""The number of bytes that may be sent on a line before the reader has processed them. The gateway
learns this number from the first response.
"""

Write = Callable[[stage_pb2.LineResponse], Awaitable[None]]


def bounds(resume_window_s: float) -> stage_pb2.LineResponse:
    """Return the first response of a call, which states the stage's limits."""
    return stage_pb2.LineResponse(
        window_bytes=WINDOW_BYTES, batch_requests=BATCH_REQUESTS, resume_window_s=resume_window_s
    )


class LineCall:
    """A `RunSessions` call, with its first request, the iterator for all further requests, and the
    function that writes its responses.

    If the stage doesn't suspend streams, the call is not `numbered`, even if it begins with
    `hello`.
    """

    def __init__(
        self,
        first: stage_pb2.LineRequest,
        requests: AsyncIterator[stage_pb2.LineRequest],
        write: Write,
        *,
        numbered: bool = True,
    ) -> None:
        self.numbered = numbered and first.HasField("hello")
        self.first = first
        self.requests = requests
        self.write = write
        self.is_over = self.is_stalled = False
        self.stopped = asyncio.Event()

    def stop(self) -> None:
        """Stop reading and writing immediately."""
        self.is_over = True
        self.stopped.set()


class ServedLines:
    """The sessions of a single stream. Call `close` when the stream has ended.

    A session ends if its client hasn't processed anything for `patience_s` seconds. The sessions
    are called inside `gathering`, which is entered once for each request or batch of requests.
    """

    def __init__(
        self,
        serve: Serve,
        role: str,
        patience_s: float,
        gathering: Callable[[], AbstractContextManager[None]] = nullcontext,
    ) -> None:
        self._window_bytes = WINDOW_BYTES
        self._patience_s = patience_s
        self._gathering = gathering
        self._stalled: dict[int, asyncio.TimerHandle] = {}
        """A timer for each line whose window is full."""
        self._changed = asyncio.Event()
        self._table = LineTable(serve, role, self._window_bytes, self, self._changed.set)
        self._numbered = NumberedLines(self._table, self._changed.set)
        self._clock = ConfirmationClock(self._numbered.stream, self)
        self._ending = False
        self.call: LineCall | None = None
        """The current call, or the last one if the stream is suspended."""

    @property
    def open(self) -> int:
        """The number of sessions that have not ended."""
        return self._table.open

    @property
    def kept_bytes(self) -> int:
        """The total size in bytes of the messages that are kept because the client hasn't confirmed
        them. It doesn't change while the stream is suspended.
        """
        return self._numbered.stream.log_bytes

    @property
    def may_continue(self) -> bool:
        """Whether the stream can continue on a new call."""
        return self._numbered.may_continue

    async def run(self, call: LineCall, closed: asyncio.Event) -> None:
        """Serve a call, which replaces the previous one. Returns when another call takes over, the
        client leaves or has no more requests, or the `closed` event is set.

        If the stage is closing, all lines have ended by the time this returns. The same applies if
        the client has no more requests, unless the stream can continue on a new call.

        Raises the errors of `LineCall.requests`, `LineCall.write` and `NumberedLines.handle`. Also
        raises `Unavailable` if the client stops confirming messages, and `TimeoutError` if a single
        write takes too long.
        """
        if self.call is not None:
            self.call.stop()
        self.call = call
        if call.numbered:
            self._numbered.begin(call.first)
        else:
            self._handle(call.first)
        stopping = asyncio.create_task(call.stopped.wait())
        reading = asyncio.create_task(self._read(call))
        closing = asyncio.create_task(self._end_with(closed))
        writing = asyncio.create_task(self._write(call))
        tasks = (stopping, reading, closing, writing)
        try:
            await asyncio.wait((stopping, reading, writing), return_when=asyncio.FIRST_COMPLETED)
            if call.is_stalled:
                raise Unavailable(
                    f"the client has not confirmed anything for {CONFIRMED_WITHIN_S:g} s"
                )
            if call.is_over:
                return
            if reading.done() and (failure := reading.exception()) is not None:
                # gRPC rejects the call's status while a message is being written, so wait for the
                # writer.
                call.is_over = True
                if not self.may_continue:
                    self._table.close()
                self._changed.set()
                await asyncio.wait((writing,))
                raise failure
            await writing
        finally:
            call.is_over = True
            self._clock.stop()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Free the resources of all sessions."""
        self._table.close()

    def confirm(self) -> None:
        """Confirm the messages that have been received."""
        self._changed.set()

    def give_call_up(self) -> None:
        """End the call, because the client hasn't confirmed the messages that were sent on it."""
        if self.call is not None:
            self.call.is_stalled = True
            self.call.stop()

    def stalled(self, number: int) -> None:
        """Start the timer of a line whose window is full."""
        loop = asyncio.get_running_loop()
        self._stalled[number] = loop.call_later(self._patience_s, self._give_up, number)

    def moved(self, number: int) -> None:
        """Stop the timer of a line, because its reader has made progress or the line has ended."""
        self._stalled.pop(number).cancel()

    async def _read(self, call: LineCall) -> None:
        async for request in call.requests:
            if call.is_over:
                return
            self._handle(request)
            self._run_clock()
            if self._numbered.said_goodbye:
                self._table.close()
                break
        if self.may_continue:
            # Treat this as a broken call. gRPC doesn't distinguish between a broken call and a
            # client that has no more requests.
            call.stop()
        elif not call.is_over:
            self._table.done()
            self._end()

    def _handle(self, request: stage_pb2.LineRequest) -> None:
        with self._gathering():
            self._numbered.handle(request)

    async def _end_with(self, closed: asyncio.Event) -> None:
        await closed.wait()
        self._end()

    def _end(self) -> None:
        self._ending = True
        self._changed.set()

    async def _write(self, call: LineCall) -> None:
        # The previous call's writer may have consumed the last change, so check for messages first.
        self._changed.set()
        async with WaitDeadline(self._patience_s) as patience:
            while not call.is_over and not (self._ending and self._table.is_idle):
                await self._changed.wait()
                self._changed.clear()
                while not call.is_over and (response := self._numbered.take()) is not None:
                    patience.begin()
                    await call.write(response)
                    patience.end()
                    self._run_clock()

    def _run_clock(self) -> None:
        if self.may_continue:
            self._clock.start()

    def _give_up(self, number: int) -> None:
        log.warning("line %d: its client isn't reading", number)
        error = DeadlineExceeded(
            f"the client has not processed anything for {self._patience_s:g} s "
            "(sessions.idle_session_timeout_s)"
        )
        self._table.give_up(number, error)
