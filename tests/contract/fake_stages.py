"""Stages that follow a script: real gRPC servers with a real health service, no model."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import grpc
import numpy as np
from grpc_health.v1 import health, health_pb2, health_pb2_grpc

from antiphon.errors import AntiphonError
from antiphon.transport.channel import SERVER_OPTIONS
from antiphon.v1 import session_pb2, stage_pb2, stage_pb2_grpc
from antiphon.values.chunk import Chunk, Tensors
from antiphon.values.segment import FinishReason
from antiphon.wire.chunks import chunk_from_proto, chunk_to_proto
from antiphon.wire.convert import error_to_proto, finish_reason_to_proto
from antiphon.wire.frames import add_stage_service
from antiphon.wire.status import abort
from tests.cluster.own_address import process_address

THINKER, TALKER, CODE2WAV = "thinker", "talker", "code2wav"
ROLES = (THINKER, TALKER, CODE2WAV)
EDGES = (
    ("input", "", THINKER),
    ("text", THINKER, ""),
    ("prompt", THINKER, TALKER),
    ("tokens", THINKER, TALKER),
    ("codes", TALKER, CODE2WAV),
    ("audio", CODE2WAV, ""),
)
SAMPLE_RATE_HZ = 24_000
INPUT_RATE_HZ = 16_000
MAX_INPUT_AUDIO_S = 2.0
TEXTS = ("Hello", " wörld", "!")
FRAMES = (1, 2, 3)
"""Codec frames of each audio chunk of the usual script."""


def samples_of(frames: int, start: int) -> np.ndarray[Any, Any]:
    """Some audio that differs from sample to sample."""
    positions = np.arange(start, start + frames * 1920 - (555 if not start else 0))
    return np.sin(positions / 17).astype(np.float32)


class Session:
    """One RunSession stream as a script sees it.

    `cancelled` is certain for a script that waits; one that writes gets an error from
    gRPC, and one that has finished may take a cancelled stream for a half-closed one.
    """

    def __init__(self, role: str, context: Any) -> None:
        self.role = role
        self.opening = session_pb2.SessionOpen()
        self.segment = session_pb2.SegmentOpen()
        self.input: Chunk | None = None
        self.requests: AsyncIterator[session_pb2.SessionRequest]
        self.cancelled = asyncio.Event()
        self.half_closed = asyncio.Event()
        self.ended = asyncio.Event()
        self.context = context
        self._sequences: dict[str, int] = {}

    async def opened(self) -> None:
        """Say that the session is open, which later segments have said already."""
        if self.segment.segment:
            return
        message = session_pb2.SessionOpened(boot_id=f"boot-{self.role}")
        await self.context.write(session_pb2.SessionResponse(opened=message))

    async def next_segment(self) -> None:
        """Wait for another segment, and on the stage that reads the input for that."""
        async for request in self.requests:
            if request.HasField("segment_open"):
                self.segment = request.segment_open
                if self.input is not None:
                    self.input = chunk_from_proto((await anext(self.requests)).chunk)
                opened = session_pb2.SegmentOpened(segment=self.segment.segment)
                await self.context.write(session_pb2.SessionResponse(segment_opened=opened))
                return
        raise AssertionError("no segment followed")

    async def cancelled_segment(self) -> int:
        """Wait until the gateway cancels a segment; its number."""
        async for request in self.requests:
            if request.HasField("cancel_segment"):
                return request.cancel_segment.segment
        raise AssertionError("no segment was cancelled")

    async def refuse_segment(self, error: AntiphonError) -> None:
        """Wait for another segment and refuse it."""
        async for request in self.requests:
            if request.HasField("segment_open"):
                refused = session_pb2.SegmentRefused(
                    segment=request.segment_open.segment, error=error_to_proto(error)
                )
                await self.context.write(session_pb2.SessionResponse(segment_refused=refused))
                return
        raise AssertionError("no segment followed")

    async def chunk(
        self,
        edge: str,
        tensors: Tensors | None = None,
        *,
        position: int = 0,
        finish: FinishReason | None = None,
        skip: int = 0,
    ) -> None:
        """Send a chunk; `skip` leaves a gap in the sequence."""
        sequence = self._sequences.get(edge, 0) + skip
        self._sequences[edge] = sequence + 1
        chunk = Chunk(
            session_id=self.opening.session_id,
            edge=edge,
            segment=self.segment.segment,
            sequence=sequence,
            position=position,
            tensors=tensors or {},
            segment_finished=finish is not None,
            finish_reason=finish,
        )
        await self.context.write(session_pb2.SessionResponse(chunk=chunk_to_proto(chunk)))

    async def text(self, text: str, finish: FinishReason | None = None, *, skip: int = 0) -> None:
        ids = np.arange(len(text), dtype=np.int32)
        utf8 = np.frombuffer(text.encode(), dtype=np.uint8)
        await self.chunk("text", {"ids": ids, "utf8": utf8}, finish=finish, skip=skip)

    async def audio(self, frames: int, start: int, finish: FinishReason | None = None) -> int:
        """Send that many frames from a sample on; returns where the next ones start."""
        samples = samples_of(frames, start)
        codes = np.arange(frames * 16, dtype=np.uint16).reshape(frames, 16)
        tensors = {"samples": samples, "codes": codes}
        await self.chunk("audio", tensors, position=start, finish=finish)
        return start + len(samples)

    async def report(self, reason: FinishReason = FinishReason.STOP, **counts: int) -> None:
        report = session_pb2.SegmentReport(
            segment=self.segment.segment, finish_reason=finish_reason_to_proto(reason), **counts
        )
        await self.context.write(session_pb2.SessionResponse(report=report))

    async def progress(self, segment: int = 0) -> None:
        progress = session_pb2.Progress(segment=segment)
        await self.context.write(session_pb2.SessionResponse(progress=progress))

    async def abort(self, error: AntiphonError) -> None:
        """End the call with an error that is not the session's."""
        await abort(self.context, error)

    async def end(self, status: grpc.StatusCode, words: str) -> None:
        """End the call as gRPC itself does."""
        await self.context.abort(status, words)

    async def error(self, error: AntiphonError) -> None:
        message = session_pb2.SessionResponse(error=error_to_proto(error))
        await self.context.write(message)


