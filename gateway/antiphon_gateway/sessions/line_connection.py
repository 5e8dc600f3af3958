"""What carries a session's messages to a stage and back, and a stream of its own as one."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from typing import Protocol

import grpc

from antiphon.v1 import session_pb2
from antiphon.wire.checksum import undamaged
from antiphon_gateway.fleet.replica import Replica
from antiphon_gateway.sessions.connection_errors import ConnectionCancelled
from antiphon_gateway.sessions.line_requests import LineRequests

Rpc = grpc.aio.StreamStreamCall[session_pb2.SessionRequest, session_pb2.SessionResponse]

FRESH_S = 0.1
"""A message counts as a sign of life if its reader has waited for it for so long, or has been away
for less: what waits in a buffer may have been sent long ago."""


class Connection(Protocol):
    """Sends the requests of one session, until these are `done`, and receives its responses."""

    def changed(self) -> None:
        """Send: there are new requests, or they are done."""

    def cancel(self) -> None:
        """End at once; the stage frees everything. May be repeated."""

    def responses(self) -> AsyncIterator[session_pb2.SessionResponse]:
        """What the stage sends, until it ends the session.

        Raises `Unavailable` for a corrupt message, `grpc.aio.AioRpcError` if the stream breaks, and
        `ConnectionCancelled`.
        """


Connect = Callable[[Replica, LineRequests], Connection]


class SignsOfLife:
    """Counts a replica's messages that were read as they came, as its `outputs`."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._away_s = 0.0
        self._asked_at = self._came_at = time.monotonic()

    def asked(self) -> None:
        """The reader waits for the next message."""
        self._asked_at = time.monotonic()
        self._away_s = self._asked_at - self._came_at

    def came(self) -> None:
        """A message was received."""
        self._came_at = time.monotonic()
        if self._away_s < FRESH_S or self._came_at - self._asked_at > FRESH_S:
            self._replica.outputs += 1


class OwnStream:
    """A `Connection` that is a RunSession stream."""

    def __init__(self, replica: Replica, requests: LineRequests) -> None:
        self._replica = replica
        self._requests = requests
        self._changed = asyncio.Event()
        self._changed.set()
        self._rpc: Rpc = replica.stub.RunSession(self._sent())

    def changed(self) -> None:
        """Send what is new."""
        self._changed.set()

    def cancel(self) -> None:
        """End the stream."""
        self._rpc.cancel()
        # An RPC that is over already leaves its request iterator waiting.
        self._requests.done = True
        self._changed.set()

    async def responses(self) -> AsyncIterator[session_pb2.SessionResponse]:
        """What the stage sends."""
        signs = SignsOfLife(self._replica)
        try:
            async for response in undamaged(self._rpc):
                signs.came()
                yield response
                signs.asked()
        except asyncio.CancelledError:
            # gRPC raises it for a call that was cancelled here, and so is this task at its end.
            task = asyncio.current_task()
            if task is not None and task.cancelling():
                raise
            raise ConnectionCancelled from None

    async def _sent(self) -> AsyncIterator[session_pb2.SessionRequest]:
        while not self._requests.done:
            await self._changed.wait()
            self._changed.clear()
            for request in self._requests.take():
                yield request
