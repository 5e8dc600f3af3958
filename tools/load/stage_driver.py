"""Loads one stage with its real protocol: the driver is its gateway, its upstream and its client.

Every session is one `RunSession` stream. The chunks that the stage would get over links
from other stages go in on that stream, and all of its output edges come back on it, so
the stage does all of its work and no other one is needed. What its edges carry is in the
declaration of its pipeline.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import AsyncIterator, Mapping, Sequence

import grpc

from antiphon.errors import DataLoss
from antiphon.pipelines.graph import Pipeline
from antiphon.transport.channel import CHANNEL_OPTIONS
from antiphon.v1 import chunk_pb2, session_pb2, stage_pb2
from antiphon.wire.chunks import chunk_from_proto
from antiphon.wire.convert import error_from_proto
from antiphon.wire.status import error_from_rpc
from antiphon.wire.stubs import stage_stub
from tools.load.content import AUDIO, TEXT, Content
from tools.load.measured import FedAmounts, OwnDelay, StageTimes, Trace
from tools.load.upstream import Feed, FeedOf

Request = session_pb2.SessionRequest

DESCRIBE_TIMEOUT_S = 30.0


async def describe_stage(address: str) -> stage_pb2.DescribeResponse:
    """What the stage at an address says of itself. Raises the typed error of a failed call."""
    async with grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS) as channel:
        try:
            return await stage_stub(channel).Describe(
                stage_pb2.DescribeRequest(), timeout=DESCRIBE_TIMEOUT_S
            )
        except grpc.aio.AioRpcError as failure:
            raise error_from_rpc(failure) from failure


class StageDriver:
    """Implements `run.Driver` for one stage. `paced`: chunks go out at their feed's times.

    A piece of audio is samples, or codec frames where the stage makes these.
    """

    def __init__(
        self,
        address: str,
        pipeline: Pipeline,
        description: stage_pb2.DescribeResponse,
        content: Content,
        feed_of: FeedOf,
        *,
        paced: bool,
        timeout_s: float,
    ) -> None:
        self._channel = grpc.aio.insecure_channel(address, options=CHANNEL_OPTIONS)
        self._stub = stage_stub(self._channel)
        self._pipeline = pipeline
        self._description = description
        self._edges: dict[str, tuple[str, ...]] = {edge.name: () for edge in description.outputs}
        made = {edge.name for edge in description.outputs}
        self.outputs = (made & {TEXT}) | ({AUDIO} if any(map(self._rate_hz, made)) else set())
        self._content = content
        self._feed_of = feed_of
        self._paced = paced
        self._timeout_s = timeout_s

    async def ask(self, trace: Trace) -> None:
        """One session, from its opening to the stage's last word."""
        done = asyncio.Event()
        requests = self._requests(trace, self._feed_of(trace.number), done)
        call = self._stub.RunSession(requests, timeout=self._timeout_s)
        try:
            async for response in call:
                self._take(response, trace, done)
            if not done.is_set():
                raise DataLoss("the stream ended before the stage's report")
        except grpc.aio.AioRpcError as failure:
            raise error_from_rpc(failure, stage=self._description.role) from failure
        finally:
            call.cancel()
            done.set()  # a call that is over leaves its request iterator waiting

    async def aclose(self) -> None:
        """Cancel what runs and close the connection."""
        await self._channel.close()

    async def _requests(
        self, trace: Trace, feed: Feed, done: asyncio.Event
    ) -> AsyncIterator[session_pb2.SessionRequest]:
        """What goes out: the opening, the feed in its time, and the end after the report."""
        session_id = f"load-{uuid.uuid4().hex}"
        clock, started_at = asyncio.get_running_loop().time, trace.sent_at or 0.0
        role = self._description.role
        segment = self._content.segment_open(self._pipeline, role, trace.number)
        for message in opening(session_id, self._edges, segment):
            yield message
        delay, fed_s = OwnDelay(), 0.0
        for timed in feed:
            due_at = started_at + timed.at_s
            if self._paced and (wait_s := due_at - clock()) > 0:
                await asyncio.sleep(wait_s)
                delay.woke(clock() - due_at)
            if self._paced and self._rate_hz(timed.chunk.edge):
                fed_s += self._seconds(timed.chunk)
                trace.fed.append(FedAmounts(fed_s, due_at, delay.of_send(clock() - due_at)))
            chunk = chunk_pb2.Chunk()
            chunk.CopyFrom(timed.chunk)
            chunk.session_id = session_id
            trace.moved(chunk.edge, chunk.ByteSize())
            yield Request(chunk=chunk)
        await done.wait()

    def _take(
        self, response: session_pb2.SessionResponse, trace: Trace, done: asyncio.Event
    ) -> None:
        match response.WhichOneof("message"):
            case "chunk":
                trace.moved(response.chunk.edge, response.chunk.ByteSize())
                self._note(response.chunk, trace)
            case "report":
                trace.stages[self._description.role] = StageTimes.of(response.report)
                done.set()
            case "error":
                raise error_from_proto(response.error)

    def _note(self, proto: chunk_pb2.Chunk, trace: Trace) -> None:
        """Note an output chunk that carries something."""
        now = asyncio.get_running_loop().time()
        if not proto.HasField("payload"):
            return
        if proto.edge == TEXT:
            trace.texts.append(now)
        elif seconds := self._seconds(proto):
            trace.audio.append((now, seconds))

    def _seconds(self, proto: chunk_pb2.Chunk) -> float:
        """How long the audio of a chunk plays; 0 when it carries none, or only primes."""
        rate_hz = self._rate_hz(proto.edge)
        if proto.prime or not rate_hz:
            return 0.0
        tensors = chunk_from_proto(proto).tensors
        return len(tensors.get(self._pipeline.edge(proto.edge).counted_by, ())) / rate_hz

    def _rate_hz(self, edge: str) -> float:
        """Positions in a second of audio; 0 when the edge carries none."""
        told = self._description.sample_rate_hz if edge == AUDIO else 0
        return told or self._pipeline.edge(edge).rate_hz


def opening(
    session_id: str, edges: Mapping[str, Sequence[str]], segment: session_pb2.SegmentOpen
) -> tuple[session_pb2.SessionRequest, ...]:
    """Opens a session and its segment.

    Each edge goes back on the stream, and to the stages at its addresses.
    """
    routes = [_route(edge, addresses) for edge, addresses in edges.items()]
    open_session = session_pb2.SessionOpen(session_id=session_id, routes=routes)
    return Request(open=open_session), Request(segment_open=segment)


def _route(edge: str, addresses: Sequence[str]) -> session_pb2.Route:
    targets = [session_pb2.Destination(reply=session_pb2.ReplyTarget())]
    for address in addresses:
        target = session_pb2.StageTarget(address=address)
        targets.append(session_pb2.Destination(stage=target))
    return session_pb2.Route(edge=edge, destinations=targets)
