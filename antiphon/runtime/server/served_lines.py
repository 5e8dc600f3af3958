"""Serves many sessions on a single `RunSessions` stream.

The lines are implemented in `line_table.py`. In this module, one task reads from the stream, and
another one writes the replies of all lines.
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
"""How many bytes may be sent on a line before its reader has processed them. The first response
states this number to the gateway.
"""

Write = Callable[[stage_pb2.LineResponse], Awaitable[None]]


class ServedLines:
    """The sessions of one stream. Call `close` when the stream has ended.

    A session ends if its client processes nothing for `patience_s` seconds.
    """

    def __init__(self, serve: Serve, role: str, patience_s: float) -> None:
        self._window_bytes = WINDOW_BYTES
        self._patience_s = patience_s
        self._stalled: dict[int, asyncio.TimerHandle] = {}
        """The timers of the lines whose window is full."""
        self._changed = asyncio.Event()
        self._table = LineTable(serve, role, self._window_bytes, self, self._changed.set)
        self._ending = False

    @property
    def open(self) -> int:
        """The number of sessions that have not ended."""
        return self._table.open

    async def run(
        self,
        requests: AsyncIterator[stage_pb2.LineRequest],
        write: Write,
        closed: asyncio.Event,
    ) -> None:
        """Serve until all lines have ended, and either the client sends nothing more or the stage
        is `closed`.

        Raises the errors of `requests`, `write` and `LineTable.handle`, and `TimeoutError` if a
        single write takes too long.
        """
        reading = asyncio.create_task(self._read(requests))
        closing = asyncio.create_task(self._end_with(closed))
        writing = asyncio.create_task(self._write(write))
        tasks = (reading, closing, writing)
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            if reading.done() and (failure := reading.exception()) is not None:
                # gRPC does not accept the status of a call while a message is being written.
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
        """Free the resources of all sessions."""
        self._table.close()

    def stalled(self, number: int) -> None:
        """Start the timer for a line's reader."""
        loop = asyncio.get_running_loop()
        self._stalled[number] = loop.call_later(self._patience_s, self._give_up, number)

    def moved(self, number: int) -> None:
        """Stop the timer, because the line's reader has continued or the line has ended."""
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