class Health(health.aio.HealthServicer):
    """A health service whose checks wait while it is not `answering`; its streams do not.

    Of its next streams the `silent` ones say nothing. If it is `deaf_to_known`, nothing
    is answered to who has asked before.
    """

    def __init__(self, silent: int = 0) -> None:
        super().__init__()
        self.answering = asyncio.Event()
        self.answering.set()
        self.silent = silent
        self.deaf_to_known = False
        self._known: set[str] = set()

    async def Check(self, request: Any, context: Any) -> health_pb2.HealthCheckResponse:
        await self.answering.wait()
        if self.deaf_to_known and context.peer() in self._known:
            await asyncio.Event().wait()
        self._known.add(context.peer())
        return await super().Check(request, context)

    async def Watch(self, request: Any, context: Any) -> None:
        if self.silent:
            self.silent -= 1
            await asyncio.Event().wait()
        if self.deaf_to_known and context.peer() in self._known:
            await asyncio.Event().wait()
        self._known.add(context.peer())
        await super().Watch(request, context)

    def change_unheard(self, serving: bool) -> None:
        """As if the message that tells of it got lost on all streams."""
        response = health_pb2.HealthCheckResponse
        self._server_status[""] = response.SERVING if serving else response.NOT_SERVING


Script = Callable[[Session], Awaitable[None]]


def twice(script: Script) -> Script:
    """The script for the first segment of a session, and for another that follows."""

    async def run(session: Session) -> None:
        await script(session)
        await session.next_segment()
        await script(session)

    return run


async def think(session: Session) -> None:
    """The usual thinker: three pieces of text, 20 prompt tokens of which 7 are audio."""
    await session.opened()
    if "text" in session.segment.outputs:
        for text in TEXTS:
            await session.text(text)
        await session.chunk("text", finish=FinishReason.STOP)
    await session.report(
        input_positions=20, input_audio_positions=7, input_cached_positions=4, output_positions=5
    )


async def talk(session: Session) -> None:
    """The usual talker: says that it has finished."""
    await session.opened()
    await session.report(output_positions=sum(FRAMES))


async def make_waves(session: Session) -> None:
    """The usual code2wav: chunks of FRAMES, then a bare finish."""
    await session.opened()
    start = 0
    for frames in FRAMES:
        start = await session.audio(frames, start)
    await session.chunk("audio", position=start, finish=FinishReason.STOP)
    await session.report(input_positions=sum(FRAMES), output_positions=start)


async def stall(session: Session) -> None:
    """Open the session and say nothing more."""
    await session.opened()
    await asyncio.Event().wait()


USUAL: dict[str, Script] = {THINKER: think, TALKER: talk, CODE2WAV: make_waves}


