"""What a fleet of eight answers while one replica is slow, or fails at once.

`python -m benchmarks.fleet.one_bad_replica`: the baseline is a fleet of seven. The toy family's
composers, whose steps take a while and compute next to nothing, run with a real gateway and the
clients in this process; twice as many clients as seven replicas have slots ask again as soon as
they are answered. An answer counts if it did not take more than twice as long, from its first audio
on, as it does alone. CPU time is of this process.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import statistics
import sys
import time
from collections.abc import Collection, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import antiphon
from antiphon.deployment.schema import Deployment, GatewayConfig, StageConfig
from antiphon.errors import Internal
from antiphon.pipelines.registry import pipeline_named
from antiphon.runtime.engine import EngineEvent, LoadedStage, SegmentSettings
from antiphon.segment import SegmentKey
from antiphon_gateway.server import Gateway
from antiphon_testkit.stage_harness import LIMITS, running_stage
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.rounds import Comparison, Figures, Side

FAMILY = Path(__file__).parents[2] / "tests" / "families" / "carillon"
TEXT = "Ring out"
SLOTS, REPLICAS = 2, 8
STROKE_S, SLOW = 0.2, 10.0
CLIENTS = 2 * SLOTS * (REPLICAS - 1)


class Moody:
    """An engine that takes `step_s` for a step, and refuses all segments while it is broken."""

    def __init__(self, engine: Any) -> None:
        self._engine = engine
        self.step_s = STROKE_S
        self.broken = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engine, name)

    def admit(self, key: SegmentKey, settings: SegmentSettings) -> None:
        """Take a segment in, or not."""
        if self.broken:
            raise Internal("this replica is broken")
        self._engine.admit(key, settings)

    def step(self, held: Collection[SegmentKey] = ()) -> Sequence[EngineEvent]:
        """A step, and what is left of its time."""
        ends_at = time.monotonic() + self.step_s
        events: Sequence[EngineEvent] = self._engine.step(held)
        time.sleep(max(0.0, ends_at - time.monotonic()))
        return events


@dataclass
class Outcome:
    """Of the requests that ended within the time: answers that were good and late, failures."""

    good: int = 0
    late: int = 0
    failed: int = 0
    first_audio_s: list[float] = field(default_factory=list)

    def figures(self, seconds: float, cpu_s: float) -> Figures:
        """Of so many seconds that took so much CPU time."""
        return {
            "CPU, ms per good answer": 1e3 * cpu_s / max(self.good, 1),
            "good answers/s": self.good / seconds,
            "late": self.late,
            "failed": self.failed,
            "first audio, s": statistics.median(self.first_audio_s or [float("nan")]),
        }


async def ask(client: antiphon.AsyncClient, outcome: Outcome) -> None:
    """One request."""
    began, first = time.monotonic(), 0.0
    try:
        async for event in client.generate(TEXT):
            if isinstance(event, antiphon.AudioDelta) and not first:
                first = time.monotonic()
    except antiphon.AntiphonError as error:
        outcome.failed += 1
        print(f"  failed: {error}", flush=True)
        return
    outcome.first_audio_s.append(first - began)
    if time.monotonic() - first <= 2 * STROKE_S * len(TEXT):
        outcome.good += 1
    else:
        outcome.late += 1


async def offer(address: str, seconds: float) -> Figures:
    """What clients get that ask all the time, after a while in which all begin."""
    outcome, over = Outcome(), asyncio.Event()
    async with antiphon.AsyncClient(address, retry=antiphon.Retry(attempts=1)) as client:

        async def keep_asking() -> None:
            while not over.is_set():
                await ask(client, outcome)

        asking = [asyncio.create_task(keep_asking()) for _ in range(CLIENTS)]
        await asyncio.sleep(2 * STROKE_S * len(TEXT))
        before, before_s = replace(outcome), time.process_time()
        await asyncio.sleep(seconds)
        after, used_s = replace(outcome), time.process_time() - before_s
        over.set()
        await asyncio.gather(*asking)
    counted = Outcome(
        after.good - before.good,
        after.late - before.late,
        after.failed - before.failed,
        list(after.first_audio_s),
    )
    return counted.figures(seconds, used_s)


def composer() -> tuple[Moody, LoadedStage]:
    """A replica's engine."""
    loaded: LoadedStage = importlib.import_module("carillon_stages.composer.load").load(
        Path("bells"), StageConfig()
    )
    engine = Moody(loaded.engine)
    return engine, replace(loaded, engine=engine)


async def measure(seconds: float, rounds: int) -> None:
    """Compare the three fleets."""
    family = pipeline_named("carillon")
    async with AsyncExitStack() as stack:
        ringer: LoadedStage = importlib.import_module("carillon_stages.ringer.load").load(
            Path("bells"), StageConfig()
        )
        many = replace(LIMITS, slots=256)
        few = replace(LIMITS, slots=SLOTS)
        behind = await stack.enter_async_context(
            running_stage(ringer, "ringer", pipeline=family, limits=many)
        )
        engines, addresses = [], []
        for _ in range(REPLICAS):
            engine, loaded = composer()
            engines.append(engine)
            running = running_stage(loaded, "composer", pipeline=family, limits=few)
            addresses.append((await stack.enter_async_context(running)).address)

        async def measured(
            count: int, *, step_s: float = STROKE_S, broken: bool = False
        ) -> Figures:
            deployment = Deployment(
                stages={
                    "composer": StageConfig(addresses=tuple(addresses[:count])),
                    "ringer": StageConfig(addresses=(behind.address,)),
                },
                gateway=GatewayConfig(http_listen="127.0.0.1:0", grpc_listen="127.0.0.1:0"),
            )
            bad = engines[-1]
            bad.step_s, bad.broken = step_s, broken
            async with Gateway(deployment) as gateway:
                while gateway.fleet["composer"].serving < count:
                    await gateway.fleet.wait_changed()
                return await offer(gateway.grpc_address, seconds)

        slow, all_eight = SLOW * STROKE_S, partial(measured, REPLICAS)
        sides = [
            Side("seven", partial(measured, REPLICAS - 1)),
            Side("eight, one slow", partial(all_eight, step_s=slow), ("seven",)),
            Side("eight, one failing", partial(all_eight, broken=True), ("seven",)),
        ]
        comparison = Comparison(sides, f"{seconds:g} s a measurement")
        await comparison.run(rounds, warm_up=0)
        comparison.report()


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Goodput of a fleet with one bad replica.")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each measurement (20)")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    sys.path.insert(0, str(FAMILY))
    with stated_machine():
        asyncio.run(measure(given.seconds, given.rounds))


if __name__ == "__main__":
    main()
