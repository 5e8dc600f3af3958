"""A call with OpenAI's agents library, as its quick start has it: URL, WAV of what is said."""

from __future__ import annotations

import asyncio
import sys
import wave
from collections.abc import Iterator

from agents.realtime import RealtimeAgent, RealtimeRunner, RealtimeSession
from agents.realtime.events import RealtimeAudio, RealtimeError

QUESTION, ANSWER = "What is antiphon?", "Antiphon serves speech models as small services."
WAIT_S = 120
RATE_HZ = 24_000


async def until_over(session: RealtimeSession, *, interrupt: bool = False) -> int:
    """The bytes of audio that came until the turn was over."""
    audio = 0
    async for event in session:
        if isinstance(event, RealtimeError):
            raise RuntimeError(event.error)
        if isinstance(event, RealtimeAudio):
            audio += len(event.audio.data)
            if interrupt:
                interrupt = False
                await session.interrupt()
        raw = event.data if event.type == "raw_model_event" else None
        if raw is not None and raw.type == "turn_ended":
            return audio
    raise RuntimeError("the session has ended")


def texts(session: RealtimeSession, role: str) -> list[str]:
    """What the history has of somebody's."""
    items = [item for item in session._history if getattr(item, "role", "") == role]
    parts = [part for item in items for part in item.content]
    return [
        getattr(part, "text", None) or getattr(part, "transcript", None) or "" for part in parts
    ]


def pieces(path: str) -> Iterator[bytes]:
    """A recording in pieces of 20 ms, and the pause that ends the turn."""
    with wave.open(path) as file:
        assert (file.getframerate(), file.getsampwidth()) == (RATE_HZ, 2)
        while piece := file.readframes(RATE_HZ // 50):
            yield piece
    for _ in range(200):
        yield bytes(2 * RATE_HZ // 50)


async def talk(url: str, recording: str) -> None:
    """Two typed turns, between them one that is interrupted, and then a spoken one."""
    agent = RealtimeAgent(name="demo", instructions="")
    runner = RealtimeRunner(agent, config={"tracing_disabled": True})
    session = await runner.run(model_config={"url": url, "api_key": "none"})
    async with session, asyncio.timeout(WAIT_S):
        await session.send_message(QUESTION)
        assert await until_over(session) > 2 * RATE_HZ
        assert ANSWER in texts(session, "assistant")
        await session.send_message(QUESTION)
        await until_over(session, interrupt=True)
        await session.send_message(QUESTION)
        assert await until_over(session) > 2 * RATE_HZ
        assert texts(session, "assistant").count(ANSWER) >= 2
        assert texts(session, "user").count(QUESTION) == 3
        for piece in pieces(recording):
            await session.send_audio(piece)
        assert await until_over(session) > 2 * RATE_HZ


if __name__ == "__main__":
    asyncio.run(talk(*sys.argv[1:]))
