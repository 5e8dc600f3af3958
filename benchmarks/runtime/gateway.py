"""Runs a gateway and three stages without models in this process."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace

from antiphon.deployment.schema import Deployment, StageConfig
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.tracing.tracing import open_tracing
from antiphon_gateway.server import Gateway
from antiphon_testkit.gateway_settings import gateway_config
from antiphon_testkit.stage_harness import LIMITS, running_stage
from benchmarks.runtime.engines import load


@asynccontextmanager
async def gateway_without_models(
    positions: int, slots: int, *, trace_endpoint: str = "", trace_ratio: float = 0.0
) -> AsyncIterator[Gateway]:
    """Yield a gateway that is ready. Its answers have `positions` tokens and frames.

    `slots` is the maximum number of concurrent answers.
    """
    async with AsyncExitStack() as stack:
        stages = {}
        for role in PIPELINE.roles:
            loaded = load(role, positions)
            facts = replace(loaded.facts, input_kinds=("text", "audio"), voices=("one",))
            tracing = open_tracing(trace_endpoint, f"antiphon-{role}", field="")
            stack.callback(tracing.close)
            stage = await stack.enter_async_context(
                running_stage(
                    replace(loaded, facts=facts),
                    role,
                    pipeline=PIPELINE,
                    limits=replace(LIMITS, slots=slots),
                    tracing=tracing,
                )
            )
            stages[role] = StageConfig(addresses=(stage.address,))
        config = gateway_config(
            http_listen="127.0.0.1:0",
            grpc_listen="127.0.0.1:0",
            probe_timeout_s=60.0,
            trace_endpoint=trace_endpoint,
            trace_ratio=trace_ratio,
        )
        gateway = Gateway(Deployment(stages=stages, gateway=config))
        running = await stack.enter_async_context(gateway)
        await running.wait_ready()
        yield running
