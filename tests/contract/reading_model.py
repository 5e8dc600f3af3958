"""Fake stages of a model that reads aloud, and a gateway in front of them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import httpx
import numpy as np

from antiphon.errors import Internal
from antiphon.v1 import stage_pb2
from antiphon.values.segment import FinishReason
from antiphon_gateway.server import Gateway
from tests.contract.fake_stages import FakeStage, FakeStages, Session
from tests.contract.served_gateway import deployment_of

SPEAKER, VOCODER = "speaker", "vocoder"
GRAPH = (("script", "", SPEAKER), ("frames", SPEAKER, VOCODER), ("audio", VOCODER, ""))
RATE_HZ = 8000
SAMPLES = np.sin(np.arange(1001) / 9).astype(np.float32)
PCM16 = np.rint(SAMPLES * 32767).astype("<i2").tobytes()
PIECES = np.split(SAMPLES, [7, 100, 1000])


async def read(session: Session) -> None:
    await session.opened()
    if session.role == VOCODER:
        start = 0
        for number, piece in enumerate(PIECES):
            finish = FinishReason.STOP if number == len(PIECES) - 1 else None
            await session.chunk("audio", {"samples": piece}, position=start, finish=finish)
            start += len(piece)
    await session.report(input_positions=5 if session.role == SPEAKER else 0, output_positions=4)


async def break_off(session: Session) -> None:
    await session.opened()
    await session.chunk("audio", {"samples": PIECES[0]})
    await session.error(Internal("enough"))


def described(role: str) -> stage_pb2.DescribeResponse:
    return stage_pb2.DescribeResponse(
        model="reader",
        pipeline="reader",
        role=role,
        input_kinds=["text"],
        samples=role == SPEAKER,
        reads_aloud=role == SPEAKER,
        voices=["alto", "bass"] if role == SPEAKER else [],
        sample_rate_hz=RATE_HZ if role == VOCODER else 0,
        samples_per_frame=80 if role == VOCODER else 0,
        pipeline_edges=[
            stage_pb2.PipelineEdge(name=name, producer=producer, consumer=consumer)
            for name, producer, consumer in GRAPH
        ],
    )


Reader = tuple[FakeStages, Gateway]


@asynccontextmanager
async def open_reader(
    prepare: Callable[[FakeStages], None] = lambda _: None, **settings: Any
) -> AsyncIterator[Reader]:
    """Both stages, and a gateway in front of them once they are prepared."""
    stages = FakeStages({r: FakeStage(r, read, described(r)) for r in (SPEAKER, VOCODER)})
    prepare(stages)
    async with stages as fakes, Gateway(deployment_of(fakes, **settings)) as gateway:
        await gateway.wait_ready()
        yield fakes, gateway


async def post(reader: Reader, path: str = "/v1/audio/speech", **body: object) -> httpx.Response:
    async with httpx.AsyncClient(base_url=f"http://{reader[1].http_address}") as http:
        return await http.post(path, json={"model": "reader", **body}, timeout=240)
