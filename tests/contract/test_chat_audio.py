from __future__ import annotations

import asyncio
import base64
import io
import json
import time

import numpy as np
import pytest
import soundfile

from antiphon.v1 import session_pb2
from antiphon.values.segment import FinishReason
from tests.contract.fake_stages import (
    CODE2WAV,
    FRAMES,
    ROLES,
    SAMPLE_RATE_HZ,
    TALKER,
    THINKER,
    Session,
    samples_of,
)
from tests.contract.served_gateway import MESSAGES, MODEL, SPOKEN, ServedGateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

SAMPLES = samples_of(sum(FRAMES), 0)
PCM16 = np.rint(SAMPLES * 32767).astype("<i2").tobytes()


async def no_frames(session: Session) -> None:
    await session.opened()
    await session.chunk("audio", finish=FinishReason.STOP)
    await session.report()


async def test_chat_speaks_as_wav_when_asked(served: ServedGateway) -> None:
    before = int(time.time())
    completion = await served.openai.chat.completions.create(
        model=MODEL,
        messages=MESSAGES,
        modalities=["text", "audio"],
        audio={"voice": "ethan", "format": "wav"},
    )
    message = completion.choices[0].message
    assert message.content is None
    audio = message.audio
    assert audio is not None
    assert audio.transcript == "Hello wörld!"
    assert audio.id
    assert audio.expires_at >= before
    samples, rate = soundfile.read(io.BytesIO(base64.b64decode(audio.data)), dtype="int16")
    assert rate == SAMPLE_RATE_HZ
    assert samples.astype("<i2").tobytes() == PCM16


async def test_chat_speaks_as_pcm16_when_asked(served: ServedGateway) -> None:
    response = await served.chat(**SPOKEN)
    audio = response.json()["choices"][0]["message"]["audio"]
    assert base64.b64decode(audio["data"]) == PCM16


async def test_chat_counts_frames_as_audio_tokens(served: ServedGateway) -> None:
    usage = (await served.chat(**SPOKEN)).json()["usage"]
    assert usage["completion_tokens"] == 5 + sum(FRAMES)
    assert usage["completion_tokens_details"] == {
        "audio_tokens": sum(FRAMES), "text_tokens": 5, "reasoning_tokens": 0,
    }  # fmt: skip


@pytest.mark.parametrize("format_", ["wav", "pcm16"])
async def test_chat_audio_is_empty_when_the_talker_says_nothing(
    served: ServedGateway, format_: str
) -> None:
    served.fakes[CODE2WAV].script = no_frames
    response = await served.chat(
        modalities=["text", "audio"], audio={"voice": "ethan", "format": format_}
    )
    data = base64.b64decode(response.json()["choices"][0]["message"]["audio"]["data"])
    if format_ == "pcm16":
        assert data == b""
    else:
        samples, rate = soundfile.read(io.BytesIO(data), dtype="int16")
        assert (len(samples), rate) == (0, SAMPLE_RATE_HZ)


async def test_chat_clips_what_is_too_loud(served: ServedGateway) -> None:
    async def loud(session: Session) -> None:
        await session.opened()
        tensors = {
            "samples": np.array([-2.0, -1.0, 0.0, 1.0, 2.0, 0.25], np.float32),
            "codes": np.zeros((1, 16), np.uint16),
        }
        await session.chunk("audio", tensors, finish=FinishReason.STOP)
        await session.report()

    served.fakes[CODE2WAV].script = loud
    data = (await served.chat(**SPOKEN)).json()["choices"][0]["message"]["audio"]["data"]
    got = np.frombuffer(base64.b64decode(data), "<i2")
    assert got.tolist() == [-32767, -32767, 0, 32767, 32767, 8192]


async def test_chat_opens_all_stages_alike_when_audio_is_wanted(served: ServedGateway) -> None:
    loop = asyncio.get_running_loop()
    asked_at = loop.time()
    response = await served.chat(
        **SPOKEN,
        seed=3,
        talker={"temperature": 0.5, "top_k": 4, "max_tokens": 11},
        delivery="whole",
        chunk_policy={"first": 1, "ramp": [2, 3], "steady": 4},
    )
    assert response.status_code == 200
    sessions = served.fakes.sessions()
    assert len({s.opening.session_id for s in sessions}) == 1
    segment = sessions[0].segment
    assert all(session.segment == segment for session in sessions)
    assert list(segment.outputs) == ["audio", "text"]
    assert segment.voice == "ethan"
    assert segment.chunk_policy == session_pb2.ChunkPolicy(first=1, ramp=[2, 3], steady=4)
    assert set(segment.delivery.values()) == {session_pb2.DELIVERY_WHOLE}
    assert set(segment.delivery) == {"text", "prompt", "tokens", "codes", "audio"}
    assert 600 - (loop.time() - asked_at) <= segment.deadline_s <= 600
    assert {segment.sampling[role].seed for role in ROLES} == {3}
    talker = segment.sampling[TALKER]
    assert (talker.temperature, talker.top_k, talker.max_tokens) == (0.5, 4, 11)
    assert not segment.sampling[THINKER].HasField("temperature")


