"""Fields of realtime events: which have an effect, and what is reported of the rest."""

from __future__ import annotations

import base64
import logging
import types
import typing
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, get_args, get_origin, get_type_hints

import msgspec
import pytest
import typing_extensions
from gateway_door import Door, open_door
from openai.types.beta import realtime as beta
from openai.types.realtime.realtime_client_event_param import RealtimeClientEventParam
from realtime_client import Realtime, realtime
from test_realtime_kinds import OLD_PIPECAT, TWILIO

from antiphon.errors import InvalidArgument
from gateway.doors.http.fields import IgnoredFields
from gateway.doors.realtime.client_events import read_event

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
    door: Door, session: dict[str, Any], ignored: int
) -> None:
    before = await door.metric(SERIES)
    async with realtime(door) as client:
        await client.send("session.update", session={"instructions": "Be brief.", **session})
        told = (await client.until("session.updated"))["session"]
    assert await door.metric(SERIES) == before + ignored
    assert told["audio"]["input"]["noise_reduction"] is None
    assert told["audio"]["output"]["speed"] == 1.0
    assert [told[name] for name in ("tracing", "prompt", "include")] == [None] * 3
    assert told["truncation"] == "disabled"


async def test_ignored_fields_are_counted_each_time_and_logged_once(
    door: Door, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, logger="gateway.doors")
    before = await door.metric(SERIES)
    for _ in range(2):
        async with realtime(door) as client:
            item = {
                "type": "message",
                "role": "user",
                "mood": "good",
                "content": [{"type": "input_text", "text": "Hi", "once_seen": 1}],
            }
            await client.send("conversation.item.create", item=item, never_before=1)
            await client.until("conversation.item.done")
    assert await door.metric(SERIES) == before + 6
    lines = [each.getMessage() for each in caplog.records if each.name == "gateway.doors"]
    for name in ("item.mood", "item.content[].once_seen", "never_before"):
        assert sum(f"/v1/realtime ignores the field {name} " in each for each in lines) == 1


async def test_made_up_fields_are_refused_where_the_deployment_says_so() -> None:
    async with open_door(unknown_fields="reject") as door, realtime(door) as client:
        await client.send("session.update", session={"audio": {"input": {"gain": 2}}})
        error = (await client.until("error"))["error"]
        assert (error["type"], error["param"]) == (
            "invalid_request_error",
            "session.audio.input.gain",
        )
        # What OpenAI has is not refused, nor what is not given.
        await client.send("session.update", session={**AGENTS, "color": None})
        await client.until("session.updated")


async def test_the_betas_limit_of_one_response_holds(door: Door) -> None:
    async with realtime(door) as client:
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


async def test_an_item_may_end_in_the_middle_of_a_sample(door: Door) -> None:
    """pipecat#4952 for recordings that come whole: what is appended may, too."""
    async with realtime(door) as client:
        assert await recording_of(client, b"\1\2" * 500 + b"\3") == 500


def structs(kind: Any) -> Iterator[tuple[Any, str]]:
    """The dictionaries in an annotation of OpenAI's, and "[]" for those in a list."""
    required = (typing.Required, typing.NotRequired, typing.Annotated)
    while get_origin(kind) in (*required, typing_extensions.Required):
        kind = get_args(kind)[0]
    if get_origin(kind) in (typing.Union, types.UnionType):
        for each in get_args(kind):
            yield from structs(each)
    elif typing_extensions.is_typeddict(kind):
        yield kind, ""
    elif get_origin(kind) is not dict:
        for each in get_args(kind):
            yield from ((struct, "[]") for struct, _ in structs(each))


def examples(kind: Any, depth: int = 0) -> Iterator[dict[str, Any]]:
    """Objects of one field each, which together have all fields of OpenAI's type."""
    for struct, _ in structs(kind):
        for name, inner in get_type_hints(struct, include_extras=True).items():
            if name in ("tools", "metadata", "variables"):
                continue  # lists of the client's own objects
            yield {name: None if name == "type" else 5}
            many = any(suffix for _, suffix in structs(inner))
            for each in examples(inner, depth + 1) if depth < 5 else ():
                yield {name: [each] if many else each}


async def test_every_field_of_openais_events_is_known() -> None:
    """Of today's and of the beta's: none is reported as made up."""
    unknown: set[str] = set()
    seen = 0
    for event in (*get_args(RealtimeClientEventParam), *get_args(beta.RealtimeClientEventParam)):
        hints = get_type_hints(event, include_extras=True)
        (literal,) = get_args(hints["type"])
        (kind,) = get_args(literal)
        if kind == "transcription_session.update":
            continue  # refused as a whole
        for example in examples(event):
            ignored = IgnoredFields("ignore")
            with suppress(InvalidArgument):  # of a value; the fields before it are reported
                read_event(msgspec.json.encode({**example, "type": kind}).decode(), ignored)
            unknown |= set(ignored)
            seen += 1
    assert seen > 100
    assert not unknown
