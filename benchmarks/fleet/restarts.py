"""First audio while a fleet is restarted and scaled, beside the same fleet undisturbed.

`python -m benchmarks.fleet.restarts`: what the chart renders for the toy family, two replicas of
each service, as processes by the test kubelet; clients hold half of the slots all the time. Then
three rolling restarts of each service, and a stage is scaled 1, 3, 1. Also how soon a replica that
is ready gets its first session, and for how long one that leaves still gets some.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

from tests.cluster.bell_fleet import COMPOSER, DEPLOYMENTS, MODEL, RINGER, BellFleet, bell_fleet
from tests.cluster.paced_stage import ADMITTED
from tests.cluster.steady_load import SteadyLoad, steady_load

SLOTS, CLIENTS_OF_A_KIND = 4, 2


def p95(seconds: Sequence[float]) -> float:
    """The 95th percentile."""
    return statistics.quantiles(seconds, n=20)[-1]


def first_and_last(fleet: BellFleet, since: int) -> tuple[list[float], list[float]]:
    """Seconds from ready to the first session, of the stages' pods that came after so much of the
    story; and from leaving to the last session, of all."""
    first, last = [], []
    when = dict(zip(fleet.cluster.story, fleet.cluster.times, strict=True))
    for number, (pod, what) in enumerate(fleet.cluster.story):
        if what != "created" or not pod.startswith((COMPOSER, RINGER)):
            continue
        lines = fleet.cluster.said_by(pod).splitlines()
        admitted = [float(line.split()[-1]) for line in lines if line.startswith(ADMITTED)]
        if admitted and number >= since and (pod, "ready") in when:
            first.append(admitted[0] - when[pod, "ready"])
        if admitted and (pod, "terminating") in when:
            last.append(admitted[-1] - when[pod, "terminating"])
    return first, last


async def disturb(fleet: BellFleet, load: SteadyLoad, rounds: int) -> None:
    """Everything that is done to a fleet."""
    for name in DEPLOYMENTS * rounds:
        await fleet.cluster.restart(name)
        await load.wait_answers(8)
    for replicas in (1, 3, 1):
        await fleet.cluster.scale(RINGER, replicas)
        await load.wait_answers(8)


async def measure(path: Path, rounds: int, answers: int, tries: int) -> None:
    """Print figures."""
    async with (
        bell_fleet(path, slots=SLOTS, gateway=2, composer=2, ringer=2) as fleet,
        steady_load(
            fleet.http_address, fleet.grpc_address, CLIENTS_OF_A_KIND, MODEL, tries=tries
        ) as load,
    ):
        begun = len(fleet.cluster.story)
        await load.wait_answers(20)
        marks = [len(load.first_audio_s)]
        await load.wait_answers(answers)
        marks.append(len(load.first_audio_s))
        await disturb(fleet, load, rounds)
        marks.append(len(load.first_audio_s))
        quiet, moved = (load.first_audio_s[a:b] for a, b in pairwise(marks))
        for name, each in {"undisturbed": quiet, "restarted and scaled": moved}.items():
            median = statistics.median(each)
            print(f"{name}: {len(each)} answers, first audio {median:.3f} s, p95 {p95(each):.3f} s")
        print(f"p95 is {p95(moved) / p95(quiet):.2f} times as long")
        for failure, times in Counter(load.failures).items():
            print(f"  {times} x {failure}")
        print(f"failed: {len(load.failures)}")
        first, last = first_and_last(fleet, begun)
    print(f"ready to first session: median {statistics.median(first):.3f} s, most {max(first):.3f}")
    print(f"leaving to last session: median {statistics.median(last):.3f}, most {max(last):.3f} s")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="First audio during rolling restarts.")
    parser.add_argument("--rounds", type=int, default=3, help="restarts of each service (3)")
    parser.add_argument("--answers", type=int, default=200, help="that are undisturbed (200)")
    parser.add_argument("--tries", type=int, default=3, help="of clients, for a request (3)")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="antiphon-restarts-") as folder:
        asyncio.run(measure(Path(folder), given.rounds, given.answers, given.tries))


if __name__ == "__main__":
    main()
