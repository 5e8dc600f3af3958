"""Many sessions on one stream: `RunSessions`.

`line_table.py` has the lines. Here one task reads the stream, and one writes what the lines have.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Awaitable, Callable

from antiphon.deadlines.wait_deadline import WaitDeadline
from antiphon.errors import DeadlineExceeded
from antiphon.runtime.server.line_table import BATCH_REQUESTS, LineTable, Serve
from antiphon.v1 import stage_pb2

log = logging.getLogger(__name__)

WINDOW_BYTES = 1 << 20
"""How far a line may be sent ahead of its reader. The first response states it."""

Write = Callable[[stage_pb2.LineResponse], Awaitable[None]]


class ServedLines:
    """The sessions of one stream; `close` it when the stream has ended.

    A session ends if its client processes nothing of it for `patience_s`.
    """

    def __init__(self, serve: Serve, role: str, patience_s: float) -> None:
        self._window_bytes = WINDOW_BYTES
        self._patience_s = patience_s
        self._stalled: dict[int, asyncio.TimerHandle] = {}
        """Each runs while the window of its line is full."""
        self._changed = asyncio.Event()
        self._table = LineTable(serve, role, self._window_bytes, self, self._changed.set)
        self._ending = False

    @property
    def open(self) -> int:
        """Sessions that have not ended."""
        return self._table.open

    async def run(
        self,
        requests: AsyncIterator[stage_pb2.LineRequest],
        write: Write,
        closed: asyncio.Event,
    ) -> None:
        """Serve until the client sends no more, or the stage is `closed`, and no line is left.

        Raises what `requests`, `write` and `LineTable.handle` raise, and `TimeoutError` if one
        write takes too long.
        """
        reading = asyncio.create_task(self._read(requests))
        closing = asyncio.create_task(self._end_with(closed))
        writing = asyncio.create_task(self._write(write))
        tasks = (reading, closing, writing)
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and (failure := reading.exception()) is not None:
                # gRPC rejects the status of a call while a message is being written.
                self._table.close()
                self._end()
                await asyncio.wait((writing,))
                raise failure
            await writing
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def close(self) -> None:
        """Free what all sessions still hold."""
        self._table.close()

    def stalled(self, number: int) -> None:
        """Give a line's reader `patience_s`."""
        loop = asyncio.get_running_loop()
        self._stalled[number] = loop.call_later(self._patience_s, self._give_up, number)

    def moved(self, number: int) -> None:
        """A line's reader has gone on, or its line has ended."""
        self._stalled.pop(number).cancel()

    async def _read(self, requests: AsyncIterator[stage_pb2.LineRequest]) -> None:
        async for request in requests:
            self._table.handle(request)
        self._table.done()
        self._end()

    async def _end_with(self, closed: asyncio.Event) -> None:
        await closed.wait()
        self._end()

    def _end(self) -> None:
        self._ending = True
        self._changed.set()

    async def _write(self, write: Write) -> None:
        async with WaitDeadline(self._patience_s) as patience:
            response = stage_pb2.LineResponse(
                window_bytes=self._window_bytes, batch_requests=BATCH_REQUESTS
            )
            patience.begin()
            await write(response)
            patience.end()
            while not self._ending or not self._table.is_idle:
                await self._changed.wait()
                self._changed.clear()
                while messages := self._table.take():
                    patience.begin()
                    await write(stage_pb2.LineResponse(messages=messages))
                    patience.end()

    def _give_up(self, number: int) -> None:
        log.warning("line %d: its client takes nothing", number)
        error = DeadlineExceeded(
            f"the client has processed nothing for {self._patience_s:g} s (idle_session_timeout_s)"
        )
        self._table.give_up(number, error)
