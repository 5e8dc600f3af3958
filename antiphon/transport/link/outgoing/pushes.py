"""Payloads whose bytes are on their way ahead of their chunks, at most one per transport.

One that is done waits for its chunk's turn. If a chunk that must go before it (sent
again, after it got lost) wants the transport first, it makes room and begins anew:
the consumer keeps one transfer only.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from functools import partial

from antiphon.transport.link.outgoing.send_log import Outgoing
from antiphon.transport.payload.transport import Placement
from antiphon.v1 import chunk_pb2

# After this long others do not wait for it any more but take gRPC.
PATIENCE_S = 1.0


@dataclass(slots=True)
class Push:
    """One payload under way; `stuck` when others should not wait for it any more."""

    transport: str
    chunk: Outgoing
    payload: chunk_pb2.Payload
    task: asyncio.Task[None]
    stuck: bool = False


class Pushes:
    """`changed` is set when one has ended, or when others need not wait for it any more."""

    def __init__(self, changed: asyncio.Event) -> None:
        self._changed = changed
        self._by_transport: dict[str, Push] = {}

    def begin(self, transport: str, chunk: Outgoing, placement: Placement) -> None:
        """Start a placement's push."""
        assert placement.push is not None
        loop = asyncio.get_running_loop()
        task = loop.create_task(_run(placement))
        push = Push(transport, chunk, placement.payload, task)
        timer = loop.call_later(PATIENCE_S, self._lose_patience, push)
        task.add_done_callback(partial(self._ended, timer))
        self._by_transport[transport] = push

    def of(self, chunk: Outgoing) -> Push | None:
        """The push of a chunk, if it has one."""
        return next((push for push in self._by_transport.values() if push.chunk is chunk), None)

    def settle(self, push: Push) -> chunk_pb2.Payload | None:
        """The payload of a push that is done, which is forgotten; None while it is not.

        Raises `PayloadLost` when it failed, and what the stream raised when that did.
        """
        if not push.task.done():
            return None
        del self._by_transport[push.transport]
        push.task.result()
        return push.payload

    def is_busy(self, transport: str) -> bool:
        """Whether a push of the transport is under way."""
        push = self._by_transport.get(transport)
        return push is not None and not push.task.done()

    def is_stuck(self, transport: str) -> bool:
        """Whether a push of the transport has taken so long that others should not wait."""
        return self.is_busy(transport) and self._by_transport[transport].stuck

    def _lose_patience(self, push: Push) -> None:
        push.stuck = True
        self._changed.set()

    def _ended(self, timer: asyncio.TimerHandle, task: asyncio.Task[None]) -> None:
        timer.cancel()
        if not task.cancelled():
            task.exception()  # Heard; `settle` raises it, if anybody still asks.
        self._changed.set()

    async def close(self) -> None:
        """Give up what is under way."""
        tasks = [push.task for push in self._by_transport.values()]
        self._by_transport.clear()
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _run(placement: Placement) -> None:
    assert placement.push is not None
    await placement.push()
