"""The interface of a connection between a session and a stage. In the default implementation, each
session has its own stream.
"""

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
"""A message counts as a sign of life if its reader had been waiting for it for more than this many
seconds, or had been away for less than this many seconds. Otherwise, the message might have been
sent a long time ago and have been waiting in a buffer since then.
"""

# The statuses that gRPC itself reports for a connection that broke or received corrupted data. If
# the error comes from the stage, the status includes a typed error.
LOST_STATUS = frozenset(
    {
        grpc.StatusCode.UNAVAILABLE,
        grpc.StatusCode.CANCELLED,
        grpc.StatusCode.INTERNAL,
        grpc.StatusCode.UNKNOWN,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


class Connection(Protocol):
    """Sends the requests of one session until they are `done` and receives the responses."""

    def changed(self) -> None:
        """Note that there are new requests or that there won't be any more."""

    def cancel(self) -> None:
        """End the connection right away, so that the stage frees all resources. This can be called
        more than once.
        """

    def responses(self) -> AsyncIterator[session_pb2.SessionResponse]:
        """Yield the stage's responses until it ends the session.

        Raises `Unavailable` if a message is corrupted, `grpc.aio.AioRpcError` if the stream breaks,
        and `ConnectionCancelled` if the connection has been cancelled.
        """


Connect = Callable[[Replica, LineRequests], Connection]


class SignsOfLife:
    """Counts a replica's messages as `outputs`, provided that they were read as soon as they
    arrived.
    """

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._away_s = 0.0
        self._asked_at = self._came_at = time.monotonic()

    def asked(self) -> None:
        """Record that the reader is waiting for the next message."""
        self._asked_at = time.monotonic()
        self._away_s = self._asked_at - self._came_at

    def came(self) -> None:
        """Record that a message has been received."""
        self._came_at = time.monotonic()
        if self._away_s < FRESH_S or self._came_at - self._asked_at > FRESH_S:
            self._replica.outputs += 1


class OwnStream:
    """A `Connection` with a RunSession stream of its own."""

    def __init__(self, replica: Replica, requests: LineRequests) -> None:
        self._replica = replica
        self._requests = requests
        self._changed = asyncio.Event()
        self._changed.set()
        self._rpc: Rpc = replica.stub.RunSession(self._sent())

    def changed(self) -> None:
        """Send the new requests."""
        self._changed.set()

    def cancel(self) -> None:
        """End the stream."""
        self._rpc.cancel()
        # If the RPC has already ended, gRPC leaves the request iterator waiting forever.
        self._requests.done = True
        self._changed.set()

    async def responses(self) -> AsyncIterator[session_pb2.SessionResponse]:
        """Yield the stage's responses."""
        signs = SignsOfLife(self._replica)
        try:
            async for response in undamaged(self._rpc):
                signs.came()
                yield response
                signs.asked()
        except asyncio.CancelledError:
            # gRPC raises CancelledError both when the call is cancelled and when the current task
            # is cancelled.
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
