"""Conversations with the models that read text aloud, for the tests of each family."""

from __future__ import annotations

import asyncio
import base64
from dataclasses import dataclass

import numpy as np
import openai

import antiphon
from antiphon import SamplingRequest
from antiphon_tools.launcher.launcher import Running
from tests.equality.read_aloud import Options

TEXTS = ("The sea is blue.", "Is it warm? Yes.")
REALTIME_HZ = 24_000
TOLERANCE = 1e-4
"""That of the recorded samples of these families."""
TIMEOUT_S = 240.0


@dataclass(frozen=True, slots=True)
class Spoken:
    """One response of a conversation."""

    pcm16: bytes
    reply: antiphon.ConversationReply


async def respond(call: antiphon.AsyncConversationCall, text: str) -> Spoken:
    """Have a text spoken."""
    await call.add(text)
    await call.respond()
    pcm16 = b""
    async with asyncio.timeout(TIMEOUT_S):
        async for event in call:
            assert not isinstance(event, antiphon.CommandFailed), event
            if isinstance(event, antiphon.ResponseAudioDelta):
                pcm16 += event.pcm16
            if isinstance(event, antiphon.ResponseDone):
                return Spoken(pcm16, event.response)
    raise AssertionError("the conversation has ended")


async def check_texts_are_spoken_as_requests_are(
    client: antiphon.AsyncClient,
    sampling: SamplingRequest,
    *,
    voice: str = "",
    instructions: str = "",
    options: Options | None = None,
) -> None:
    """Each text of a conversation has the samples and the usage of a request for it alone.

    `instructions` are the option `instruction` of a request.
    """
    async with client.converse(
        sampling={"": sampling}, voice=voice, instructions=instructions, options=options or {}
    ) as call:
        for text in TEXTS:
            spoken = await respond(call, text)
            assert spoken.reply.status in ("completed", "incomplete"), spoken.reply.error
            (item,) = spoken.reply.items
            assert item.text == text
            alone = await client.generate(
                text,
                modalities=("audio",),
                voice=voice,
                options={
                    **(options or {}),
                    **({"instruction": instructions} if instructions else {}),
                },
                **sampling.given(),
                timeout_s=TIMEOUT_S,
            ).collect()
            # Pieces of another length are rounded otherwise.
            np.testing.assert_allclose(
                np.frombuffer(spoken.pcm16, "<i2") / 32767,
                np.frombuffer(alone.pcm16, "<i2") / 32767,
                rtol=0,
                atol=TOLERANCE,
            )
            assert spoken.reply.usage == alone.usage


async def check_fails(client: antiphon.AsyncClient, reason: str, *, instructions: str = "") -> None:
    """Responses fail for this reason, and the conversation continues."""
    async with client.converse(instructions=instructions) as call:
        for text in TEXTS:
            reply = (await respond(call, text)).reply
            assert reply.status == "failed"
            assert reply.error is not None
            assert reason in str(reply.error), reply.error


async def check_realtime_audio_lasts_as_long(
    running: Running, model: str, samples_each: int, rate_hz: int, voice: str = ""
) -> None:
    """OpenAI's realtime client gets as many samples at its rate as the frames of a text have at
    the model's."""
    heard = b""
    async with (
        asyncio.timeout(TIMEOUT_S),
        openai.AsyncOpenAI(base_url=f"{running.http_url}/v1", api_key="none") as api,
        api.realtime.connect(model=model) as connection,
    ):
        part = {"type": "input_text", "text": TEXTS[0]}
        item = {"type": "message", "role": "user", "content": [part]}
        session = {"type": "realtime", "audio": {"output": {"voice": voice}}}
        await connection.send({"type": "session.update", "session": session})  # type: ignore[arg-type, misc]
        await connection.send({"type": "conversation.item.create", "item": item})  # type: ignore[arg-type, misc]
        await connection.send({"type": "response.create", "response": {"max_output_tokens": 8}})
        async for event in connection:
            assert event.type != "error", event
            if event.type == "response.output_audio.delta":
                heard += base64.b64decode(event.delta)
            if event.type == "response.done":
                break
    assert event.type == "response.done"
    assert event.response.status in ("completed", "incomplete"), event.response
    frames = event.response.usage.output_token_details.audio_tokens
    assert frames > 0
    assert len(heard) // 2 == round(frames * samples_each * REALTIME_HZ / rate_hz)
