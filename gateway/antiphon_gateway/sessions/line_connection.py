"""The interface for the connection between a session and a stage, and its default implementation,
in which each session has its own stream.
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
"""A message counts as a sign of life if its reader has waited for it for more than this many
seconds, or was away for less than that. Otherwise, the message may have been sent long ago and have
waited in a buffer.
"""

# What gRPC says by itself of a connection that broke, or on which came what nobody has sent: what
# a stage says has its typed form with it.
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
    """Sends the requests of one session until they are `done`, and receives the responses."""

    def changed(self) -> None:
        """Signal that there are new requests, or that the requests are done."""

    def cancel(self) -> None:
        """End the connection immediately, so that the stage frees all resources. This can be called
        more than once.
        """

    def responses(self) -> AsyncIterator[session_pb2.SessionResponse]:
        """Yield the stage's responses until it ends the session.

        Raises `Unavailable` if a message is corrupt, `grpc.aio.AioRpcError` if the stream breaks,
        and `ConnectionCancelled` if the connection was cancelled.
        """


Connect = Callable[[Replica, LineRequests], Connection]


class SignsOfLife:
    """Counts messages of a replica as `outputs` if they were read as soon as they arrived."""

    def __init__(self, replica: Replica) -> None:
        self._replica = replica
        self._away_s = 0.0
        self._asked_at = self._came_at = time.monotonic()

    def asked(self) -> None:
        """Record that the reader is waiting for the next message."""
        self._asked_at = time.monotonic()
        self._away_s = self._asked_at - self._came_at

    def came(self) -> None:
        """Record that a message was received."""
        self._came_at = time.monotonic()
        if self._away_s < FRESH_S or self._came_at - self._asked_at > FRESH_S:
            self._replica.outputs += 1


class OwnStream:
    """A `Connection` that uses its own RunSession stream."""

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
        # If the RPC has already ended, gRPC leaves the request iterator waiting.
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
            # gRPC raises this both if the call was cancelled and if the current task was cancelled.
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
