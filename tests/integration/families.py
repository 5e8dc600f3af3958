"""Families without models, served by the real runtime behind the real gateway."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, replace

import httpx
import numpy as np

import antiphon
from antiphon.deployment.schema import Deployment, StageConfig
from antiphon.deployment.stage_config import TransportName
from antiphon.pipelines.graph import VARIES, Pipeline, TensorSpec
from antiphon.runtime.engine import Completed, Emitted, EngineEvent, LoadedStage
from antiphon.tracing.tracing import open_tracing
from antiphon.values.chunk import concatenate
from antiphon.values.conversation import TextPart, from_tensors
from antiphon.values.segment import FinishReason, SegmentKey
from antiphon_gateway.server import Gateway
from antiphon_testkit.gateway_settings import gateway_config
from antiphon_testkit.stage_harness import LIMITS, LINKS, RunningStage, running_stage
from tests.integration.scripted_engine import Chunks

STOP = FinishReason.STOP
INPUT = TensorSpec("messages", "uint8", (VARIES,))
IDS = TensorSpec("ids", "int32", (VARIES,))
UTF8 = TensorSpec("utf8", "uint8", (VARIES,))
SAMPLES = TensorSpec("samples", "float32", (VARIES,))
TEXT = "Grüße, 世界 🎈!"
RATE_HZ = 44_100
PER_CHARACTER = 441


# Room for a voice that comes before its session, and for an image, as deployments have it.
BOUNDS = replace(LIMITS, hold_bytes=64 << 20)
OUTBOX_BYTES = 64 << 20


@dataclass(frozen=True)
class Served:
    """A family's stages and a gateway in front of them."""

    stages: Mapping[str, RunningStage]
    http: httpx.AsyncClient
    client: antiphon.AsyncClient
    grpc_address: str

    async def chat(self, **fields: object) -> httpx.Response:
        message = {"role": "user", "content": TEXT}
        body = {"model": "to-come", "messages": [message], **fields}
        return await self.http.post("/v1/chat/completions", json=body)


@asynccontextmanager
async def served(
    family: Pipeline,
    engines: Mapping[str, LoadedStage],
    transport: TransportName = "grpc",
    trace_endpoint: str = "",
    **gateway: float,
) -> AsyncIterator[Served]:
    links = replace(LINKS, transport=transport, slab_bytes=1 << 24)
    async with AsyncExitStack() as stack:
        tracings = {
            role: open_tracing(trace_endpoint, f"antiphon-{role}", field="") for role in engines
        }
        for tracing in tracings.values():
            stack.callback(tracing.close)
        stages = {
            role: await stack.enter_async_context(
                running_stage(
                    engine,
                    role,
                    pipeline=family,
                    links=links,
                    limits=BOUNDS,
                    outbox_bytes=OUTBOX_BYTES,
                    tracing=tracings[role],
                )
            )
            for role, engine in engines.items()
        }
        deployment = Deployment(
            stages={r: StageConfig(addresses=(s.address,)) for r, s in stages.items()},
            gateway=gateway_config(
                http_listen="127.0.0.1:0",
                grpc_listen="127.0.0.1:0",
                drain_s=0.1,
                trace_endpoint=trace_endpoint,
                **gateway,
            ),
        )
        running = await stack.enter_async_context(Gateway(deployment))
        await running.wait_ready()
        http = await stack.enter_async_context(
            httpx.AsyncClient(base_url=f"http://{running.http_address}", timeout=240)
        )
        client = await stack.enter_async_context(antiphon.AsyncClient(running.grpc_address))
        yield Served(stages, http, client, running.grpc_address)


def asked(chunks: Chunks) -> Iterator[None]:
    """Wait for the whole input; see `prompt`."""
    while not (chunks and chunks[-1].segment_finished):
        yield None


def prompt(chunks: Chunks) -> str:
    """What the user said."""
    tensors = concatenate([chunk.tensors for chunk in chunks if chunk.tensors])
    (part,) = from_tensors(tensors).messages[-1].parts
    assert isinstance(part, TextPart)
    return part.text


def repeats(key: SegmentKey, chunks: Chunks) -> Iterator[EngineEvent | None]:
    """Says what was said: a character is a token, whose id is its code point."""
    yield from asked(chunks)
    text = prompt(chunks)
    for position, character in enumerate(text):
        utf8 = np.frombuffer(character.encode(), np.uint8)
        tensors = {"ids": np.array([ord(character)], np.int32), "utf8": utf8}
        yield Emitted(key, "text", position, tensors)
    yield Emitted(key, "text", len(text), finish_reason=STOP)
    yield Completed(key, STOP, 7, len(text))
