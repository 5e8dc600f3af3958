"""Runs sessions on the three stages in the same way as the gateway."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping

import grpc

from antiphon.pipelines.qwen3_omni import CODE2WAV, PIPELINE, TALKER, THINKER
from antiphon.transport.channel import CHANNEL_OPTIONS
from antiphon.v1 import session_pb2
from antiphon.wire.stubs import stage_stub
from benchmarks.runtime.engines import SAMPLES_PER_FRAME

ROLES = (THINKER, TALKER, CODE2WAV)
# The same limits as in the gateway, for how far stages can run ahead of each other and of the
# client.
FRAMES_AHEAD = 50
SAMPLES_AHEAD = 30 * 24_000


def _routes(role: str, addresses: Mapping[str, str]) -> list[session_pb2.Route]:
    routes = []
    for edge in PIPELINE.outputs(role):
        targets = [
            session_pb2.Destination(stage=session_pb2.StageTarget(address=addresses[consumer]))
            if consumer
            else session_pb2.Destination(reply=session_pb2.ReplyTarget())
            for consumer in edge.consumers
        ]
        routes.append(session_pb2.Route(edge=edge.name, destinations=targets))
    return routes


async def _on_stage(
    channel: grpc.aio.Channel, role: str, session_id: str, addresses: Mapping[str, str]
) -> None:
    """Run the part of a session on one stage, up to its report."""
    opening = session_pb2.SessionOpen(
        session_id=session_id,
        routes=_routes(role, addresses),
        windows={"codes": FRAMES_AHEAD, "audio": SAMPLES_AHEAD},
        first_segment=session_pb2.SegmentOpen(segment=0, outputs=["text", "audio"]),
    )
    reported = asyncio.Event()
    credits: asyncio.Queue[int] = asyncio.Queue(1024)

    async def requests() -> AsyncIterator[session_pb2.SessionRequest]:
        yield session_pb2.SessionRequest(open=opening)
        while positions := await credits.get():
            credit = session_pb2.OutputCredit(edge="audio", positions=positions)
            yield session_pb2.SessionRequest(credit=credit)

    taken = 0
    async for response in stage_stub(channel).RunSession(requests()):
        match response.WhichOneof("message"):
            case "error":
                raise RuntimeError(f"{role}: {response.error.message}")
            case "chunk" if role == CODE2WAV:
                taken = response.chunk.position + 12 * SAMPLES_PER_FRAME
                credits.put_nowait(taken + SAMPLES_AHEAD)
            case "report":
                reported.set()
                credits.put_nowait(0)
    if not reported.is_set():
        raise RuntimeError(f"{role}: the session ended without a report")


async def run_sessions(addresses: Mapping[str, str], sessions: int, name: str) -> None:
    """Run concurrent sessions to their end. Raises `RuntimeError` if one of them fails."""
    channels = {
        role: grpc.aio.insecure_channel(addresses[role], options=CHANNEL_OPTIONS) for role in ROLES
    }
    try:
        async with asyncio.TaskGroup() as group:
            for number in range(sessions):
                for role in ROLES:
                    session = f"{name}-{number}"
                    group.create_task(_on_stage(channels[role], role, session, addresses))
    finally:
        await asyncio.gather(*(channel.close() for channel in channels.values()))
