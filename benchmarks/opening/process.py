"""A process of the benchmark, which uses the checkout in `PYTHONPATH`.

`python -P process.py stage ROLE SLOTS FRAMES` prints its address. `python -P process.py gateway
STAGES SETTINGS` takes stage addresses by role and gateway settings, both as JSON. When it is ready,
it prints a JSON object with the keys `http` and `grpc`. Both processes run until stdin is closed.
"""

from __future__ import annotations

import asyncio
import json
import sys
from dataclasses import replace
from typing import Any

import uvloop

from antiphon.deployment.schema import Deployment, StageConfig
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.process import run
from antiphon.transport.heap import leave_out_startup
from antiphon_testkit.gateway_settings import gateway_config
from antiphon_testkit.stage_harness import LIMITS, running_stage
from benchmarks.runtime.engines import load

MOST = 4096
WAIT_S = 300.0


async def serve_stage(role: str, slots: int, frames: int) -> None:
    """Serve a stage whose engine performs no computation."""
    loaded = load(role, frames)
    facts = replace(loaded.facts, input_kinds=("text",), voices=("one",))
    limits = replace(LIMITS, slots=slots, stall_timeout_s=WAIT_S)
    async with running_stage(
        replace(loaded, facts=facts), role, pipeline=PIPELINE, limits=limits
    ) as stage:
        print(stage.address, flush=True)
        await asyncio.to_thread(sys.stdin.read)


async def serve_gateway(stages: dict[str, str], settings: dict[str, Any]) -> None:
    """Serve a gateway that admits every call immediately."""
    from antiphon_gateway.server import Gateway

    given = {
        "http_listen": "127.0.0.1:0",
        "grpc_listen": "127.0.0.1:0",
        "max_calls": MOST,
        "max_waiting": MOST,
        "max_connections": MOST,
        "queue_timeout_s": WAIT_S,
        "probe_timeout_s": 60.0,
    }
    config = gateway_config(**{**given, **settings})
    reached = {role: StageConfig(addresses=(each,)) for role, each in stages.items()}
    async with Gateway(Deployment(stages=reached, gateway=config)) as gateway:
        await gateway.wait_ready()
        leave_out_startup()
        reached_at = {"http": gateway.http_address, "grpc": gateway.grpc_address}
        print(json.dumps(reached_at), flush=True)
        await asyncio.to_thread(sys.stdin.read)


if __name__ == "__main__":
    if sys.argv[1] == "stage":
        run(serve_stage(sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
    else:
        # The command of the gateway uses the same event loop and settings.
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(serve_gateway(json.loads(sys.argv[2]), json.loads(sys.argv[3])))
