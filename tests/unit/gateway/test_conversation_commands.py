"""Every command of a conversation is carried out, and can be given at each endpoint."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, get_args

import pytest

import antiphon_gateway
from antiphon.v1 import converse_pb2
from antiphon.values import live_conversation as talk
from antiphon_gateway.conversations.conversation import LiveConversation
from antiphon_gateway.conversations.settings import ConversationSettings
from antiphon_gateway.endpoints.grpc.converse import reading
from antiphon_gateway.endpoints.http.fields import IgnoredFields
from antiphon_gateway.endpoints.realtime import client_commands
from antiphon_gateway.endpoints.realtime.client_events import ClientEvent, read_event
from antiphon_gateway.endpoints.realtime.event_reference import CLIENT_EXAMPLES, SERVER_EXAMPLES
from antiphon_gateway.endpoints.realtime.server_events import ServerEvents

COMMANDS = frozenset(get_args(talk.Command))
SETTINGS = ConversationSettings(
    model="antiphon-demo",
    voices=("cantor",),
    voice="cantor",
    output_rate_hz=24_000,
    stopping=True,
    timeline=True,
)
USER = converse_pb2.ConversationItem(
    role="user", contents=[converse_pb2.ItemContent(text="What is antiphon?")]
)
REQUESTS: dict[str, Any] = {
    "append_audio": converse_pb2.AppendAudio(pcm16=bytes(4)),
    "create_item": converse_pb2.CreateItem(item=USER),
}
"""Messages of the commands that are invalid when empty."""
PAGE = Path(antiphon_gateway.__file__).parent / "page"
RESUMES = "antiphon.conversation.resume"
"""The first event of a resumed conversation; `resuming.py` reads it before there are commands."""


def test_a_conversation_carries_out_every_command() -> None:
    assert LiveConversation.actions.keys() == COMMANDS


def test_grpc_has_a_field_for_every_command() -> None:
    fields = converse_pb2.ConverseRequest.DESCRIPTOR.oneofs_by_name["command"].fields
    assert reading.COMMANDS.keys() == {each.name for each in fields} - {"open"}
    assert {row.command for row in reading.COMMANDS.values()} == COMMANDS


@pytest.mark.parametrize("field", reading.COMMANDS)
def test_grpc_reads_the_command_of_each_field(field: str) -> None:
    request = converse_pb2.ConverseRequest()
    empty = getattr(request, field)
    empty.SetInParent()
    empty.CopyFrom(REQUESTS.get(field, empty))
    read = reading.read_command(request, SETTINGS, reading.AppendedSamples())
    assert type(read) is reading.COMMANDS[field].command


def test_realtime_has_an_event_for_every_command() -> None:
    with_command, without = client_commands.COMMANDS, client_commands.WITHOUT_EFFECT
    assert not with_command.keys() & without.keys()
    assert with_command.keys() | without.keys() == set(get_args(ClientEvent))
    assert {row.command for row in with_command.values()} == COMMANDS
    assert all(without.values())


@pytest.mark.parametrize("example", CLIENT_EXAMPLES, ids=lambda example: example["type"])
def test_realtime_reads_the_command_of_each_event(example: dict[str, Any]) -> None:
    event = read_event(json.dumps(example), IgnoredFields("reject"))
    read = client_commands.read_command(event, SETTINGS, client_commands.AppendedBytes())
    row = client_commands.COMMANDS.get(type(event))
    assert type(read) is (row.command if row is not None else type(None))


def named_by_page(pattern: str) -> set[str]:
    """What the page's scripts name where the pattern has its group."""
    found = {name for path in PAGE.glob("*.js") for name in re.findall(pattern, path.read_text())}
    assert found
    return found


def test_page_sends_events_that_there_are() -> None:
    sent = named_by_page(r'send\(\s*"([^"]+)"') | named_by_page(r'type: "(antiphon\.[^"]+)"')
    events = {kind.__struct_config__.tag for kind in get_args(ClientEvent)}
    assert sent <= events | {RESUMES}
    assert named_by_page(r'const AUDIO = "([^"]+)"') <= events


async def test_page_shows_events_that_there_are() -> None:
    written = ServerEvents(SETTINGS, 1 << 20)
    told = {made["type"] for event in SERVER_EXAMPLES for made in await written.of(event)}
    shown = named_by_page(r'(?m)^  "([a-z_]+\.[a-z_.]+)":')
    noted = named_by_page(r'case "([a-z_]+\.[a-z_.]+)"')
    assert shown | noted <= told
