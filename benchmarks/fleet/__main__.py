"""What a fleet of many replicas costs the gateway: `python -m benchmarks.fleet`.

Every replica is an object of the gateway's, with its channel, that has described itself; nothing
is connected. A pick is all that opening a session asks of the fleet: three replicas, one for each
stage, with their line-up. An event is a discovery that reports one endpoint more, or one less.
Figures are CPU time of the thread; the smallest fleet is the baseline.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import random
import statistics
import time
from collections.abc import Callable
from functools import partial

from prometheus_client import CollectorRegistry, generate_latest

from antiphon.deployment.schema import Deployment, StageConfig
from antiphon.pipelines.qwen3_omni import PIPELINE
from antiphon.runtime.engine import StageFacts
from antiphon.runtime.server.description import StageIdentity, describe
from antiphon.sampling import Sampling
from antiphon_gateway.fleet.discovery.endpoint import Endpoint
from antiphon_gateway.fleet.fleet import Fleet
from antiphon_gateway.fleet.fleet_metrics import FleetMetrics
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.rounds import Comparison, Figures, Side

SAMPLING = Sampling(
    temperature=0.0, top_k=0, top_p=1.0, repetition_penalty=1.0, seed=0, max_tokens=1
)
NODES, ZONES, SLOTS = 100, 3, 16


def endpoint(role: str, number: int) -> Endpoint:
    """A replica of a cluster of so many nodes."""
    return Endpoint(
        role=role,
        uid=f"{role}-{number}",
        address=f"10.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}:50051",
        node=f"node-{number % NODES}",
        zone=f"zone-{number % ZONES}",
    )


def fleet_of(count: int) -> Fleet:
    """So many replicas of each stage, all serving."""
    stages = {role: StageConfig(addresses=("unused:1",)) for role in PIPELINE.roles}
    fleet = Fleet(Deployment(stages=stages), generator=random.Random(1))
    for stage in fleet:
        stage.keep([endpoint(stage.role, number) for number in range(count)])
        facts = StageFacts(
            model="benchmark",
            checkpoint_fingerprint="same",
            engine="none",
            default_sampling=SAMPLING,
            sample_rate_hz=24_000,
        )
        for number, replica in enumerate(stage):
            identity = StageIdentity(
                PIPELINE, stage.role, facts, SLOTS, host_id=f"{stage.role}-{number}"
            )
            described = describe(
                identity, open_sessions=0, open_segments=0, held_segments=0, output_positions={}
            )
            replica.rise(described)
    return fleet


def microseconds(act: Callable[[], object], times: int) -> tuple[float, float]:
    """CPU time of an act: the median and the 99th percentile."""
    took = []
    for _ in range(times):
        began = time.thread_time()
        act()
        took.append(1e6 * (time.thread_time() - began))
    return statistics.median(took), statistics.quantiles(took, n=100)[98]


async def compare(counts: list[int], rounds: int) -> None:
    """Compare fleets of several sizes."""
    names = [f"{count} replicas" for count in sorted(counts)]
    sides = [
        Side(name, partial(measure, count), () if name == names[0] else (names[0],))
        for name, count in zip(names, sorted(counts), strict=True)
    ]
    comparison = Comparison(sides, f"replicas of each of {len(PIPELINE.roles)} stages")
    await comparison.run(rounds)
    comparison.report()


async def measure(count: int) -> Figures:
    """Figures for so many replicas of each stage."""
    fleet = fleet_of(count)
    wanted = frozenset({"text", "audio"})
    pool = next(pool for pool in [fleet["talker"].pool(fleet["talker"].builds[0])] if pool)
    near = [next(iter(fleet["thinker"])).location]
    generator = random.Random(2)

    def assign() -> None:
        _, assignment = fleet.assign(wanted)
        with assignment:
            pass

    registry = CollectorRegistry()
    registry.register(FleetMetrics(fleet))

    known = [endpoint("talker", number) for number in range(count)]
    sets = [known[:-1], known]

    def event() -> None:
        sets.append(sets.pop(0))
        fleet["talker"].keep(sets[-1])

    rows = {
        "pick of one replica": microseconds(lambda: pool.pick(generator, near), 20_000),
        "session: three picks and the line-up": microseconds(assign, 5_000),
        "event of discovery": microseconds(event, 40),
        "page of series, as text": microseconds(lambda: generate_latest(registry), 40),
    }
    for stage in fleet:
        await stage.close()
    medians = {f"CPU, µs ({name})": median for name, (median, _) in rows.items()}
    worst = {f"CPU, µs ({name}, 99th percentile)": late for name, (_, late) in rows.items()}
    return {**medians, **worst}


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="What picking costs with many replicas.")
    parser.add_argument("--replicas", type=int, nargs="+", default=[1, 8, 1000])
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    # No replica is there to connect to.
    logging.disable(logging.WARNING)
    with stated_machine():
        asyncio.run(compare(given.replicas, given.rounds))


if __name__ == "__main__":
    main()
