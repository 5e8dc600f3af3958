"""32 clients that mean harm beside 4 that do not, against a gateway in a process of its own."""

from __future__ import annotations

import asyncio
import json
import signal
import statistics
from pathlib import Path

import httpx
import numpy as np
import pytest

from antiphon.deployment.schema import dump_deployment
from antiphon.values.segment import FinishReason
from tests.contract.attackers import attacked, hear_many
from tests.contract.fake_stages import THINKER, FakeStages, Session
from tests.contract.gateway_process import gateway_process
from tests.contract.raw_http import chat_body, post
from tests.contract.served_gateway import SPOKEN, deployment_of

pytestmark = pytest.mark.asyncio(loop_scope="session")

HONEST, ANSWERS = 4, 15
GENEROUS_S = 120.0
BOUNDS = ("send_timeout_s", "max_body_values", "max_head_bytes", "pipelined")


async def think_at_length(session: Session) -> None:
    """Two megabytes of text: more than a client's socket takes."""
    await session.opened()
    utf8 = np.full(1 << 18, ord("x"), np.uint8)
    for _ in range(8):
        await session.chunk("text", {"ids": np.zeros(1, np.int32), "utf8": utf8})
    await session.chunk("text", finish=FinishReason.STOP)
    await session.report()


async def all_bounds_hit(address: str) -> bool:
    """Whether each of `BOUNDS` has refused somebody."""
    async with httpx.AsyncClient(base_url=f"http://{address}", timeout=240) as http:
        page = (await http.get("/metrics")).text
    return not [
        bound
        for bound in BOUNDS
        if f'antiphon_gateway_refused_total{{bound="{bound}"}} 0.0' in page
    ]


async def test_honest_answers_are_complete_beside_32_attackers(tmp_path: Path) -> None:
    async with FakeStages() as fakes:
        usual = fakes[THINKER].script

        async def think(session: Session) -> None:
            """At length for attackers, who ask for no voice."""
            await (usual if session.segment.voice else think_at_length)(session)

        fakes[THINKER].script = think
        config = tmp_path / "deployment.yaml"
        deployment = deployment_of(
            fakes, max_calls=32, max_body_bytes=8 << 20, send_timeout_s=1.0, head_timeout_s=5.0,
            body_timeout_s=3.0, max_memory_bytes=128 << 20,
            # The stages share this process with all clients.
            probe_timeout_s=30.0,
        )  # fmt: skip
        config.write_bytes(dump_deployment(deployment))
        # Nobody reads its log meanwhile.
        async with gateway_process(config, "--log-level", "error") as (process, announced):
            address = json.loads(await announced.readline())["http"]
            assert json.loads(await announced.readline())["event"] == "ready"
            ask = post(chat_body(stream=True, **SPOKEN))
            alone = await hear_many(address, ask, HONEST, ANSWERS)
            stream, whole = (post(chat_body(stream=each)) for each in (True, False))
            async with attacked(address, stream, whole) as counts:
                beside = await hear_many(address, ask, HONEST, ANSWERS)
                # Answers may come faster than the bounds' clocks run down.
                async with asyncio.timeout(GENEROUS_S):
                    while not await all_bounds_hit(address):
                        beside += await hear_many(address, ask, HONEST, 1)
            process.send_signal(signal.SIGTERM)
            assert await process.wait() == 0
    first_s, attacked_s = statistics.median(alone), statistics.median(beside)
    print(f"first audio {first_s * 1e3:.1f} ms, attacked {attacked_s * 1e3:.1f} ms, {counts=}")