@dataclass
class FakeStage(stage_pb2_grpc.StageServiceServicer):
    """One stage process. `description` and `script` may be changed between requests."""

    role: str
    script: Script
    description: stage_pb2.DescribeResponse
    sessions: list[Session] = field(default_factory=list)
    # Set while the stage has had a session.
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    # Its port stays free while the stage is down: other processes use other addresses.
    address: str = field(default_factory=lambda: f"{process_address()}:0")
    # Ends the stream after the script, without waiting for the gateway to half-close.
    ends_itself: bool = False
    # What it tells of its load; see `tell_load`.
    load: stage_pb2.StageLoad = field(default_factory=stage_pb2.StageLoad)
    told_anew: asyncio.Event = field(default_factory=asyncio.Event)

    async def start(self, silent: int = 0) -> None:
        """Serve, at the address of before if there was one; see `Health`."""
        self._server = grpc.aio.server(options=SERVER_OPTIONS)
        self.health = Health(silent)
        add_stage_service(self, self._server)
        health_pb2_grpc.add_HealthServicer_to_server(self.health, self._server)
        host, _, _ = self.address.rpartition(":")
        self.address = f"{host}:{self._server.add_insecure_port(self.address)}"
        await self._server.start()

    async def die(self) -> None:
        """End at once, breaking every stream."""
        await self._server.stop(0)

    async def set_serving(self, serving: bool) -> None:
        response = health_pb2.HealthCheckResponse
        await self.health.set("", response.SERVING if serving else response.NOT_SERVING)

    def tell_load(self, **load: Any) -> None:
        """Tell whoever watches that this is its load now."""
        self.load = stage_pb2.StageLoad(**load)
        self.told_anew.set()
        self.told_anew = asyncio.Event()

    async def WatchLoad(self, request: object, context: Any) -> None:
        while True:
            told_anew = self.told_anew
            await context.write(self.load)
            await told_anew.wait()

    async def Describe(self, request: object, context: Any) -> stage_pb2.DescribeResponse:
        return self.description

    async def RunSession(self, request_iterator: AsyncIterator[Any], context: Any) -> None:
        session = Session(self.role, context)
        self.sessions.append(session)
        self.begun.set()
        try:
            _take(session, await anext(request_iterator))
            session.requests = request_iterator
            await self.script(session)
            if self.ends_itself:
                return
            async for _ in request_iterator:
                raise AssertionError("nothing may follow")
            session.half_closed.set()
        except asyncio.CancelledError:
            session.cancelled.set()
            raise
        finally:
            session.ended.set()

    async def Link(self, request_iterator: object, context: Any) -> None:
        await context.abort(grpc.StatusCode.UNIMPLEMENTED, "there are no links here")


def _take(session: Session, request: session_pb2.SessionRequest) -> None:
    session.opening = request.open
    session.segment = request.open.first_segment
    for chunk in request.open.first_input:
        session.input = chunk_from_proto(chunk)


def describe(role: str) -> stage_pb2.DescribeResponse:
    """What a stage of that role tells of itself."""
    response = stage_pb2.DescribeResponse(
        model="fake-omni",
        checkpoint_fingerprint="f00d",
        pipeline="fake",
        role=role,
        boot_id=f"boot-{role}",
        pipeline_edges=[
            stage_pb2.PipelineEdge(name=n, producer=p, consumer=c) for n, p, c in EDGES
        ],
    )
    response.samples = role != CODE2WAV
    if role == THINKER:
        response.context_limit = 4096
        response.input_kinds.extend(("text", "audio"))
        response.input_sample_rate_hz = INPUT_RATE_HZ
        response.max_input_audio_s = MAX_INPUT_AUDIO_S
    if role == TALKER:
        response.voices.extend(("chelsie", "ethan"))
    if role == CODE2WAV:
        response.sample_rate_hz = SAMPLE_RATE_HZ
        response.samples_per_frame = 1920
    return response


@dataclass
class FakeStages:
    """The three stages of the fake pipeline. Use as an async context manager."""

    by_role: dict[str, FakeStage] = field(
        default_factory=lambda: {r: FakeStage(r, USUAL[r], describe(r)) for r in ROLES}
    )

    def __getitem__(self, role: str) -> FakeStage:
        return self.by_role[role]

    async def __aenter__(self) -> FakeStages:
        for stage in self.by_role.values():
            await stage.start()
        return self

    async def __aexit__(self, *unused: object) -> None:
        for stage in self.by_role.values():
            await stage.die()

    def reset(self) -> None:
        """The usual scripts again, and no sessions."""
        for role, stage in self.by_role.items():
            stage.script = USUAL[role]
            stage.ends_itself = False
            stage.description = describe(role)
            stage.tell_load()
            stage.sessions.clear()
            stage.begun.clear()

    async def wait_begun(self, *roles: str) -> None:
        """Return when each of the roles (all, when none is named) has a session.

        A request reaches its stages one by one: that one has it says nothing of the others.
        """
        for role in roles or ROLES:
            await self[role].begun.wait()

    def sessions(self, roles: Sequence[str] = ROLES) -> list[Session]:
        """The latest session of each role."""
        return [self[role].sessions[-1] for role in roles]
