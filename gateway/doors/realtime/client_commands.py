"""A client's event as a command for the conversation."""

from __future__ import annotations

from typing import assert_never

from antiphon.errors import InvalidArgument
from gateway.conversations import commands
from gateway.conversations.commands import Command
from gateway.conversations.settings import ConversationSettings
from gateway.doors.realtime import client_events as client
from gateway.doors.realtime.client_events import ClientEvent
from gateway.doors.realtime.item_json import pcm16_from_base64, read_item
from gateway.doors.realtime.settings import for_response, updated


def read_command(event: ClientEvent, settings: ConversationSettings) -> Command | None:
    """What the event asks for, where these settings hold; None for nothing.

    Raises `InvalidArgument` and `NotImplementedYet` with the field.
    """
    match event:
        case client.SessionUpdate(session=asked):
            return commands.ChangeSettings(updated(settings, asked))
        case client.AudioAppend(audio=audio):
            sent = settings.input_format
            return commands.AppendAudio(pcm16_from_base64(audio, sent, "audio"), sent.rate_hz)
        case client.AudioCommit():
            return commands.CommitAudio()
        case client.AudioClear():
            return commands.ClearAudio()
        case client.ItemCreate(item=given, previous_item_id=after):
            return commands.CreateItem(read_item(given, settings.input_format), after)
        case client.ItemRetrieve(item_id=item_id):
            return commands.RetrieveItem(item_id)
        case client.ItemDelete(item_id=item_id):
            return commands.DeleteItem(item_id)
        case client.ItemTruncate():
            end_s = event.audio_end_ms / 1000
            return commands.TruncateItem(event.item_id, event.content_index, end_s)
        case client.ResponseCreate(response=response):
            return _create_response(response or client.ResponseSettings(), settings)
        case client.ResponseCancel(response_id=response_id):
            return commands.CancelResponse(response_id)
        case client.OutputClear():
            return None
        case _:
            assert_never(event)


def _create_response(
    asked: client.ResponseSettings, settings: ConversationSettings
) -> commands.CreateResponse:
    if len(asked.metadata or {}) > client.MOST_METADATA:
        raise InvalidArgument(
            f"response.metadata: at most {client.MOST_METADATA} entries",
            field="response.metadata",
        )
    if asked.conversation not in (None, "auto", "none"):
        raise InvalidArgument(
            f"response.conversation: {asked.conversation!r} is none; give 'auto' or 'none'",
            field="response.conversation",
        )
    given = None
    if asked.input is not None:
        given = tuple(
            (each.id or "")
            if each.type == "item_reference"
            else read_item(each, settings.input_format)
            for each in asked.input
        )
    return commands.CreateResponse(
        settings=for_response(settings, asked),
        in_conversation=asked.conversation != "none",
        given=given,
        metadata=asked.metadata,
    )
