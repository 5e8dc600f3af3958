"""Measure interrupted conversations: `python -m benchmarks.realtime.interruptions`.

Real services on loopback answer all conversations at `/v1/realtime` at the same time. Each
conversation is then interrupted at a different time. Either the client cancels the answer, or its
user speaks and the gateway detects it. The figures are the CPU time of all services, the time from
the interruption to the last audio, and how long stages still used slots after the last
interruption.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import time
from collections.abc import AsyncIterator, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import openai
from websockets.asyncio.client import ClientConnection, connect

from antiphon.deployment.schema import StageConfig
from antiphon.v1 import stage_pb2
from antiphon.wire.stubs import stage_stub
from antiphon_testkit.local_deployment import local_deployment
from antiphon_tools.launcher.launcher import Launcher, Running
from benchmarks.comparison.machine import stated_machine
from benchmarks.comparison.processes import cpu_s_of
from benchmarks.comparison.rounds import Comparison, Figures, Side

MODEL = Path(__file__).parents[2] / "models" / "antiphon-demo"
STAGES = ("thinker", "talker", "code2wav")
RATE_HZ = 24_000
QUESTION = "Say after me: " + " and ".join(
    ["the morning is cold", "the water is deep", "the small house is green"] * 2
)
WITHIN_S = 0.5
"""The interval over which interruptions are distributed, in seconds."""
VAD = {"type": "server_vad", "create_response": False, "interrupt_response": True}


class Load:
    """The number of open segments that the stages report."""

    def __init__(self) -> None:
        self._open = dict.fromkeys(STAGES, 0)
        self._changed = asyncio.Condition()

    async def watch(self, role: str, address: str) -> None:
        """Watch a stage indefinitely."""
        async with grpc.aio.insecure_channel(address) as channel:
            async for load in stage_stub(channel).WatchLoad(stage_pb2.WatchLoadRequest()):
                async with self._changed:
                    self._open[role] = load.open_segments
                    self._changed.notify_all()

    async def wait_free(self) -> float:
        """Wait until no stage has an open segment, and return the time."""
        async with self._changed:
            await self._changed.wait_for(lambda: not any(self._open.values()))
        return time.monotonic()


class Caller:
    """A conversation."""

    def __init__(self, connection: ClientConnection, speech: Sequence[str]) -> None:
        self._connection = connection
        self._speech = speech

    async def send(self, kind: str, **fields: Any) -> None:
        """Send an event."""
        await self._connection.send(json.dumps({"type": kind, **fields}))

    async def until(self, kind: str) -> dict[str, Any]:
        """Receive events up to the first one of this type, and return it."""
        while (event := json.loads(await self._connection.recv()))["type"] != kind:
            assert event["type"] != "error", event
        found: dict[str, Any] = event
        return found

    async def begin(self, *, spoken: bool) -> None:
        """Ask a question, and return when the first audio of the answer arrives."""
        audio = {"input": {"turn_detection": VAD if spoken else None}}
        await self.send("session.update", session={"type": "realtime", "audio": audio})
        part = {"type": "input_text", "text": QUESTION}
        item = {"type": "message", "role": "user", "content": [part]}
        await self.send("conversation.item.create", item=item)
        await self.send("response.create")
        await self.until("response.output_audio.delta")

    async def interrupt(self, *, spoken: bool) -> tuple[float, float] | None:
        """Return the times of the interruption and of the last audio, or None if the answer had
        ended.
        """
        at = last = time.monotonic()
        speaking = None
        if spoken:
            speaking = asyncio.create_task(self._speak())
        else:
            await self.send("response.cancel")
        status = ""
        while not status:
            event = json.loads(await self._connection.recv())
            now = time.monotonic()
            match event["type"]:
                case "input_audio_buffer.speech_started":
                    at = last = now
                case "response.output_audio.delta":
                    last = now
                case "response.done":
                    status = event["response"]["status"]
        if speaking is not None:
            await speaking
        return (at, last) if status == "cancelled" else None

    async def _speak(self) -> None:
        for piece in self._speech:
            await self.send("input_audio_buffer.append", audio=piece)
            await asyncio.sleep(0.1)


async def speech_of(http_url: str) -> list[str]:
    """Return a second of speech from the model, in pieces of 0.1 seconds."""
    async with openai.AsyncOpenAI(base_url=f"{http_url}/v1", api_key="none") as api:
        answer = await api.chat.completions.create(
            model=MODEL.name,
            modalities=["text", "audio"],
            audio={"voice": "cantor", "format": "pcm16"},
            messages=[{"role": "user", "content": "What is antiphon?"}],
        )
    audio = answer.choices[0].message.audio
    assert audio is not None
    pcm16 = base64.b64decode(audio.data)[: 2 * RATE_HZ]
    size = RATE_HZ // 10 * 2
    return [base64.b64encode(pcm16[at : at + size]).decode() for at in range(0, len(pcm16), size)]


@asynccontextmanager
async def callers(http_url: str, count: int, speech: Sequence[str]) -> AsyncIterator[list[Caller]]:
    """Open conversations."""
    url = f"{http_url.replace('http', 'ws', 1)}/v1/realtime?model={MODEL.name}"
    async with AsyncExitStack() as stack:
        opened = [
            await stack.enter_async_context(connect(url, compression=None, max_size=None))
            for _ in range(count)
        ]
        yield [Caller(each, speech) for each in opened]


async def one_round(
    http_url: str, count: int, speech: Sequence[str], load: Load, *, spoken: bool
) -> tuple[list[float], float]:
    """Return the seconds from each interruption to the last audio, and from the last one to free
    slots.
    """
    async with callers(http_url, count, speech) as talking:
        await asyncio.gather(*(each.begin(spoken=spoken) for each in talking))

        async def later(caller: Caller) -> tuple[float, float] | None:
            await asyncio.sleep(random.uniform(0, WITHIN_S))
            return await caller.interrupt(spoken=spoken)

        free = asyncio.create_task(load.wait_free())
        ended = [each for each in await asyncio.gather(*map(later, talking)) if each is not None]
        free_at = await free
    return [last - at for at, last in ended], free_at - max(
        (at for at, _ in ended), default=free_at
    )


async def measure(
    running: Running, count: int, speech: Sequence[str], load: Load, *, spoken: bool
) -> Figures:
    """Measure a round."""
    pids = [each.pid for each in running.processes.values()]
    before_s = cpu_s_of(pids)
    lasts, free_s = await one_round(running.http_url, count, speech, load, spoken=spoken)
    late_ms = np.array(lasts) * 1e3
    return {
        "CPU, ms per conversation": 1e3 * (cpu_s_of(pids) - before_s) / count,
        "interrupted": len(lasts),
        "last audio after, ms": float(np.median(late_ms)),
        "p95, ms": float(np.quantile(late_ms, 0.95)),
        "most, ms": float(late_ms.max()),
        "slots free after, ms": 1e3 * free_s,
    }


async def compare(rounds: int, count: int) -> None:
    """Measure both types of interruption in alternating order, and print a report."""
    slots = {role: StageConfig(slots=count) for role in STAGES}
    load = Load()
    async with Launcher(local_deployment(MODEL, **slots)) as running:
        watching = [
            asyncio.create_task(load.watch(role, running.processes[role].address))
            for role in STAGES
        ]
        speech = await speech_of(running.http_url)
        once = partial(measure, running, count, speech, load)
        sides = [
            Side("cancelled", partial(once, spoken=False)),
            Side("interrupted by speech", partial(once, spoken=True)),
        ]
        comparison = Comparison(sides, f"{count} conversations")
        await comparison.run(rounds)
        comparison.report()
        for each in watching:
            each.cancel()
        await asyncio.gather(*watching, return_exceptions=True)


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description="conversations that are interrupted")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--conversations", type=int, default=32)
    given = parser.parse_args()
    with stated_machine():
        asyncio.run(compare(given.rounds, given.conversations))


if __name__ == "__main__":
    main()
