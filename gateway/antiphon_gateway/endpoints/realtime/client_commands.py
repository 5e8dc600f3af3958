"""A client's event as a command for the conversation."""

from __future__ import annotations

from typing import assert_never

from antiphon.errors import InvalidArgument
from antiphon.values.live_conversation import (
    AppendAudio,
    CancelResponse,
    ChangeSettings,
    ClearAudio,
    Command,
    CommitAudio,
    CreateItem,
    CreateResponse,
    DeleteItem,
    RetrieveItem,
    TruncateItem,
)
from antiphon_gateway.conversations.settings import ConversationSettings
from antiphon_gateway.endpoints.realtime import client_events as client
from antiphon_gateway.endpoints.realtime.client_events import ClientEvent
from antiphon_gateway.endpoints.realtime.item_json import read_item
from antiphon_gateway.endpoints.realtime.settings import for_response, updated
from antiphon_gateway.media.data_url import decoded_base64
from antiphon_gateway.media.live_audio import AppendedFiles, LiveFormat


class AppendedBytes:
    """Turns appended audio into whole samples: half of one waits for the next piece.

    Clients cut their audio where their network does. Files in a container are rejected.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._files = AppendedFiles("input_audio_buffer.clear")
        self._format: LiveFormat | None = None

    def take(self, audio: str, sent: LiveFormat) -> bytes:
        """16-bit samples. Raises `InvalidArgument` for what is not base64, and for a piece of a
        file in a container; nothing is taken then."""
        data = self._files.bare(decoded_base64(audio, "audio"), sent, "audio")
        self._files.begin(data)
        if sent == self._format:
            data = self._rest + data
        whole = len(data) - len(data) % sent.sample_bytes
        self._rest, self._format = data[whole:], sent
        return sent.pcm16(data[:whole])

    def forget(self) -> None:
        """The buffer begins again."""
        self._rest = b""
        self._files.forget()


def read_command(
    event: ClientEvent, settings: ConversationSettings, appended: AppendedBytes
) -> Command | None:
    """Return the command of the event, given the current settings; None if it has no effect.

    Raises `InvalidArgument` and `NotImplementedYet` with the field.
    """
    match event:
        case client.SessionUpdate(session=asked):
            return ChangeSettings(updated(settings, asked))
        case client.AudioAppend(audio=audio):
            settings.check_hears("audio")
            sent = settings.input_format
            pcm16 = appended.take(audio, sent)
            return AppendAudio(pcm16, sent.rate_hz) if pcm16 else None
        case client.AudioCommit():
            appended.forget()
            return CommitAudio()
        case client.AudioClear():
            appended.forget()
            return ClearAudio()
        case client.ItemCreate(item=given, previous_item_id=after):
            return CreateItem(read_item(given, settings), after)
        case client.ItemRetrieve(item_id=item_id):
            return RetrieveItem(item_id)
        case client.ItemDelete(item_id=item_id):
            return DeleteItem(item_id)
        case client.ItemTruncate():
            heard_s = event.audio_end_ms / 1000
            return TruncateItem(event.item_id, heard_s, event.content_index)
        case client.ResponseCreate(response=response):
            return _create_response(response or client.ResponseSettings(), settings)
        case client.ResponseCancel(response_id=response_id):
            return CancelResponse(response_id or "")
        case client.OutputClear():
            return None
        case _:
            assert_never(event)


def _create_response(
    asked: client.ResponseSettings, settings: ConversationSettings
) -> CreateResponse:
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
            (each.id or "") if each.type == "item_reference" else read_item(each, settings)
            for each in asked.input
        )
    return CreateResponse(
        settings=for_response(settings, asked),
        out_of_band=asked.conversation == "none",
        given=given,
        metadata=asked.metadata,
    )
