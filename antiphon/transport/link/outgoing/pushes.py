"""Payload transfers in progress ahead of their chunks, at most one per transport.

A completed transfer waits for its chunk's turn. If an earlier chunk that is resent needs the
transport first, the transfer is dropped and restarted later, because the consumer keeps only one.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from antiphon.transport.link.outgoing.send_log import Outgoing
from antiphon.transport.payload.transport import Placement
from antiphon.v1 import chunk_pb2

# After this time, other payloads use gRPC instead of waiting.
PATIENCE_S = 1.0


@dataclass(slots=True)
class Push:
    """One transfer. `stuck` means that other payloads no longer wait for it."""

    transport: str
    chunk: Outgoing
    payload: chunk_pb2.Payload
    task: asyncio.Task[None]
    stuck: bool = False


class Pushes:
    """Transfers by transport. `changed` is set when one ends or becomes stuck."""

    def __init__(self, changed: asyncio.Event) -> None:
        self._changed = changed
        self._by_transport: dict[str, Push] = {}

    def begin(self, transport: str, chunk: Outgoing, placement: Placement) -> None:
        """Start a placement's transfer."""
        assert placement.push is not None
        loop = asyncio.get_running_loop()
        task = loop.create_task(_run(placement))
        push = Push(transport, chunk, placement.payload, task)
        timer = loop.call_later(PATIENCE_S, self._lose_patience, push)
        task.add_done_callback(partial(self._ended, timer))
        self._by_transport[transport] = push

    def of(self, chunk: Outgoing) -> Push | None:
        """Return a chunk's transfer, None if there is none."""
        return next((push for push in self._by_transport.values() if push.chunk is chunk), None)

    def settle(self, push: Push) -> chunk_pb2.Payload | None:
        """Remove a completed transfer and return its payload; None while it is in progress.

        Raises `PayloadLost` if it failed, and the stream's error if that failed.
        """
        if not push.task.done():
            return None
        del self._by_transport[push.transport]
        push.task.result()
        return push.payload

    def is_busy(self, transport: str) -> bool:
        """Return whether a transfer of the transport is in progress."""
        push = self._by_transport.get(transport)
        return push is not None and not push.task.done()

    def is_stuck(self, transport: str) -> bool:
        """Return whether a transfer has taken longer than `PATIENCE_S`."""
        return self.is_busy(transport) and self._by_transport[transport].stuck

    def _lose_patience(self, push: Push) -> None:
        push.stuck = True
        self._changed.set()

    def _ended(self, timer: asyncio.TimerHandle, task: asyncio.Task[None]) -> None:
        timer.cancel()
        if not task.cancelled():
            task.exception()  # Marks it as retrieved; `settle` raises it.
        self._changed.set()

    async def close(self) -> None:
        """Cancel the transfers in progress."""
        tasks = [push.task for push in self._by_transport.values()]
        self._by_transport.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(placement: Placement) -> None:
    assert placement.push is not None
    await placement.push()
