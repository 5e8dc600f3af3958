"""Opens calls at the same time, and records when each call reaches each step."""

from __future__ import annotations

import asyncio
import itertools
import statistics
import time
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass

import httpx

import antiphon
from antiphon.client.events import AudioDelta, TextDelta

VOICE = "one"
BODY = {
    "model": "fake",
    "modalities": ["text", "audio"],
    "audio": {"format": "pcm16", "voice": VOICE},
    "messages": [{"role": "user", "content": "Hello"}],
    "stream": True,
}


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
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    async with httpx.AsyncClient(
        base_url=f"http://{address}", timeout=300.0, limits=limits
    ) as client:
        await asyncio.gather(*(client.get("/health") for _ in range(count)))
        began = time.perf_counter()

        async def one() -> Steps:
            seen: dict[str, float] = {}
            async with client.stream("POST", "/v1/chat/completions", json=BODY) as response:
                response.raise_for_status()
                seen["accepted"] = _ms(began)
                async for line in response.aiter_lines():
                    if '"transcript":"' in line:
                        seen.setdefault("first_text", _ms(began))
                    if '"data":"' in line:
                        seen.setdefault("first_audio", _ms(began))
            return Steps(**seen, ended=_ms(began))

        return await _all(one, count)


PROTOCOLS: dict[str, Callable[..., Awaitable[list[Steps]]]] = {
    "grpc": open_grpc,
    "http": open_http,
}


async def _all(one: Callable[[], Awaitable[Steps]], count: int) -> list[Steps]:
    return list(await asyncio.gather(*(one() for _ in range(count))))


def _ms(since: float) -> float:
    return 1e3 * (time.perf_counter() - since)
