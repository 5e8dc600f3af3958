"""Talks to a served stage by hand: as the gateway on RunSession or a line of RunSessions, as a
neighbour on Link."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import grpc
import numpy as np

from antiphon.transport.channel import CHANNEL_OPTIONS
from antiphon.v1 import session_pb2, stage_pb2
from antiphon.values.chunk import Chunk
from antiphon.values.segment import FinishReason
from antiphon.wire.chunks import chunk_from_proto, chunk_to_proto
from antiphon.wire.stubs import stage_stub
from antiphon_testkit.stage_harness import RunningStage

Request = session_pb2.SessionRequest


def codes_chunk(
    session_id: str, sequence: int, values: list[int], *, end: bool = False, segment: int = 0
) -> Chunk:
    codes = np.array(values, np.uint16).repeat(2).reshape(-1, 2)
    return Chunk(
        session_id,
        "codes",
        segment=segment,
        sequence=sequence,
        tensors={"codes": codes} if values else {},
        segment_finished=end,
        finish_reason=FinishReason.STOP if end else None,
    )


def opening(session_id: str, **fields: object) -> list[Request]:
    reply = session_pb2.Destination(reply=session_pb2.ReplyTarget())
    route = session_pb2.Route(edge="audio", destinations=[reply])
    return [
        Request(open=session_pb2.SessionOpen(session_id=session_id, routes=[route], **fields)),  # type: ignore[arg-type]
        Request(segment_open=session_pb2.SegmentOpen(segment=0, outputs=["audio"])),
    ]


class StandingStream:
    """A RunSessions stream, by hand. `batches` are the lines of each response."""

    def __init__(self, running: RunningStage) -> None:
        self.rpc = stage_stub(running.channel).RunSessions()
        self.batches: list[list[int]] = []
        self._numbers = itertools.count(1)
        self._lines: dict[int, asyncio.Queue[Any]] = {}
        self._reading = asyncio.create_task(self._read())

    def line(self) -> Line:
        number = next(self._numbers)
        self._lines[number] = responses = asyncio.Queue()
        return Line(self.rpc, number, responses)

    async def _read(self) -> None:
        try:
            async for response in self.rpc:
                assert isinstance(response, stage_pb2.LineResponse)
                self.batches.append([each.line for each in response.messages])
                for message in response.messages:
                    over = message.HasField("end")
                    self._lines[message.line].put_nowait(grpc.aio.EOF if over else message.response)
        except (asyncio.CancelledError, grpc.aio.AioRpcError):
            for each in self._lines.values():
                each.put_nowait(grpc.aio.EOF)


class Line:
    """A line of a standing stream, with the methods of a RunSession call."""

    def __init__(self, rpc: Any, number: int, responses: asyncio.Queue[Any]) -> None:
        self.number = number
        self._rpc = rpc
        self._responses = responses
        self._cancelling: asyncio.Task[None] | None = None

    async def send(self, **message: Any) -> None:
        await self._rpc.write(stage_pb2.LineRequest(line=self.number, **message))

    async def write(self, request: Request) -> None:
        await self.send(request=request)

    async def done_writing(self) -> None:
        await self.send(done=stage_pb2.LineDone())

    @property
    def is_empty(self) -> bool:
        """Whether no response waits to be read."""
        return self._responses.empty()

    async def read(self) -> Any:
        return await self._responses.get()

    def cancel(self) -> None:
        self._cancelling = asyncio.create_task(self.send(cancel=stage_pb2.LineCancel()))


def own_stream(running: RunningStage) -> Any:
    """A RunSession call."""
    return stage_stub(running.channel).RunSession()


def line_of_one(running: RunningStage) -> Line:
    """A line of a standing stream that has no other."""
    return StandingStream(running).line()


class Session:
    """A session of a stage, by hand."""

    carrier: Callable[[RunningStage], Any] = staticmethod(own_stream)
    """What carries all sessions; see the fixture `each_carrier`."""

    def __init__(self, running: RunningStage, session_id: str) -> None:
        self.id = session_id
        self.call = type(self).carrier(running)

    async def send(self, *requests: Request) -> None:
        for request in requests:
            await self.call.write(request)

    async def read(self, kind: str) -> session_pb2.SessionResponse:
        """The next message, of this kind; progress, which a slow machine makes, aside."""
        while True:
            response = await self.call.read()
            assert isinstance(response, session_pb2.SessionResponse), "the stream has ended"
            if kind == "progress" or response.WhichOneof("message") != "progress":
                break
        assert response.WhichOneof("message") == kind, response
        return response

    async def opened(self) -> session_pb2.SessionOpened:
        """Wait until the session is registered and its segment has a slot."""
        opened = (await self.read("opened")).opened
        await self.read("segment_opened")
        return opened

    async def audio(self) -> Chunk:
        return chunk_from_proto((await self.read("chunk")).chunk)

    async def error(self) -> session_pb2.SessionError:
        error = (await self.read("error")).error
        assert await self.call.read() is grpc.aio.EOF
        return error


@asynccontextmanager
async def linked(running: RunningStage) -> AsyncIterator[grpc.aio.StreamStreamCall[object, object]]:
    """An upstream stage's link, on a connection of its own."""
    async with grpc.aio.insecure_channel(running.address, options=CHANNEL_OPTIONS) as channel:
        call = stage_stub(channel).Link()
        await call.write(stage_pb2.LinkRequest(hello=stage_pb2.LinkHello(link_id="up")))
        accept = await call.read()
        assert isinstance(accept, stage_pb2.LinkResponse)
        assert accept.accept.transport == "grpc"
        yield call


def batch(*chunks: Chunk) -> stage_pb2.LinkRequest:
    protos = [chunk_to_proto(chunk) for chunk in chunks]
    return stage_pb2.LinkRequest(batch=stage_pb2.ChunkBatch(chunks=protos))
