"""One stream to a replica that carries the sessions of this gateway, each as a line.

Opening a stream of gRPC costs several times what a message costs. So a session whose opening is
small, and which has one segment, is a line of the replica's `RunSessions` stream. A session with
much input has a stream of its own, because a large message would delay the lines behind it; so has
a conversation, which is opened rarely and may get much input later.

A line's responses wait for its reader. The stage sends `WINDOW_BYTES` of them, or one, ahead of
what the reader has processed, so one slow client holds up no other. A stage that exceeds that loses
the line. An error ends one line; the end of the stream ends all of them, as if each had broken.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import deque
from collections.abc import AsyncIterator, Iterator

import grpc

from antiphon.errors import Unavailable
from antiphon.v1 import session_pb2, stage_pb2
from antiphon.wire.checksum import undamaged
from antiphon_gateway.fleet.replica import Replica
from antiphon_gateway.sessions.line_connection import ConnectionCancelled, SignsOfLife
from antiphon_gateway.sessions.line_requests import LineRequests
from antiphon_gateway.sessions.stage_line import StageLine
from antiphon_gateway.sessions.stage_stream import StageStream

Rpc = grpc.aio.StreamStreamCall[stage_pb2.LineRequest, stage_pb2.LineResponse]

SMALL_BYTES = 64 << 10
"""Largest opening of a session that is sent on a standing stream."""
WINDOW_BYTES = 1 << 20
"""As `LineRequest.processed_bytes` states it."""


class StandingStreams:
    """The standing streams of a gateway, one for each channel; `close` them."""

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

    def _connect(self, replica: Replica, requests: LineRequests) -> _StandingLine:
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
    """One `RunSessions` stream, open from construction until it breaks or is closed."""

    def __init__(self, replica: Replica) -> None:
        self.is_over = False
        self._signs = SignsOfLife(replica)
        self._lines: dict[int, _StandingLine] = {}
        self._numbers = itertools.count(1)
        self._ready: dict[int, None] = {}
        """Lines with something to send, in the order in which they are served."""
        self._changed = asyncio.Event()
        self._rpc: Rpc = replica.stub.RunSessions(self._sent())
        self.reading = asyncio.create_task(self._read())

    def connect(self, requests: LineRequests) -> _StandingLine:
        """Open a line."""
        number = next(self._numbers)
        self._lines[number] = line = _StandingLine(self, number, requests)
        self.serve(number)
        return line

    def serve(self, number: int) -> None:
        """Send what a line has."""
        self._ready[number] = None
        self._changed.set()

    def forget(self, number: int) -> None:
        """Drop a line that has sent nothing."""
        del self._lines[number]

    async def close(self) -> None:
        """End the stream, and all lines with it."""
        self._rpc.cancel()
        await asyncio.wait((self.reading,))

    async def _read(self) -> None:
        failure: Exception = Unavailable("it ended the stream of its sessions")
        try:
            async for response in undamaged(self._rpc):
                self._signs.came()
                for message in response.messages:
                    self._receive(message)
                self._signs.asked()
        except asyncio.CancelledError:
            failure = ConnectionCancelled()
        except (Unavailable, grpc.aio.AioRpcError) as broken:
            failure = broken
        finally:
            self.is_over = True
            # The request iterator ends, which an RPC that is over leaves waiting.
            self._changed.set()
            for line in self._lines.values():
                line.end(failure)
            self._rpc.cancel()

    def _receive(self, message: stage_pb2.LineMessage) -> None:
        line = self._lines.get(message.line)
        if line is None:
            return
        if message.HasField("response"):
            line.receive(message.response)
        elif message.HasField("end"):
            del self._lines[message.line]
            line.end(None)

    async def _sent(self) -> AsyncIterator[stage_pb2.LineRequest]:
        while not self.is_over:
            await self._changed.wait()
            self._changed.clear()
            while self._ready:
                number = next(iter(self._ready))
                del self._ready[number]
                if (line := self._lines.get(number)) is not None:
                    for request in line.take():
                        yield request


class _StandingLine:
    """A `Connection` that is a line of a standing stream."""

    def __init__(self, stream: StandingStream, number: int, requests: LineRequests) -> None:
        self._stream = stream
        self._number = number
        self._requests = requests
        self._has_begun = self._cancelled = self._said_done = self._is_over = False
        self._failure: Exception | None = None
        self._responses: deque[tuple[session_pb2.SessionResponse, int]] = deque()
        self._waiting_bytes = self._processed_bytes = self._reported_bytes = 0
        self._arrived = asyncio.Event()

    @property
    def _owes_report(self) -> bool:
        """Whether the stage should learn how much has been processed."""
        return self._processed_bytes - self._reported_bytes >= WINDOW_BYTES // 4

    def changed(self) -> None:
        """Send what is new."""
        self._stream.serve(self._number)

    def cancel(self) -> None:
        """End the line; what the stage has sent of it is dropped."""
        if self._cancelled or self._is_over:
            return
        self._cancelled = True
        self._responses.clear()
        self.end(ConnectionCancelled())
        if self._has_begun:
            self._stream.serve(self._number)
        else:
            self._stream.forget(self._number)

    def end(self, failure: Exception | None) -> None:
        """Nothing more comes; the reader raises the failure, if there is one, after what came."""
        if not self._is_over:
            self._is_over, self._failure = True, failure
            self._arrived.set()

    def receive(self, response: session_pb2.SessionResponse) -> None:
        """Keep a response for the reader, within the window."""
        if self._is_over:
            return
        size_bytes = response.ByteSize()
        if self._waiting_bytes >= WINDOW_BYTES:
            self.cancel()
            self._failure = Unavailable("it has sent more than the window of its line")
            return
        self._waiting_bytes += size_bytes
        self._responses.append((response, size_bytes))
        self._arrived.set()

    def take(self) -> Iterator[stage_pb2.LineRequest]:
        """What the line has to send."""
        number = self._number
        if self._cancelled:
            yield stage_pb2.LineRequest(line=number, cancel=stage_pb2.LineCancel())
            return
        for request in self._requests.take():
            self._has_begun = True
            yield stage_pb2.LineRequest(line=number, request=request)
        if self._requests.done and not self._said_done:
            self._said_done = True
            yield stage_pb2.LineRequest(line=number, done=stage_pb2.LineDone())
        if self._owes_report:
            self._reported_bytes = self._processed_bytes
            yield stage_pb2.LineRequest(line=number, processed_bytes=self._processed_bytes)

    async def responses(self) -> AsyncIterator[session_pb2.SessionResponse]:
        """What the stage sends on the line."""
        while True:
            while self._responses:
                response, size_bytes = self._responses.popleft()
                yield response
                self._waiting_bytes -= size_bytes
                self._processed_bytes += size_bytes
                if self._owes_report:
                    self._stream.serve(self._number)
            if self._is_over:
                if self._failure is not None:
                    raise self._failure
                return
            self._arrived.clear()
            await self._arrived.wait()
