"""`python -m benchmarks.discovery`: CPU time from a watch's line to what the gateway makes of it.

First to the set of all endpoints, when one of them has changed, with slices of two sizes; then for
a fleet that takes in sets in which all are new, have changed or are gone, by the longest turn of
the event loop. The garbage collector leaves out what was loaded, as in a gateway's process.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import logging
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import msgspec

from antiphon.deployment.schema import GatewayConfig
from antiphon.transport.heap import leave_out_startup
from antiphon_gateway.fleet.discovery.endpoint import Endpoint
from antiphon_gateway.fleet.discovery.reflector import Reflector
from antiphon_gateway.fleet.discovery.slices import EndpointSlice, WatchEvent
from antiphon_gateway.fleet.replicated_stage import ReplicatedStage
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.rounds import Comparison, Figures, Side

SERVICE = "a-talker"
TURNS = 60


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.discovery")
    parser.add_argument("--endpoints", type=int, default=1000)
    parser.add_argument("--events", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    leave_out_startup()
    with stated_machine():
        asyncio.run(_compare(given))


async def _compare(given: argparse.Namespace) -> None:
    small = f"100 of {given.endpoints} in a slice"
    events = Comparison(
        [
            Side(small, partial(_measure_events, given.endpoints, 100, given.events)),
            Side(
                f"all {given.endpoints} in a slice",
                partial(_measure_events, given.endpoints, given.endpoints, given.events),
                (small,),
            ),
        ],
        "an event of a watch",
    )
    await events.run(given.rounds)
    events.report()
    logging.disable(logging.WARNING)
    fleet = Comparison(
        [Side("fleet", partial(_measure_fleet, given.endpoints))],
        f"a set of {given.endpoints} endpoints",
    )
    await fleet.run(given.rounds)
    fleet.report()


def _measure_events(endpoints: int, in_slice: int, events: int) -> Figures:
    times = _times(endpoints, in_slice, events)
    return {"CPU, ms (median)": statistics.median(times), "CPU, ms (longest)": max(times)}


async def _measure_fleet(count: int) -> Figures:
    # The last round's objects would be collected in a turn of this one.
    gc.collect()
    stage = ReplicatedStage("talker", GatewayConfig(), lambda: None)
    all_there = [
        Endpoint("talker", f"uid-{number}", f"10.0.{number >> 8}.{number & 255}:50051")
        for number in range(count)
    ]
    sets = {
        "all are new": all_there,
        "all have changed": [replace(each, terminating=True) for each in all_there],
        "half are gone": all_there[: count // 2],
    }
    stage.keep(all_there[:1])
    await _longest_turn_ms()
    found: dict[str, float] = {}
    for name, endpoints in sets.items():
        found[f"CPU, ms ({name})"] = _cpu_ms(partial(stage.keep, endpoints))
        found[f"CPU, ms ({name}, longest turn after it)"] = await _longest_turn_ms()
    await stage.close()
    return found


async def _longest_turn_ms() -> float:
    turns = []
    for _ in range(TURNS):
        before = time.thread_time()
        await asyncio.sleep(0)
        turns.append((time.thread_time() - before) * 1000)
    return max(turns)


def _cpu_ms(act: Callable[[], object]) -> float:
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
