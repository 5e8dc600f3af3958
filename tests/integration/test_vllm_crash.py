"""vLLM's process dies under the real services: what fails, what is told, what comes back."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

import antiphon
from antiphon.deployment.schema import StageConfig
from antiphon_testkit.local_deployment import local_deployment
from antiphon_testkit.qwen3_omni.tiny_checkpoint import TinyShape, build_tiny_checkpoint
from antiphon_tools.warm.launcher import WarmLauncher
from tests.metrics_page import read_page

pytest.importorskip("vllm")
psutil = pytest.importorskip("psutil")
# vLLM starts twice, and its imports alone take long on a busy machine.
pytestmark = [pytest.mark.processes, pytest.mark.timeout(900)]

Status = health_pb2.HealthCheckResponse
THINKER = StageConfig(engine="vllm", engine_args={"kv_cache_memory_bytes": 128 << 20})


@pytest.fixture
def endless(tmp_path: Path) -> Path:
    """A checkpoint that neither stops writing nor speaking by itself."""
    shape = TinyShape(head_dim=32, endless_text=True, endless_speech=True)
    build_tiny_checkpoint(tmp_path / "endless", shape)
    return tmp_path / "endless"


async def healths(address: str) -> AsyncIterator[int]:
    """What the stage's health service says, from now on."""
    async with grpc.aio.insecure_channel(address) as channel:
        stub = health_pb2_grpc.HealthStub(channel)
        async for response in stub.Watch(health_pb2.HealthCheckRequest()):
            yield response.status


async def ids_of(client: antiphon.AsyncClient, max_tokens: int) -> list[int]:
    """A text answer's ids."""
    ids: list[int] = []
    answer = client.generate(
        "Hello", modalities=("text",), max_tokens=max_tokens, include_ids=True, timeout_s=120
    )
    async for event in answer:
        if isinstance(event, antiphon.TextDelta):
            ids += event.token_ids
    return ids


async def test_killed_engine_fails_its_sessions_and_comes_back(endless: Path) -> None:
    async with (
        WarmLauncher(local_deployment(endless, thinker=THINKER), metrics=True) as running,
        antiphon.AsyncClient(running.grpc_address) as client,
    ):
        before = await ids_of(client, 24)
        thinker = running.processes["thinker"]
        first = await read_page(thinker.metrics_url)
        assert first("antiphon_stage_ready") == 1
        assert first("vllm:generation_tokens_total") > 0
        told, told_by_gateway = healths(thinker.address), healths(running.grpc_address)
        assert await anext(told) == Status.SERVING
        assert await anext(told_by_gateway) == Status.SERVING
        writing = client.generate("Hello", max_tokens=20_000, timeout_s=120)
        await anext(writing)
        (engine,) = [
            child
            for child in psutil.Process(thinker.pid).children(recursive=True)
            if "EngineCore" in child.name()
        ]
        os.kill(engine.pid, signal.SIGKILL)
        with pytest.raises(antiphon.AntiphonError) as caught:
            async for _ in writing:
                pass
        assert caught.value.code.value == "unavailable"
        assert caught.value.stage == "thinker"
        assert await anext(told) == Status.NOT_SERVING
        # Nothing of the dead engine's; a new one's begin at 0, and it has been asked nothing.
        down = await read_page(thinker.metrics_url)
        assert not any(sample.value for sample in down.all("vllm:generation_tokens_total"))
        assert down("antiphon_stage_segments_total", outcome="failed", code="unavailable") == 1
        assert await anext(told_by_gateway) == Status.NOT_SERVING
        with pytest.raises(antiphon.AntiphonError, match="thinker"):
            await ids_of(client, 2)
        for role in ("talker", "code2wav"):
            assert await anext(healths(running.processes[role].address)) == Status.SERVING
        assert await anext(told) == Status.SERVING
        assert await anext(told_by_gateway) == Status.SERVING
        assert await ids_of(client, 24) == before
        again = await read_page(thinker.metrics_url)
        assert again("antiphon_stage_ready") == 1
        assert again("vllm:generation_tokens_total") > 0
        assert again.begin_with("vllm:") == first.begin_with("vllm:")
        assert not any(process.exited.done() for process in running.processes.values())
        for watched in (told, told_by_gateway):
            await watched.aclose()
