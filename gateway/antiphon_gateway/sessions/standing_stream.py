"""A single stream to a replica, on which the gateway multiplexes many sessions. Each session is one
line.

Opening a gRPC stream costs several times as much as sending a message. A session with a small
opening message and a single segment therefore becomes a line of the replica's `RunSessions` stream.
A session with a large input has its own stream, because a large message would delay the other
lines. The same applies to a conversation, because it is opened rarely and may receive a large input
later.

`standing_lines.py` implements the lines.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator

import grpc

from antiphon.errors import Internal, Unavailable
from antiphon.v1 import session_pb2, stage_pb2
from antiphon.wire.checksum import undamaged
from antiphon_gateway.fleet.replica import Replica
from antiphon_gateway.sessions.connection_errors import ConnectionCancelled
from antiphon_gateway.sessions.line_connection import SignsOfLife
from antiphon_gateway.sessions.line_requests import LineRequests
from antiphon_gateway.sessions.stage_line import StageLine
from antiphon_gateway.sessions.stage_stream import StageStream
from antiphon_gateway.sessions.standing_lines import StandingLine, StandingLines

log = logging.getLogger(__name__)

Rpc = grpc.aio.StreamStreamCall[stage_pb2.LineRequest, stage_pb2.LineResponse]

SMALL_BYTES = 64 << 10
"""The maximum size in bytes of an opening message that is sent on a standing stream."""


class StandingStreams:
    """The standing streams of a gateway, one for each channel. Call `close` to end them."""

    def __init__(self) -> None:
        self._by_channel: dict[grpc.aio.Channel, StandingStream] = {}

    def open_line(self, replica: Replica, opening: session_pb2.SessionOpen) -> StageLine:
        """Open a session on a replica."""
        offered = replica.description is not None and replica.description.runs_lines
        segment = opening.first_segment
        if not (offered and segment.last) or segment.live or opening.ByteSize() > SMALL_BYTES:
            return StageStream(replica, opening)
        return StageStream(replica, opening, self._connect)

    async def close(self) -> None:
        """End all streams."""
        await asyncio.gather(*(each.close() for each in list(self._by_channel.values())))

    def _connect(self, replica: Replica, requests: LineRequests) -> LineReader:
        channel = replica.channel
        stream = self._by_channel.get(channel)
        if stream is None or stream.is_over:
            stream = StandingStream(replica)
            self._by_channel[channel] = stream
            stream.reading.add_done_callback(lambda _: self._forget(channel, stream))
        return stream.connect(requests)

    def _forget(self, channel: grpc.aio.Channel, stream: StandingStream) -> None:
        if self._by_channel.get(channel) is stream:
            del self._by_channel[channel]


class StandingStream:
    """A single `RunSessions` stream. It is open from its construction until it breaks or is
    closed.
    """

    def __init__(self, replica: Replica) -> None:
        self.is_over = False
        self._role = replica.role
        self._signs = SignsOfLife(replica)
        self._changed = asyncio.Event()
        self._lines = StandingLines(self._changed.set)
        self._rpc: Rpc = replica.stub.RunSessions(self._sent())
        self.reading = asyncio.create_task(self._read())

    def connect(self, requests: LineRequests) -> LineReader:
        """Open a line."""
        arrived = asyncio.Event()
        return LineReader(self._lines.connect(requests, arrived.set), arrived)

    async def close(self) -> None:
        """End the stream and all of its lines."""
        self._rpc.cancel()
        await asyncio.wait((self.reading,))

    async def _read(self) -> None:
        failure: Exception = Unavailable("it ended the stream of its sessions")
        try:
            async for response in undamaged(self._rpc):
                self._signs.came()
                self._lines.receive(response)
                self._signs.asked()
        except asyncio.CancelledError:
            failure = ConnectionCancelled()
        except (Unavailable, grpc.aio.AioRpcError) as broken:
            failure = broken
        except Exception as error:
            log.exception("reading the sessions of the stage %s failed", self._role)
            what = f"reading its sessions failed: {type(error).__name__}: {error}"
            failure = Internal(f"the stage {self._role}: {what}", stage=self._role)
        finally:
            self.is_over = True
            # If the RPC has already ended, gRPC leaves the request iterator waiting, so end it
            # here.
            self._changed.set()
            self._lines.end(failure)
            self._rpc.cancel()

    async def _sent(self) -> AsyncIterator[stage_pb2.LineRequest]:
        while not self.is_over:
            await self._changed.wait()
            self._changed.clear()
            while (request := self._lines.take()) is not None:
                yield request


class LineReader:
    """Implements `Connection` as a line of a standing stream."""

    def __init__(self, line: StandingLine, arrived: asyncio.Event) -> None:
        self._line = line
        self._arrived = arrived

    def changed(self) -> None:
        """Send the new requests."""
        self._line.changed()

    def cancel(self) -> None:
        """End the line, and discard the responses that have not been read."""
        self._line.cancel()

    async def responses(self) -> AsyncIterator[session_pb2.SessionResponse]:
        """Yield the stage's responses on this line."""
        line = self._line
        while True:
            while (read := line.read()) is not None:
                response, size_bytes = read
                yield response
                line.processed(size_bytes)
            if line.is_over:
                if line.failure is not None:
                    raise line.failure
                return
            self._arrived.clear()
            await self._arrived.wait()
