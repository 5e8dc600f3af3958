"""Many sessions on one stream: `RunSessions`.

Each session is a line with a number. Requests are handled as they come, so there is nothing that
waits to be handled, and no task for each session. Replies wait in the outbox of their session. One
writer takes what all lines have, and sends it in one response:

    table → outbox of a session → ready line → batch → one message to the gateway

An engine step makes replies for many sessions in one turn of the event loop, so they share a
message. A line is sent at most `WINDOW_BYTES` ahead of what its reader has processed. The rest
stays in the line's outbox, which has its own bound, so a slow reader delays and fails
its own session only.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass

from google.protobuf.message import DecodeError

from antiphon.deadlines.wait_deadline import WaitDeadline
from antiphon.errors import AntiphonError, DeadlineExceeded
from antiphon.runtime.server.served_session import ServedSession, check_opening, refusal
from antiphon.v1 import session_pb2, stage_pb2

log = logging.getLogger(__name__)

WINDOW_BYTES = 1 << 20
"""As `LineRequest.processed_bytes` states it."""
BATCH_BYTES = 256 << 10
"""A response is sent when it has so many bytes, though more is ready."""

Serve = Callable[[session_pb2.SessionOpen, Callable[[], None]], ServedSession]
"""Registers a session, whose replies are announced by the callback. Raises as `ServedSession`."""
Write = Callable[[stage_pb2.LineResponse], Awaitable[None]]


@dataclass(slots=True)
class _ServedLine:
    session: ServedSession
    sent_bytes: int = 0
    processed_bytes: int = 0
    given_up: asyncio.TimerHandle | None = None
    """Runs while the window is full."""

    @property
    def is_full(self) -> bool:
        return self.sent_bytes - self.processed_bytes >= WINDOW_BYTES


class ServedLines:
    """The sessions of one stream; `close` it when the stream has ended.

    A session ends if its client processes nothing of it for `patience_s`.
    """

    def __init__(self, serve: Serve, role: str, patience_s: float) -> None:
        self._serve = serve
        self._role = role
        self._patience_s = patience_s
        self._lines: dict[int, _ServedLine] = {}
        self._newest = 0
        self._ready: dict[int, None] = {}
        """Lines with replies, in the order in which they are served."""
        self._urgent: list[stage_pb2.LineMessage] = []
        """Messages of lines that have no outbox."""
        self._changed = asyncio.Event()
        self._ending = False

    @property
    def open(self) -> int:
        """Sessions that have not ended."""
        return len(self._lines)

    async def run(
        self,
        requests: AsyncIterator[stage_pb2.LineRequest],
        write: Write,
        closed: asyncio.Event,
    ) -> None:
        """Serve until the client sends no more, or the stage is `closed`, and no line is left.

        Raises what `requests` and `write` raise, and `TimeoutError` if one write takes too long.
        """
        reading = asyncio.create_task(self._read(requests))
        closing = asyncio.create_task(self._end_with(closed))
        writing = asyncio.create_task(self._write(write))
        tasks = (reading, closing, writing)
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            if reading.done():
                reading.result()
            await writing
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Free what all sessions still hold."""
        for number in list(self._lines):
            self._drop(number)

    async def _read(self, requests: AsyncIterator[stage_pb2.LineRequest]) -> None:
        async for request in requests:
            self._handle(request)
        for line in list(self._lines.values()):
            line.session.done()
        self._end()

    async def _end_with(self, closed: asyncio.Event) -> None:
        await closed.wait()
        self._end()

    def _end(self) -> None:
        self._ending = True
        self._changed.set()

    async def _write(self, write: Write) -> None:
        async with WaitDeadline(self._patience_s) as patience:
            while not self._ending or self._lines or self._urgent:
                await self._changed.wait()
                self._changed.clear()
                while messages := self._take():
                    patience.begin()
                    await write(stage_pb2.LineResponse(messages=messages))
                    patience.end()

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
                line.processed_bytes = request.processed_bytes
                if line.given_up is not None and not line.is_full:
                    line.given_up.cancel()
                    line.given_up = None
                    self._queue(number)
            case "done":
                line.session.done()
            case "cancel":
                self._drop(number)
                self._say_end(number)

    def _open(self, number: int, first: session_pb2.SessionRequest) -> None:
        try:
            opening = check_opening(first)
            session = self._serve(opening, lambda: self._queue(number))
        except (AntiphonError, DecodeError) as error:
            self._refuse(number, error)
            return
        self._lines[number] = _ServedLine(session)
        session.begin(opening)

    def _queue(self, number: int) -> None:
        """Serve a line: it has replies."""
        self._ready[number] = None
        self._changed.set()

    def _take(self) -> list[stage_pb2.LineMessage]:
        """What is ready, up to a batch."""
        messages, self._urgent = self._urgent, []
        size_bytes = 0
        while self._ready and size_bytes < BATCH_BYTES:
            number = next(iter(self._ready))
            del self._ready[number]
            if (line := self._lines.get(number)) is not None:
                size_bytes += self._take_from(number, line, BATCH_BYTES - size_bytes, messages)
        return messages

    def _take_from(
        self, number: int, line: _ServedLine, most_bytes: int, messages: list[stage_pb2.LineMessage]
    ) -> int:
        """Move replies of a line to the messages; how many bytes they have."""
        replies, taken_bytes = line.session.replies, 0
        while not replies.is_empty:
            if line.is_full:
                self._wait_for_reader(number, line)
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

    def _wait_for_reader(self, number: int, line: _ServedLine) -> None:
        if line.given_up is None:
            loop = asyncio.get_running_loop()
            line.given_up = loop.call_later(self._patience_s, self._give_up, number, line)

    def _give_up(self, number: int, line: _ServedLine) -> None:
        log.warning("session %s: its client takes nothing", line.session.session_id)
        self._drop(number)
        error = DeadlineExceeded(
            f"the client has processed nothing for {self._patience_s:g} s (idle_session_timeout_s)"
        )
        self._refuse(number, error)

    def _drop(self, number: int) -> None:
        """Forget a line and free its session."""
        line = self._lines.pop(number)
        self._ready.pop(number, None)
        if line.given_up is not None:
            line.given_up.cancel()
        line.session.close()
        if self._ending:
            self._changed.set()

    def _refuse(self, number: int, error: Exception) -> None:
        """End a line that has no session with an error."""
        response = refusal(error, self._role)
        self._urgent.append(stage_pb2.LineMessage(line=number, response=response))
        self._say_end(number)

    def _say_end(self, number: int) -> None:
        self._urgent.append(_end_of(number))
        self._changed.set()


def _end_of(number: int) -> stage_pb2.LineMessage:
    return stage_pb2.LineMessage(line=number, end=stage_pb2.LineEnd())
