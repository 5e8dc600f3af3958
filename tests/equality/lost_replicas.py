"""Kills the replica of a stage that makes an answer, for tests of how answers go on."""

from __future__ import annotations

import asyncio

import grpc
import httpx
from prometheus_client.parser import text_string_to_metric_families

from antiphon.v1 import stage_pb2, stage_pb2_grpc
from antiphon_tools.launcher.launcher import Running
from antiphon_tools.launcher.plan import replica_names

MOST_S = 120.0
"""A bound for a wait that would otherwise be endless."""


async def at_work(running: Running, name: str) -> str:
    """Wait until the process reports an open segment; return its name."""
    async with grpc.aio.insecure_channel(running.processes[name].address) as channel:
        loads = stage_pb2_grpc.StageServiceStub(channel).WatchLoad(stage_pb2.WatchLoadRequest())
        async for load in loads:
            if load.open_segments:
                return name
    raise AssertionError(f"{name} ended its stream of loads")


async def used(running: Running, role: str, replicas: int) -> str:
    """Wait until a replica of the stage has a segment open; return its name."""
    watches = [
        asyncio.create_task(at_work(running, each)) for each in replica_names(role, replicas)
    ]
    done, others = await asyncio.wait(watches, timeout=MOST_S, return_when=asyncio.FIRST_COMPLETED)
    for each in others:
        each.cancel()
    await asyncio.gather(*others, return_exceptions=True)
    assert done, f"no replica of {role} had a segment within {MOST_S} s"
    return done.pop().result()


async def kill_used(running: Running, role: str, replicas: int) -> None:
    """Kill the replica of the stage that has a segment open, as soon as one has."""
    running.processes[await used(running, role, replicas)].kill()


async def failovers(running: Running) -> float:
    """How often the gateway has made an answer again."""
    async with httpx.AsyncClient(base_url=running.http_url, timeout=240) as http:
        text = (await http.get("/metrics")).text
    return sum(
        sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "antiphon_gateway_failovers_total"
    )
