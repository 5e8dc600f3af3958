"""Records the chunks that a deployment's stages send to each other, so that they can be replayed to
a single stage.

Like the gateway, the recorder opens each session on all stages. Every output edge is sent both to
its consumers and to the recorder.
"""

from __future__ import annotations

import asyncio
import uuid
from collections.abc import Mapping
from dataclasses import dataclass, field

from antiphon.client.aio_stage import AsyncStageClient, AsyncStageSession
from antiphon.errors import AntiphonError, DeadlineExceeded
from antiphon.pipelines.graph import CLIENT, Pipeline
from antiphon.pipelines.registry import pipeline_named
from antiphon.v1 import chunk_pb2, session_pb2
from antiphon_tools.load.content import Content
from antiphon_tools.load.stage_driver import ONCE, describe_stage
from antiphon_tools.load.trust import Trust, stage_tls
from antiphon_tools.load.upstream import Feed, Pace, Timed, made_up


async def record(
    stages: Mapping[str, str],
    content: Content,
    sessions: int,
    *,
    timeout_s: float,
    trust: Trust | None = None,
) -> list[Timed]:
    """Run requests one after another on these stages, which are addresses by role.

    Returns the chunks of every edge that a stage consumes, in the order in which they were
    received. If a stage fails, its typed error is raised.
    """
    described = [await describe_stage(stages[role], role, trust) for role in stages]
    pipeline = pipeline_named(described[0].pipeline)
    feeds = {
        each.role: made_up(content, pipeline, each, Pace())
        for each in described
        if any(edge.producer == CLIENT for edge in pipeline.inputs(each.role))
    }
    chunks: list[Timed] = []
    for number in range(sessions):
        fed = {role: feed_of(number) for role, feed_of in feeds.items()}
        session = _CapturedSession(stages, pipeline, content, number, fed, trust)
        try:
            async with asyncio.timeout(timeout_s):
                await session.run()
        except ExceptionGroup as failures:
            raise _first(failures) from failures
        except TimeoutError as late:
            raise DeadlineExceeded(f"no answer was received within {timeout_s:g} s") from late
        chunks += session.chunks
    return chunks


@dataclass(slots=True)
class _CapturedSession:
    """A session on all stages and the chunks that it has produced."""

    stages: Mapping[str, str]
    pipeline: Pipeline
    content: Content
    number: int
    fed: Mapping[str, Feed]
    trust: Trust | None
    chunks: list[Timed] = field(default_factory=list)
    _id: str = field(default_factory=lambda: f"record-{uuid.uuid4().hex}")
    _begun_at: float = 0.0
    _reports: int = 0
    _all_reported: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        """Run the session from its opening until it has ended on all stages."""
        self._begun_at = asyncio.get_running_loop().time()
        async with asyncio.TaskGroup() as group:
            for role in self.stages:
                group.create_task(self._on_stage(role))

    async def _on_stage(self, role: str) -> None:
        async with (
            AsyncStageClient(
                self.stages[role], tls=stage_tls(self.trust, role), retry=ONCE
            ) as stage,
            stage.session(self._routes(role), session_id=self._id) as session,
        ):
            feeding = asyncio.create_task(self._send(session, role))
            try:
                async for response in session:
                    self._take(response)
            except AntiphonError as error:
                error.stage = error.stage or role
                raise
            finally:
                self._all_reported.set()  # If the session has failed, do not wait for its reports.
                feeding.cancel()
                await asyncio.gather(feeding, return_exceptions=True)

    async def _send(self, session: AsyncStageSession, role: str) -> None:
        """Send the segment and the client's input. End the session once every stage has
        reported.
        """
        await session.open_segment(self.content.segment_open(self.pipeline, role, self.number))
        for timed in self.fed.get(role, ()):
            chunk = chunk_pb2.Chunk()
            chunk.CopyFrom(timed.chunk)
            chunk.session_id = self._id
            self._note(chunk)
            await session.send_chunk(chunk)
        await self._all_reported.wait()
        session.finish()

    def _routes(self, role: str) -> dict[str, list[str]]:
        """Return the stages that consume each output edge of a stage."""
        return {
            edge.name: [self.stages[each] for each in edge.consumers if each != CLIENT]
            for edge in self.pipeline.outputs(role)
        }

    def _take(self, response: session_pb2.SessionResponse) -> None:
        match response.WhichOneof("message"):
            case "chunk":
                self._note(response.chunk)
            case "report":
                self._reports += 1
                if self._reports == len(self.stages):
                    self._all_reported.set()

    def _note(self, chunk: chunk_pb2.Chunk) -> None:
        """Store a chunk if a stage consumes it."""
        if any(each != CLIENT for each in self.pipeline.edge(chunk.edge).consumers):
            at_s = asyncio.get_running_loop().time() - self._begun_at
            self.chunks.append(Timed(at_s, chunk))


def _first(failures: ExceptionGroup[Exception]) -> Exception:
    """Return the first error, because errors of other stages are usually consequences of it."""
    first = failures.exceptions[0]
    return _first(first) if isinstance(first, ExceptionGroup) else first
