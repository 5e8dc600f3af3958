"""What a fleet of eight gives while one of them is slow, or fails at once, beside one of seven.

`python -m benchmarks.fleet.one_bad_replica`: the toy family's composers, whose steps take a while
and compute next to nothing, behind a real gateway, all in this process; twice as many clients as
seven replicas have slots ask again as soon as they are answered. An answer counts if it did not
take more than twice as long, from its first audio on, as it does alone.
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
from pathlib import Path
from typing import Any

import antiphon
from antiphon.deployment.schema import Deployment, GatewayConfig, StageConfig
from antiphon.errors import Internal
from antiphon.pipelines.registry import pipeline_named
from antiphon.runtime.engine import EngineEvent, LoadedStage, SegmentSettings
from antiphon.segment import SegmentKey
from antiphon.testing.stage_harness import LIMITS, running_stage
from gateway.server import Gateway

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

    def line(self, seconds: float) -> str:
        """In words."""
        median = statistics.median(self.first_audio_s) if self.first_audio_s else float("nan")
        return (
            f"{self.good / seconds:.2f} good answers/s, {self.late} late, {self.failed} failed, "
            f"first audio {median:.2f} s (median)"
        )


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


async def offer(address: str, seconds: float) -> Outcome:
    """What clients get that ask all the time, after a while in which all begin."""
    outcome, over = Outcome(), asyncio.Event()
    async with antiphon.AsyncClient(address, retry=antiphon.Retry(attempts=1)) as client:

        async def keep_asking() -> None:
            while not over.is_set():
                await ask(client, outcome)

        asking = [asyncio.create_task(keep_asking()) for _ in range(CLIENTS)]
        await asyncio.sleep(2 * STROKE_S * len(TEXT))
        before = replace(outcome)
        await asyncio.sleep(seconds)
        after = replace(outcome)
        over.set()
        await asyncio.gather(*asking)
    return Outcome(
        after.good - before.good,
        after.late - before.late,
        after.failed - before.failed,
        list(after.first_audio_s),
    )


def composer() -> tuple[Moody, LoadedStage]:
    """A replica's engine."""
    loaded: LoadedStage = importlib.import_module("carillon_stages.composer.load").load(
        Path("bells"), StageConfig()
    )
    engine = Moody(loaded.engine)
    return engine, replace(loaded, engine=engine)


async def measure(seconds: float, rounds: int) -> None:
    """Print figures, of each arm in turn."""
    family = pipeline_named("carillon")
    shares: dict[str, list[float]] = {"slow": [], "failing": []}
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

        async def arm(name: str, count: int) -> float:
            deployment = Deployment(
                stages={
                    "composer": StageConfig(addresses=tuple(addresses[:count])),
                    "ringer": StageConfig(addresses=(behind.address,)),
                },
                gateway=GatewayConfig(http_listen="127.0.0.1:0", grpc_listen="127.0.0.1:0"),
            )
            async with Gateway(deployment) as gateway:
                while gateway.fleet["composer"].serving < count:
                    await gateway.fleet.wait_changed()
                outcome = await offer(gateway.grpc_address, seconds)
            print(f"{name:<24} {outcome.line(seconds)}", flush=True)
            return outcome.good / seconds

        bad = engines[-1]
        for _ in range(rounds):
            seven = await arm("seven", REPLICAS - 1)
            bad.step_s = SLOW * STROKE_S
            shares["slow"].append(await arm("eight, one slow", REPLICAS) / seven)
            bad.step_s, bad.broken = STROKE_S, True
            shares["failing"].append(await arm("eight, one failing", REPLICAS) / seven)
            bad.broken = False
    for name, each in shares.items():
        print(f"{name}: {statistics.median(each):.3f} of what seven give ({_range(each)})")


def _range(each: Sequence[float]) -> str:
    return f"{min(each):.3f} to {max(each):.3f}"


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="Goodput of a fleet with one bad replica.")
    parser.add_argument("--seconds", type=float, default=20.0, help="of each arm (20)")
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    sys.path.insert(0, str(FAMILY))
    asyncio.run(measure(given.seconds, given.rounds))


if __name__ == "__main__":
    main()
