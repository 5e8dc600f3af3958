"""First audio by what was said before it, and by how long: `python -m benchmarks.realtime.turns`.

A user says the same in each of twenty turns of a conversation at `/v1/realtime`, before real
services on loopback; and speeches of about 20 s and of about 200 s, each in a conversation of its
own. Printed is the time from the commit that ends the recording to the first audio of the answer.

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

from antiphon.testing.local_deployment import local_deployment
from benchmarks.realtime.interruptions import MODEL, Caller, callers, speech_of
from tools.launcher.launcher import Launcher

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


async def tell_turns(url: str, speech: Sequence[str], conversations: int) -> None:
    """Talk in conversations, and print the medians by turn."""
    # The first warms everything up.
    made = []
    for number in range(conversations + 1):
        async with callers(url, 1, speech) as (caller,):
            made.append(await turns(caller, speech, f"number {number}"))
    taken = [statistics.median(each) * 1e3 for each in zip(*made[1:], strict=True)]
    for turn in SHOWN if taken else ():
        ratio = taken[turn - 1] / taken[0]
        print(f"turn {turn:3}  first audio after {taken[turn - 1]:5.0f} ms, {ratio:.2f} x")


async def tell_speeches(url: str, speech: Sequence[str], rounds: int) -> None:
    """Make speeches, and print the medians of pairs and of all."""
    everyone = [each for kind in SPEECHES_S for each in kind]
    spoken: dict[int, list[float]] = {seconds: [] for seconds in everyone}
    for _ in range(rounds):
        for seconds, each in spoken.items():
            async with callers(url, 1, speech) as (caller,):
                each.append(await long_turn(caller, speech, seconds))
    middles = {seconds: statistics.median(each) * 1e3 for seconds, each in spoken.items()}
    for short, long in zip(*SPEECHES_S, strict=True):
        left = short % WINDOW_S or WINDOW_S
        print(
            f"{left} s left   {short:3} s: {middles[short]:5.0f} ms   "
            f"{long:3} s: {middles[long]:5.0f} ms, {middles[long] / middles[short]:.2f} x"
        )
    first, second = (statistics.mean(middles[each] for each in kind) for kind in SPEECHES_S)
    print(f"together   short: {first:5.0f} ms   long: {second:5.0f} ms, {second / first:.2f} x")
    print(f"200 s beside 20 s: {middles[200] / middles[20]:.2f} x")


async def main() -> None:
    """Talk, and print the medians."""
    parser = argparse.ArgumentParser(description="first audio of late turns and of long ones")
    parser.add_argument("--conversations", type=int, default=4)
    parser.add_argument("--speeches", type=int, default=3, help="of each length")
    asked = parser.parse_args()
    async with Launcher(local_deployment(MODEL)) as running:
        speech = await speech_of(running.http_url)
        await tell_turns(running.http_url, speech, asked.conversations)
        if asked.speeches:
            await tell_speeches(running.http_url, speech, asked.speeches)


if __name__ == "__main__":
    asyncio.run(main())
