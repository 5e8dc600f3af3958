"""Measure the time to first audio by length of the input: `python -m benchmarks.realtime.turns`.

A user says the same in each of twenty turns of a conversation at `/v1/realtime`, with real services
on loopback. In addition, speeches of about 20 and 200 seconds are sent in separate conversations,
in alternating order. The figures are the CPU time of all services, and the time from the commit
that ends the recording to the first audio of the answer.

At the end of a speech, the part of it that is in the last window of the audio tower still has to be
processed. A window has 8 seconds. Speeches of both lengths therefore end in all quarters of a
window. They are compared for equal remainders, and in total.
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
"""Short and long speeches in seconds, in pairs with the same remainder of a window."""
PIECE_S = 0.1
MOST_TOKENS = 12
AHEAD_S = 20.0
"""This much of a speech is sent at once. After that, the stages are given time to process it."""
PAUSE_S = 1.0
LAST_S = 0.4
"""The duration of speech after the last pause. The rest of the speech has already been
processed.
"""


async def begin(caller: Caller, instructions: str = "") -> None:
    """Configure a conversation with short answers, in which the client ends turns."""
    audio = {"input": {"turn_detection": None}}
    session = {"type": "realtime", "audio": audio, "max_output_tokens": MOST_TOKENS}
    session |= {"instructions": instructions} if instructions else {}
    await caller.send("session.update", session=session)


async def answer(caller: Caller) -> float:
    """Return the seconds from the end of the user's turn to the first audio of the answer."""
    ended = time.monotonic()
    await caller.send("input_audio_buffer.commit")
    await caller.send("response.create")
    await caller.until("response.output_audio.delta")
    taken = time.monotonic() - ended
    await caller.until("response.done")
    return taken


async def turns(caller: Caller, speech: Sequence[str], name: str) -> list[float]:
    """Return the time of each turn of a conversation.

    The conversation has a unique beginning, so it can only reuse its own turns.
    """
    await begin(caller, f"You are {name}.")
    taken = []
    for _ in range(TURNS):
        for piece in speech:
            await caller.send("input_audio_buffer.append", audio=piece)
        taken.append(await answer(caller))
    return taken


async def long_turn(caller: Caller, speech: Sequence[str], seconds: float) -> float:
    """Return the time of a single long speech.

    It is processed while it is being sent, which is faster than real time.
    """
    await begin(caller)
    count, last = round(seconds / PIECE_S), round(LAST_S / PIECE_S)
    pieces = itertools.islice(itertools.cycle(speech), count)
    for left, piece in zip(range(count, 0, -1), pieces, strict=True):
        if (left - last) % round(AHEAD_S / PIECE_S) == 0:
            await asyncio.sleep(PAUSE_S)
        await caller.send("input_audio_buffer.append", audio=piece)
    return await answer(caller)


class Talking:
    """Conversations with a deployment."""

    def __init__(self, running: Running, speech: Sequence[str]) -> None:
        self._url, self._speech = running.http_url, speech
        self._pids = [each.pid for each in running.processes.values()]
        self._numbers = itertools.count()

    async def measure_turns(self) -> Figures:
        """Measure the selected turns of a conversation. The first turn is the baseline."""
        before_s, name = cpu_s_of(self._pids), f"number {next(self._numbers)}"
        async with callers(self._url, 1, self._speech) as (caller,):
            taken = await turns(caller, self._speech, name)
        used_s = cpu_s_of(self._pids) - before_s
        shown = {f"turn {turn}, ms": 1e3 * taken[turn - 1] for turn in SHOWN}
        return {"CPU, ms per turn": 1e3 * used_s / TURNS, **shown}

    async def measure_speech(self, seconds: float) -> Figures:
        """Measure the time to first audio after a speech."""
        before_s = cpu_s_of(self._pids)
        async with callers(self._url, 1, self._speech) as (caller,):
            taken = await long_turn(caller, self._speech, seconds)
        return {"CPU, s": cpu_s_of(self._pids) - before_s, "first audio, ms": 1e3 * taken}


async def compare(conversations: int, speeches: int) -> None:
    """Run all measurements and print a report."""
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