async def test_chat_routes_each_edge_to_its_consumer(served: ServedGateway) -> None:
    await served.chat(**SPOKEN)
    routes = {
        (session.role, route.edge): route.destinations[0]
        for session in served.fakes.sessions()
        for route in session.opening.routes
    }
    assert {key for key, to in routes.items() if to.HasField("reply")} == {
        (THINKER, "text"), (CODE2WAV, "audio"),
    }  # fmt: skip
    stages = {key: to.stage for key, to in routes.items() if to.HasField("stage")}
    assert {key: to.address for key, to in stages.items()} == {
        (THINKER, "prompt"): served.fakes[TALKER].address,
        (THINKER, "tokens"): served.fakes[TALKER].address,
        (TALKER, "codes"): served.fakes[CODE2WAV].address,
    }


@pytest.mark.parametrize("stream", [False, True])
async def test_chat_answers_with_audio_alone_when_nothing_else_is_asked_for(
    served: ServedGateway, stream: bool
) -> None:
    spoken = {"modalities": ["audio"], "audio": {"voice": "ethan", "format": "pcm16"}}
    response = await served.chat(**spoken, stream=stream, stream_options={"include_usage": True}
                               if stream else None)  # fmt: skip
    assert response.status_code == 200
    if stream:
        events = [
            json.loads(line[6:]) for line in response.text.splitlines() if line[6:].startswith("{")
        ]
        told = [each["choices"][0]["delta"].get("audio", {}) for each in events if each["choices"]]
        data = "".join(each.get("data", "") for each in told)
        assert "".join(each.get("transcript", "") for each in told) == ""
        usage = events[-1]["usage"]
    else:
        message = response.json()["choices"][0]["message"]
        data, usage = message["audio"]["data"], response.json()["usage"]
        assert (message["content"], message["audio"]["transcript"]) == (None, "")
    assert len(base64.b64decode(data)) == 2 * (sum(FRAMES) * 1920 - 555)
    assert usage["completion_tokens_details"]["audio_tokens"] == sum(FRAMES)
    segment = served.fakes[THINKER].sessions[0].segment
    assert list(segment.outputs) == ["audio"]


async def test_chat_tells_all_stages_that_its_segment_is_the_last(served: ServedGateway) -> None:
    await served.chat(**SPOKEN)
    assert all(session.segment.last for session in served.fakes.sessions())
    heard = served.fakes[THINKER].sessions[0].input
    assert heard is not None
    assert heard.finished


async def test_chat_talker_seed_overrides_the_seed(served: ServedGateway) -> None:
    await served.chat(**SPOKEN, seed=3, talker={"seed": 8})
    sampling = served.fakes[TALKER].sessions[0].segment.sampling
    assert (sampling[THINKER].seed, sampling[TALKER].seed) == (3, 8)


async def test_chat_draws_one_seed_for_all_stages(served: ServedGateway) -> None:
    await served.chat(**SPOKEN)
    sampling = served.fakes[TALKER].sessions[0].segment.sampling
    assert len({sampling[role].seed for role in ROLES}) == 1


@pytest.mark.parametrize("voice", ["Ethan", {"id": "ethan"}])
async def test_chat_takes_a_voice_by_name_or_id(served: ServedGateway, voice: object) -> None:
    response = await served.chat(
        modalities=["text", "audio"], audio={"voice": voice, "format": "wav"}
    )
    assert response.status_code == 200
    assert served.fakes[TALKER].sessions[0].segment.voice == "ethan"


async def test_chat_says_length_when_the_audio_was_cut(served: ServedGateway) -> None:
    async def cut(session: Session) -> None:
        await session.opened()
        await session.audio(1, 0, FinishReason.LENGTH)
        await session.report(FinishReason.LENGTH)

    served.fakes[CODE2WAV].script = cut
    response = await served.chat(**SPOKEN)
    assert response.json()["choices"][0]["finish_reason"] == "length"
