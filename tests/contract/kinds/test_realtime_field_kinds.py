"""Fields of realtime events: which have an effect, and what is reported of the rest."""

from __future__ import annotations

import base64
import logging
from typing import Any

import pytest

from tests.contract.kinds.test_realtime_kinds import OLD_PIPECAT, TWILIO
from tests.contract.realtime_client import Realtime, realtime
from tests.contract.served_gateway import ServedGateway, serve_gateway

pytestmark = pytest.mark.asyncio(loop_scope="session")

SERIES = 'antiphon_gateway_ignored_fields_total{path="/v1/realtime"}'
AGENTS: dict[str, Any] = {
    "type": "realtime",
    "model": "gpt-realtime",
    "audio": {
        "input": {"noise_reduction": {"type": "near_field"}},
        "output": {"speed": 1.25},
    },
    "tracing": {"workflow_name": "w"},
    "prompt": {"id": "p"},
    "include": ["item.input_audio_transcription.logprobs"],
    "truncation": {"type": "retention_ratio", "retention_ratio": 0.5},
}


@pytest.mark.parametrize(
    ("session", "ignored"),
    [
        pytest.param(AGENTS, 0, id="openai-agents: fields without effect"),
        pytest.param(TWILIO, 0, id="Twilio's samples"),
        pytest.param(OLD_PIPECAT, 0, id="Pipecat before 0.0.80"),
        pytest.param({"color": "red", "audio": {"input": {"gain": 2}}}, 2, id="made up"),
        pytest.param({"color": None, "shade": ""}, 0, id="made up, and not given"),
        pytest.param(
            {"instructions": None, "audio": {"output": None}, "tools": None, "voice": ""},
            0,
            id="null and empty",
        ),
    ],
)
async def test_settings_are_taken_whatever_else_their_sender_says(
    served: ServedGateway, session: dict[str, Any], ignored: int
) -> None:
    before = await served.metric(SERIES)
    async with realtime(served) as client:
        await client.send("session.update", session={"instructions": "Be brief.", **session})
        told = (await client.until("session.updated"))["session"]
    assert await served.metric(SERIES) == before + ignored
    assert told["audio"]["input"]["noise_reduction"] is None
    assert told["audio"]["output"]["speed"] == 1.0
    assert [told[name] for name in ("tracing", "prompt", "include")] == [None] * 3
    assert told["truncation"] == "disabled"


async def test_ignored_fields_are_counted_each_time_and_logged_once(
    served: ServedGateway, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="gateway.endpoints")
    before = await served.metric(SERIES)
    for _ in range(2):
        async with realtime(served) as client:
            item = {
                "type": "message",
                "role": "user",
                "mood": "good",
                "content": [{"type": "input_text", "text": "Hi", "once_seen": 1}],
            }
            await client.send("conversation.item.create", item=item, never_before=1)
            await client.until("conversation.item.done")
    assert await served.metric(SERIES) == before + 6
    lines = [each.getMessage() for each in caplog.records if each.name == "gateway.endpoints"]
    for name in ("item.mood", "item.content[].once_seen", "never_before"):
        assert lines.count(f"/v1/realtime ignores the request field {name}") == 1


async def test_made_up_fields_are_refused_where_the_deployment_says_so() -> None:
    async with serve_gateway(unknown_fields="reject") as served, realtime(served) as client:
        await client.send("session.update", session={"audio": {"input": {"gain": 2}}})
        error = (await client.until("error"))["error"]
        assert (error["type"], error["param"]) == (
            "invalid_request_error",
            "session.audio.input.gain",
        )
        # What OpenAI has is not refused, nor what is not given.
        await client.send("session.update", session={**AGENTS, "color": None})
        await client.until("session.updated")


async def test_the_betas_limit_of_one_response_holds(served: ServedGateway) -> None:
    async with realtime(served) as client:
        await client.say("Hi")
        limit = {"modalities": ["text"], "max_response_output_tokens": 7}
        await client.send("response.create", response=limit)
        done = (await client.until("response.done"))["response"]
        assert done["max_output_tokens"] == 7


async def recording_of(client: Realtime, audio: bytes) -> int:
    """How many samples an item has whose recording is this."""
    part = {"type": "input_audio", "audio": base64.b64encode(audio).decode()}
    item = {"type": "message", "role": "user", "content": [part], "id": "recorded"}
    await client.send("conversation.item.create", item=item)
    await client.until("conversation.item.done")
    await client.send("conversation.item.retrieve", item_id="recorded")
    kept = (await client.until("conversation.item.retrieved"))["item"]
    return len(base64.b64decode(kept["content"][0]["audio"])) // 2


async def test_an_item_may_end_in_the_middle_of_a_sample(served: ServedGateway) -> None:
    """pipecat#4952 for recordings that come whole: what is appended may, too."""
    async with realtime(served) as client:
        assert await recording_of(client, b"\1\2" * 500 + b"\3") == 500
