"""A call with LiveKit's plugin for realtime models: URL, WAV of what is said."""

from __future__ import annotations

import asyncio
import sys
import wave
from collections.abc import Iterator

import aiohttp
from livekit import rtc
from livekit.agents.llm import ChatContext, GenerationCreatedEvent
from livekit.plugins.openai.realtime import RealtimeModel

QUESTION, ANSWER = "What is antiphon?", "Antiphon serves speech models as small services."
WAIT_S = 120
RATE_HZ = 24_000


def frames(path: str) -> Iterator[rtc.AudioFrame]:
    """A recording in pieces of 20 ms, and the pause that ends the turn."""
    count = RATE_HZ // 50
    with wave.open(path) as file:
        assert (file.getframerate(), file.getsampwidth()) == (RATE_HZ, 2)
        while len(piece := file.readframes(count)) == 2 * count:
            yield rtc.AudioFrame(piece, RATE_HZ, 1, count)
    for _ in range(100):
        yield rtc.AudioFrame(bytes(2 * count), RATE_HZ, 1, count)


async def heard(generation: GenerationCreatedEvent) -> tuple[str, str, int]:
    """An answer's id, text and samples."""
    messages = [message async for message in generation.message_stream]
    assert len(messages) == 1
    text = "".join([str(part) async for part in messages[0].text_stream])
    samples = sum([frame.samples_per_channel async for frame in messages[0].audio_stream])
    return messages[0].message_id, text, samples


async def talk(url: str, recording: str) -> None:
    """A question from the history, then one that is spoken; the first answer is cut afterwards."""
    base_url, _, model_name = url.partition("/realtime?model=")
    async with aiohttp.ClientSession() as http, asyncio.timeout(WAIT_S):
        model = RealtimeModel(
            model=model_name, base_url=base_url, api_key="none", http_session=http, voice="marin"
        )
        session = model.session()
        failures: list[object] = []
        generations: asyncio.Queue[GenerationCreatedEvent] = asyncio.Queue()
        session.on("error", failures.append)
        session.on("generation_created", generations.put_nowait)
        history = ChatContext()
        history.add_message(role="user", content=QUESTION)
        await session.update_chat_ctx(history)
        reply = session.generate_reply()
        message_id, text, samples = await heard(await reply)
        assert (await generations.get()).user_initiated
        assert text == ANSWER
        assert samples > RATE_HZ
        session.truncate(message_id=message_id, modalities=["audio"], audio_end_ms=500)
        for frame in frames(recording):
            session.push_audio(frame)
        generation = await generations.get()
        assert not generation.user_initiated
        _, text, samples = await heard(generation)
        assert text
        assert samples > RATE_HZ
        await session.aclose()
        await model.aclose()
        assert not failures, failures


if __name__ == "__main__":
    asyncio.run(talk(*sys.argv[1:]))
