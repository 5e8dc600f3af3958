"""Opens calls at the same time, and records when each call reaches each step."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import antiphon
from antiphon.client.events import AudioDelta, TextDelta
from benchmarks.opening.keep_alive import KeepAlive

VOICE = "one"
BODY = {
    "model": "fake",
    "modalities": ["text", "audio"],
    "audio": {"format": "pcm16", "voice": VOICE},
    "messages": [{"role": "user", "content": "Hello"}],
    "stream": True,
}
MARKERS = {"first_text": b'"transcript":"', "first_audio": b'"data":"'}
MARKER_BYTES = max(map(len, MARKERS.values()))


@dataclass(frozen=True, slots=True)
class Steps:
    """The times of a call, in milliseconds from the moment when all calls were opened.

    `accepted` is the first event over gRPC, or the head of the response over HTTP.
    """

    accepted: float
    first_text: float
    first_audio: float
    ended: float


def medians(calls: Sequence[Steps]) -> dict[str, float]:
    """Return the median of each step, and the time to first audio of the last call."""
    names = ("accepted", "first_text", "first_audio", "ended")
    made = {
        f"{name}, ms": statistics.median(getattr(each, name) for each in calls) for name in names
    }
    return made | {"last first_audio, ms": max(each.first_audio for each in calls)}


async def open_grpc(address: str, count: int, channels: int = 1) -> list[Steps]:
    """Open calls over this many channels, which are established beforehand."""
    async with AsyncExitStack() as stack:
        clients = [
            await stack.enter_async_context(antiphon.AsyncClient(address)) for _ in range(channels)
        ]
        await asyncio.gather(*(each.server_info() for each in clients))
        turns = itertools.cycle(clients)
        began = time.perf_counter()

        async def one() -> Steps:
            client = next(turns)
            seen: dict[str, float] = {}
            async with client.generate("Hello", voice=VOICE) as events:
                async for event in events:
                    seen.setdefault("accepted", _ms(began))
                    if isinstance(event, TextDelta):
                        seen.setdefault("first_text", _ms(began))
                    elif isinstance(event, AudioDelta):
                        seen.setdefault("first_audio", _ms(began))
            return Steps(**seen, ended=_ms(began))

        return await _all(one, count)


async def open_http(address: str, count: int, channels: int = 1) -> list[Steps]:
    """Open calls over separate connections, which are established beforehand. The number of
    channels has no effect.
    """
    connections = await asyncio.gather(*(KeepAlive.open(address) for _ in range(count)))
    try:
        turns = iter(connections)
        began = time.perf_counter()

        async def one() -> Steps:
            seen: dict[str, float] = {}
            end = b""

            def accepted() -> None:
                seen["accepted"] = _ms(began)

            def arrived(body: bytes) -> None:
                # A marker may be split between two pieces of the body.
                nonlocal end
                body = end + body
                for name, marker in MARKERS.items():
                    if marker in body:
                        seen.setdefault(name, _ms(began))
                end = body[-MARKER_BYTES:]

            await next(turns).request(
                "POST", "/v1/chat/completions", BODY, on_head=accepted, on_body=arrived
            )
            return Steps(**seen, ended=_ms(began))

        return await _all(one, count)
    finally:
        for each in connections:
            each.close()


PROTOCOLS: dict[str, Callable[..., Awaitable[list[Steps]]]] = {
    "grpc": open_grpc,
    "http": open_http,
}


async def _all(one: Callable[[], Awaitable[Steps]], count: int) -> list[Steps]:
    return list(await asyncio.gather(*(one() for _ in range(count))))


def _ms(since: float) -> float:
    return 1e3 * (time.perf_counter() - since)
