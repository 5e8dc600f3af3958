"""How long a listener waits when a stage is killed, with and without a history.

`python -m benchmarks.failover`: two replicas of each stage of a tiny checkpoint as processes, once
for each side. An answer is taken as fast as it comes, and when so many seconds of speech are there,
the replica of one stage that makes it is killed. What counts is the longest pause between two
pieces of audio from then on. Every answer must be the undisturbed one, to the id, the frame and the
sample. CPU time is of all processes, from the request until the killed replica runs again.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import os
import signal
import tempfile
import time
from contextlib import AsyncExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import grpc

from antiphon.v1 import stage_pb2
from antiphon.wire.stubs import stage_stub
from antiphon_testkit.qwen3_omni.tiny_checkpoint import TinyShape, build_tiny_checkpoint
from antiphon_tools.chaos.fleet import TargetFleet, running_fleet
from antiphon_tools.chaos.heard import Heard
from antiphon_tools.chaos.listener import AnswerListener, KnownQuestion
from antiphon_tools.launcher.plan import role_of
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.processes import tree_cpu_s
from benchmarks.comparison.rounds import Comparison, Figures, Side

AT_ONCE = 1e6
"""Times the speed of speech."""
FRAMES_PER_SECOND = 12.5
MAX_AHEAD_S = 4.0
AHEAD_S = 12.0
"""Of speech behind that at which a stage is killed: no stage has made all of it by then."""
WITHOUT = "without a history"
HISTORIES = {"with a history": 1 << 20, WITHOUT: 0}


async def serving(fleet: TargetFleet, role: str) -> str:
    """The name of the replica that has the session."""
    for name in fleet.stages:
        if role_of(name) != role:
            continue
        async with grpc.aio.insecure_channel(fleet.running.processes[name].address) as channel:
            told = await stage_stub(channel).Describe(stage_pb2.DescribeRequest())
        if told.open_segments:
            return name
    raise LookupError(f"no replica of {role} has a session")


async def kill_once(
    fleet: TargetFleet, listener: AnswerListener, question: KnownQuestion, role: str, after: int
) -> tuple[Heard, float]:
    """The answer whose stage is killed after so many pieces, and the longest pause from then on."""
    count, now = itertools.count(1), asyncio.Event()
    struck_at: list[float] = []

    async def strike() -> str:
        target = await serving(fleet, role)
        await now.wait()
        struck_at.append(time.monotonic())
        os.kill(fleet.pid(target), signal.SIGKILL)
        return target

    def on_piece(seconds: float) -> None:
        number = next(count)
        if number == 1:
            striking.append(asyncio.create_task(strike()))
        elif number == after:
            now.set()

    striking: list[asyncio.Task[str]] = []
    heard = await listener.listen(question, on_piece)
    target = await striking[0]
    times = [at for at, _ in heard.pieces]
    pauses = [later - at for at, later in itertools.pairwise(times) if later > struck_at[0]]
    await fleet.recovered(target)
    return heard, max(pauses, default=0.0)


@dataclass(frozen=True, slots=True)
class Undisturbed:
    """An answer that no kill disturbs, and how many pieces of audio precede the kill."""

    question: KnownQuestion
    heard: Heard
    after: int


@dataclass(frozen=True, slots=True)
class FailoverSide:
    """A fleet and its listener."""

    fleet: TargetFleet
    listener: AnswerListener

    async def undisturbed(self, seconds: float) -> Undisturbed:
        """The answer of which so many seconds are there when a stage is killed."""
        frames = round((seconds + AHEAD_S) * FRAMES_PER_SECOND)
        question = KnownQuestion("Who are you?", 0.9, 7, round(seconds * 4) + 8, frames)
        heard = await self.listener.listen(question)
        played = itertools.accumulate(each * AT_ONCE for _, each in heard.pieces)
        after = next(at for at, sum_s in enumerate(played, 1) if sum_s >= seconds)
        return Undisturbed(question, heard, after)

    async def measure(self, role: str, whole: Undisturbed) -> Figures:
        """Kill the replica once. Raises `SystemExit` if the answer is another one."""
        before_s = tree_cpu_s()
        heard, pause_s = await kill_once(
            self.fleet, self.listener, whole.question, role, whole.after
        )
        if heard.error or (difference := heard.difference(whole.heard)):
            raise SystemExit(f"{role}: {heard.error or difference}")
        return {"CPU, s": tree_cpu_s() - before_s, "pause, ms": 1e3 * pause_s}


async def compare(options: argparse.Namespace, model: Path, directory: Path) -> None:
    """Kill each stage so many times at each length, with both histories in alternating order."""
    async with AsyncExitStack() as stack:
        sides = {}
        for number, name in enumerate(options.history):
            # A gateway finds its replicas by a file of its fleet's own.
            own = directory / f"fleet-{number}"
            await asyncio.to_thread(own.mkdir)
            fleet = await stack.enter_async_context(
                running_fleet(
                    model,
                    2,
                    own,
                    max_history_bytes=HISTORIES[name],
                    max_ahead_seconds=MAX_AHEAD_S,
                    max_stage_ahead_seconds=MAX_AHEAD_S,
                )
            )
            listener = AnswerListener(fleet.running.grpc_address, speed=AT_ONCE)
            sides[name] = FailoverSide(fleet, await stack.enter_async_context(listener))
        for seconds in options.seconds:
            whole = {name: await side.undisturbed(seconds) for name, side in sides.items()}
            for role in options.roles:
                against = {
                    name: (WITHOUT,) for name in sides if name != WITHOUT and WITHOUT in sides
                }
                comparison = Comparison(
                    [
                        Side(
                            name,
                            partial(side.measure, role, whole[name]),
                            against.get(name, ()),
                        )
                        for name, side in sides.items()
                    ],
                    f"{role} killed after {seconds:g} s of speech",
                )
                await comparison.run(options.rounds, warm_up=0)
                comparison.report()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.failover", description=__doc__)
    parser.add_argument("--seconds", type=float, nargs="+", default=(2.0, 20.0, 60.0))
    parser.add_argument("--roles", nargs="+", default=("thinker", "talker", "code2wav"))
    parser.add_argument("--rounds", type=int, default=3, help="kills of each stage (3)")
    parser.add_argument("--history", nargs="+", default=tuple(HISTORIES), choices=HISTORIES)
    options = parser.parse_args()
    with (
        stated_machine(),
        tempfile.TemporaryDirectory(prefix="antiphon-failover-") as directory,
    ):
        model = Path(directory) / "tiny"
        build_tiny_checkpoint(model, TinyShape(endless_speech=True))
        asyncio.run(compare(options, model, Path(directory)))


if __name__ == "__main__":
    main()
