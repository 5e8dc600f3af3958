"""Payload transfers that run ahead of their chunks. Each transport runs at most one transfer at a
time.

A completed transfer waits until it is its chunk's turn. If an earlier chunk has to be sent again
and needs the transport first, the transfer is dropped and restarted later, because the consumer can
keep only one transfer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from antiphon.transport.link.outgoing.send_log import Outgoing
from antiphon.transport.payload.transport import Placement
from antiphon.v1 import chunk_pb2

# After this many seconds, other payloads are sent over gRPC instead of waiting for the transfer.
PATIENCE_S = 1.0


@dataclass(slots=True)
class Push:
    """A single transfer. Once it is `stuck`, other payloads no longer wait for it."""

    transport: str
    chunk: Outgoing
    payload: chunk_pb2.Payload
    task: asyncio.Task[None]
    stuck: bool = False


class Pushes:
    """The transfers of all transports. `changed` is set when a transfer completes or gets stuck."""

    def __init__(self, changed: asyncio.Event) -> None:
        self._changed = changed
        self._by_transport: dict[str, Push] = {}

    def begin(self, transport: str, chunk: Outgoing, placement: Placement) -> None:
        """Start the transfer of a placement."""
        assert placement.push is not None
        loop = asyncio.get_running_loop()
        task = loop.create_task(_run(placement))
        push = Push(transport, chunk, placement.payload, task)
        timer = loop.call_later(PATIENCE_S, self._lose_patience, push)
        task.add_done_callback(partial(self._ended, timer))
        self._by_transport[transport] = push

    def of(self, chunk: Outgoing) -> Push | None:
        """Return a chunk's transfer, or None if it has none."""
        return next((push for push in self._by_transport.values() if push.chunk is chunk), None)

    def settle(self, push: Push) -> chunk_pb2.Payload | None:
        """Remove a completed transfer and return its payload. Returns None if the transfer is still
        in progress.

        Raises `PayloadLost` if the transfer failed, and the stream's error if the stream failed.
        """
        if not push.task.done():
            return None
        del self._by_transport[push.transport]
        push.task.result()
        return push.payload

    def is_busy(self, transport: str) -> bool:
        """Return whether the transport has a transfer in progress."""
        push = self._by_transport.get(transport)
        return push is not None and not push.task.done()

    def is_stuck(self, transport: str) -> bool:
        """Return whether the transport has a transfer that has been running for more than
        `PATIENCE_S` seconds.
        """
        return self.is_busy(transport) and self._by_transport[transport].stuck

    def _lose_patience(self, push: Push) -> None:
        push.stuck = True
        self._changed.set()

    def _ended(self, timer: asyncio.TimerHandle, task: asyncio.Task[None]) -> None:
        timer.cancel()
        if not task.cancelled():
            task.exception()  # This marks the exception as retrieved. `settle` raises it.
        self._changed.set()

    async def close(self) -> None:
        """Cancel all transfers that are in progress."""
        tasks = [push.task for push in self._by_transport.values()]
        self._by_transport.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(placement: Placement) -> None:
    assert placement.push is not None
    await placement.push()
