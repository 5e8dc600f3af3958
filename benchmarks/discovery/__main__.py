"""`python -m benchmarks.discovery`: CPU time from a watch's line to what the gateway makes of it.

First to the set of all endpoints, when one of them has changed; then for a fleet that takes in sets
in which all are new, have changed or are gone, by the longest turn of the event loop. The garbage
collector leaves out what was loaded, as in a gateway's process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import msgspec

from antiphon.deployment.schema import GatewayConfig
from antiphon.transport.heap import leave_out_startup
from gateway.fleet.discovery.endpoint import Endpoint
from gateway.fleet.discovery.reflector import Reflector
from gateway.fleet.discovery.slices import EndpointSlice, WatchEvent
from gateway.fleet.replicated_stage import ReplicatedStage

SERVICE = "a-talker"
TURNS = 60


def main() -> None:
    """Print the median and the longest time of one event, for slices of two sizes."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.discovery")
    parser.add_argument("--endpoints", type=int, default=1000)
    parser.add_argument("--events", type=int, default=200)
    given = parser.parse_args()
    leave_out_startup()
    for in_slice in (100, given.endpoints):
        times = _times(given.endpoints, in_slice, given.events)
        print(
            f"{given.endpoints} endpoints, {in_slice} a slice: "
            f"median {statistics.median(times):.2f} ms, longest {max(times):.2f} ms"
        )
    logging.disable(logging.WARNING)
    asyncio.run(_measure_fleet(given.endpoints))


async def _measure_fleet(count: int) -> None:
    stage = ReplicatedStage("talker", GatewayConfig(), lambda: None)
    all_there = [
        Endpoint("talker", f"uid-{number}", f"10.0.{number >> 8}.{number & 255}:50051")
        for number in range(count)
    ]
    sets = {
        "one, the first of all": all_there[:1],
        "all are new": all_there,
        "all have changed": [replace(each, terminating=True) for each in all_there],
        "half are gone": all_there[: count // 2],
    }
    for name, endpoints in sets.items():
        turns = [_cpu_ms(lambda told=endpoints: stage.keep(told))]
        for _ in range(TURNS):
            before = time.thread_time()
            await asyncio.sleep(0)
            turns.append((time.thread_time() - before) * 1000)
        print(f"{name}: taken in {turns[0]:.1f} ms, longest turn after it {max(turns[1:]):.1f} ms")
    await stage.close()


def _cpu_ms(act: Callable[[], None]) -> float:
    before = time.thread_time()
    act()
    return (time.thread_time() - before) * 1000


def _times(endpoints: int, in_slice: int, events: int) -> list[float]:
    reflector = Reflector({"talker": SERVICE}, 50051)
    lines = [_line(begin, in_slice, ready=True) for begin in range(0, endpoints, in_slice)]
    for line in lines:
        _apply(reflector, line)
    told = reflector.endpoints()
    times = []
    for number in range(events):
        line = _line(0, in_slice, ready=bool(number % 2))
        began = time.thread_time()
        _apply(reflector, line)
        new = reflector.endpoints()
        changed = new != told
        times.append((time.thread_time() - began) * 1000)
        assert changed
        told = new
    return times


def _apply(reflector: Reflector, line: bytes) -> None:
    event = msgspec.json.decode(line, type=WatchEvent)
    reflector.put(msgspec.json.decode(event.object, type=EndpointSlice))


def _line(begin: int, count: int, *, ready: bool) -> bytes:
    """The event of one slice, of which the first endpoint changes."""
    endpoints = [
        {
            "addresses": [f"10.{number >> 16}.{number >> 8 & 255}.{number & 255}"],
            "conditions": {"ready": ready or number != begin, "serving": True},
            "targetRef": {"kind": "Pod", "namespace": "speech", "uid": f"uid-{number}"},
            "nodeName": f"node-{number % 50}",
            "zone": f"zone-{number % 3}",
        }
        for number in range(begin, begin + count)
    ]
    labels = {"kubernetes.io/service-name": SERVICE}
    meta = {"name": f"slice-{begin}", "labels": labels, "resourceVersion": "7"}
    each = {"metadata": meta, "addressType": "IPv4", "endpoints": endpoints}
    return json.dumps({"type": "MODIFIED", "object": each}).encode()


if __name__ == "__main__":
    main()
