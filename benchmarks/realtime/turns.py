"""First audio by what was said before it, and by how long: `python -m benchmarks.realtime.turns`.

A user says the same in each of twenty turns of a conversation at `/v1/realtime`, before real
services on loopback; and speeches of about 20 s and of about 200 s, each in a conversation of its
own, short and long ones in alternating order. Figures are the CPU time of all services and the time
from the commit that ends the recording to the first audio of the answer.

A speech leaves to be heard at its end what it has of the audio tower's last window, of 8 s: half of
it after 20 s and all after 200 s. So speeches of both kinds end in all quarters of a window, and
are compared where they leave equally much, and together.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import statistics
import time
from collections.abc import Sequence
from functools import partial

from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.launcher import Launcher, Running
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.processes import cpu_s_of
from benchmarks.comparison.rounds import Comparison, Figures, Side
from benchmarks.realtime.interruptions import MODEL, Caller, callers, speech_of

TURNS = 20
SHOWN = (1, 2, 5, 10, 15, TURNS)
WINDOW_S = 8
SPEECHES_S = ((14, 16, 18, 20), (198, 200, 194, 196))
"""Short ones and long ones, in pairs that leave as much of a window."""
PIECE_S = 0.1
MOST_TOKENS = 12
AHEAD_S = 20.0
"""So much of a speech is brought at once; then the stages are given the time to take it in."""
PAUSE_S = 1.0
LAST_S = 0.4
"""So much comes behind the last pause: who speaks is heard but for this when he stops."""


async def begin(caller: Caller, instructions: str = "") -> None:
    """Turns are ended by the client, and answers are short."""
    audio = {"input": {"turn_detection": None}}
    session = {"type": "realtime", "audio": audio, "max_output_tokens": MOST_TOKENS}
    session |= {"instructions": instructions} if instructions else {}
    await caller.send("session.update", session=session)


async def answer(caller: Caller) -> float:
    """Seconds from the end of what was said to the first audio of the answer to it."""
    ended = time.monotonic()
    await caller.send("input_audio_buffer.commit")
    await caller.send("response.create")
    await caller.until("response.output_audio.delta")
    taken = time.monotonic() - ended
    await caller.until("response.done")
    return taken


async def turns(caller: Caller, speech: Sequence[str], name: str) -> list[float]:
    """Of each turn of a conversation, which begins like no other: it reuses its own turns alone."""
    await begin(caller, f"You are {name}.")
    taken = []
    for _ in range(TURNS):
        for piece in speech:
            await caller.send("input_audio_buffer.append", audio=piece)
        taken.append(await answer(caller))
    return taken


async def long_turn(caller: Caller, speech: Sequence[str], seconds: float) -> float:
    """Of one speech that is so long, and heard while it is spoken, if faster than it would be."""
    await begin(caller)
    count, last = round(seconds / PIECE_S), round(LAST_S / PIECE_S)
    pieces = itertools.islice(itertools.cycle(speech), count)
    for left, piece in zip(range(count, 0, -1), pieces, strict=True):
        if (left - last) % round(AHEAD_S / PIECE_S) == 0:
            await asyncio.sleep(PAUSE_S)
        await caller.send("input_audio_buffer.append", audio=piece)
    return await answer(caller)


class Talking:
    """Conversations with one deployment."""

    def __init__(self, running: Running, speech: Sequence[str]) -> None:
        self._url, self._speech = running.http_url, speech
        self._pids = [each.pid for each in running.processes.values()]
        self._numbers = itertools.count()

    async def measure_turns(self) -> Figures:
        """First audio of each shown turn of one conversation; the first turn is the baseline."""
        before_s, name = cpu_s_of(self._pids), f"number {next(self._numbers)}"
        async with callers(self._url, 1, self._speech) as (caller,):
            taken = await turns(caller, self._speech, name)
        used_s = cpu_s_of(self._pids) - before_s
        shown = {f"turn {turn}, ms": 1e3 * taken[turn - 1] for turn in SHOWN}
        return {"CPU, ms per turn": 1e3 * used_s / TURNS, **shown}

    async def measure_speech(self, seconds: float) -> Figures:
        """First audio after one speech."""
        before_s = cpu_s_of(self._pids)
        async with callers(self._url, 1, self._speech) as (caller,):
            taken = await long_turn(caller, self._speech, seconds)
        return {"CPU, s": cpu_s_of(self._pids) - before_s, "first audio, ms": 1e3 * taken}


async def compare(conversations: int, speeches: int) -> None:
    """Talk and report."""
    async with Launcher(local_deployment(MODEL)) as running:
        talking = Talking(running, await speech_of(running.http_url))
        if conversations:
            comparison = Comparison([Side("conversation", talking.measure_turns)], "turns")
            await comparison.run(conversations)
            comparison.report()
            first = comparison.column("conversation", "turn 1, ms")
            for turn in SHOWN:
                taken = comparison.column("conversation", f"turn {turn}, ms")
                ratio = statistics.median(a / b for a, b in zip(taken, first, strict=True))
                print(f"turn {turn} / turn 1: {ratio:.2f}")
        for short, long in zip(*SPEECHES_S, strict=True) if speeches else ():
            left = short % WINDOW_S or WINDOW_S
            sides = [
                Side(f"{short} s", partial(talking.measure_speech, short)),
                Side(f"{long} s", partial(talking.measure_speech, long), (f"{short} s",)),
            ]
            comparison = Comparison(sides, f"speeches that leave {left} s of a window")
            await comparison.run(speeches, warm_up=0)
            comparison.report()


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="first audio of late turns and of long ones")
    parser.add_argument("--conversations", type=int, default=4)
    parser.add_argument("--speeches", type=int, default=3, help="of each length")
    given = parser.parse_args()
    with stated_machine():
        asyncio.run(compare(given.conversations, given.speeches))


if __name__ == "__main__":
    main()
