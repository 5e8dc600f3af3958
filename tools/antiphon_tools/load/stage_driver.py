"""Loads a single stage, using its real protocol.

The driver takes the place of the gateway, the upstream stages and the client. Each session is a
`RunSession` stream. Chunks that other stages would send over links are sent on this stream, and the
stage returns the output of all edges on it. The stage therefore does all of its usual work, but no
other stage is needed. The pipeline's declaration determines the content of the edges.
"""

from __future__ import annotations

import asyncio

from antiphon.client.aio_stage import AsyncStageClient, AsyncStageSession
from antiphon.client.retrying import Retry
from antiphon.errors import AntiphonError, DataLoss
from antiphon.pipelines.graph import Pipeline
from antiphon.v1 import chunk_pb2, session_pb2, stage_pb2
from antiphon.wire.chunks import chunk_from_proto
from antiphon_tools.load.content import AUDIO, TEXT, Content
from antiphon_tools.load.measured import FedAmounts, OwnDelay, StageTimes, Trace
from antiphon_tools.load.trust import Trust, stage_tls
from antiphon_tools.load.upstream import Feed, FeedOf

# A rejection is a valid result, so the request must not be retried.
ONCE = Retry(attempts=1)
DESCRIBE_TIMEOUT_S = 30.0


async def describe_stage(
    address: str, role: str = "", trust: Trust | None = None
) -> stage_pb2.DescribeResponse:
    """Return the description of the stage at an address. With TLS, the stage must have this role.

    Raises the typed error of a failed call.
    """
    async with AsyncStageClient(address, tls=stage_tls(trust, role), retry=ONCE) as stage:
        return await stage.describe(timeout_s=DESCRIBE_TIMEOUT_S)


class StageDriver:
    """Implements `run.Driver` for a single stage.

    If `paced` is true, chunks are sent at the times given by their feed. A piece of audio consists
    of samples, or of codec frames if this is what the stage generates.
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
        trust: Trust | None = None,
    ) -> None:
        tls = stage_tls(trust, description.role)
        self._stage = AsyncStageClient(address, tls=tls, retry=ONCE)
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
        """Run a session until the stage reports its end."""
        feed, reported = self._feed_of(trace.number), False
        async with self._stage.session(self._edges, timeout_s=self._timeout_s) as session:
            feeding = asyncio.create_task(self._send(session, trace, feed))
            try:
                async for response in session:
                    if self._take(response, trace):
                        reported = True
                        session.finish()
            except AntiphonError as error:
                error.stage = error.stage or self._description.role
                raise
            finally:
                feeding.cancel()
                # If sending failed, the reason is the end of the session, which has already been
                # read.
                await asyncio.gather(feeding, return_exceptions=True)
        if not reported:
            raise DataLoss("the stream ended before the stage's report")

    async def aclose(self) -> None:
        """Cancel all sessions and close the connection."""
        await self._stage.close()

    async def _send(self, session: AsyncStageSession, trace: Trace, feed: Feed) -> None:
        """Open a segment and send the feed at its times."""
        clock, started_at = asyncio.get_running_loop().time, trace.sent_at or 0.0
        role = self._description.role
        await session.open_segment(self._content.segment_open(self._pipeline, role, trace.number))
        delay, fed_s = OwnDelay(), 0.0
        for timed in feed:
            due_at = started_at + timed.at_s
            if self._paced and (wait_s := due_at - clock()) > 0:
                await asyncio.sleep(wait_s)
                delay.woke(clock() - due_at)
            if self._paced and self._rate_hz(timed.chunk.edge):
                fed_s += self._seconds(timed.chunk)
                trace.fed.append(FedAmounts(fed_s, due_at, delay.of_send(clock() - due_at)))
            trace.moved(timed.chunk.edge, timed.chunk.ByteSize())
            await session.send_chunk(timed.chunk)

    def _take(self, response: session_pb2.SessionResponse, trace: Trace) -> bool:
        """Process a message. Returns whether it was the report."""
        match response.WhichOneof("message"):
            case "chunk":
                trace.moved(response.chunk.edge, response.chunk.ByteSize())
                self._note(response.chunk, trace)
            case "report":
                trace.stages[self._description.role] = StageTimes.of(response.report)
                return True
        return False

    def _note(self, proto: chunk_pb2.Chunk, trace: Trace) -> None:
        """Record the arrival of an output chunk that has content."""
        now = asyncio.get_running_loop().time()
        if not proto.HasField("payload"):
            return
        if proto.edge == TEXT:
            trace.texts.append(now)
        elif seconds := self._seconds(proto):
            trace.audio.append((now, seconds))

    def _seconds(self, proto: chunk_pb2.Chunk) -> float:
        """Return the duration of the audio in a chunk.

        It is 0 if the chunk contains no audio or is only used for priming.
        """
        rate_hz = self._rate_hz(proto.edge)
        if proto.prime or not rate_hz:
            return 0.0
        tensors = chunk_from_proto(proto).tensors
        return len(tensors.get(self._pipeline.edge(proto.edge).counted_by, ())) / rate_hz

    def _rate_hz(self, edge: str) -> float:
        """Return the number of positions per second of audio, or 0 if the edge carries no audio."""
        told = self._description.sample_rate_hz if edge == AUDIO else 0
        return told or self._pipeline.edge(edge).rate_hz
