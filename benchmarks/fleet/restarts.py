"""First audio while a fleet is restarted and scaled, and of the same fleet undisturbed.

`python -m benchmarks.fleet.restarts`: what the chart renders for the toy family, two replicas of
each service, as processes by the test kubelet; clients hold half of the slots all the time. The
baseline is the undisturbed fleet. While disturbed, each service is restarted and a stage is scaled
1, 3, 1. CPU time is of all processes, clients included. Also how soon a replica that is ready gets
its first session, and for how long one that leaves still gets some.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from functools import partial
from pathlib import Path

from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.processes import tree_cpu_s
from benchmarks.comparison.rounds import Comparison, Figures, Side
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


async def disturb(fleet: BellFleet, load: SteadyLoad) -> None:
    """Everything that is done to a fleet."""
    for name in DEPLOYMENTS:
        await fleet.cluster.restart(name)
        await load.wait_answers(8)
    for replicas in (1, 3, 1):
        await fleet.cluster.scale(RINGER, replicas)
        await load.wait_answers(8)
    await fleet.cluster.scale(RINGER, 2)


async def measure_while(act: Callable[[], Awaitable[None]], load: SteadyLoad) -> Figures:
    """First audio of the answers that end while `act` runs."""
    begun, failed, before_s = len(load.first_audio_s), len(load.failures), tree_cpu_s()
    await act()
    taken, used_s = load.first_audio_s[begun:], tree_cpu_s() - before_s
    return {
        "CPU, ms per answer": 1e3 * used_s / len(taken),
        "first audio, s": statistics.median(taken),
        "first audio p95, s": p95(taken),
        "answers": len(taken),
        "failed": len(load.failures) - failed,
    }


async def measure(path: Path, rounds: int, answers: int, tries: int) -> None:
    """Compare and report."""
    async with (
        bell_fleet(path, slots=SLOTS, gateway=2, composer=2, ringer=2) as fleet,
        steady_load(
            fleet.http_address, fleet.grpc_address, CLIENTS_OF_A_KIND, MODEL, tries=tries
        ) as load,
    ):
        begun = len(fleet.cluster.story)
        await load.wait_answers(20)
        quiet = "undisturbed"
        sides = [
            Side(quiet, partial(measure_while, partial(load.wait_answers, answers), load)),
            Side(
                "restarted and scaled",
                partial(measure_while, partial(disturb, fleet, load), load),
                (quiet,),
            ),
        ]
        comparison = Comparison(sides, f"{2 * CLIENTS_OF_A_KIND} clients")
        await comparison.run(rounds, warm_up=0)
        comparison.report()
        for failure, times in Counter(load.failures).items():
            print(f"  {times} x {failure}")
        first, last = first_and_last(fleet, begun)
    print(f"ready to first session: median {statistics.median(first):.3f} s, most {max(first):.3f}")
    print(f"leaving to last session: median {statistics.median(last):.3f}, most {max(last):.3f} s")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description="First audio during rolling restarts.")
    parser.add_argument("--rounds", type=int, default=3, help="restarts of each service (3)")
    parser.add_argument("--answers", type=int, default=70, help="of an undisturbed round (70)")
    parser.add_argument("--tries", type=int, default=3, help="of clients, for a request (3)")
    given = parser.parse_args()
    with stated_machine(), tempfile.TemporaryDirectory(prefix="antiphon-restarts-") as folder:
        asyncio.run(measure(Path(folder), given.rounds, given.answers, given.tries))


if __name__ == "__main__":
    main()
