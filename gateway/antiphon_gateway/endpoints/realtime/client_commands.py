"""Converts a client event to a conversation command. Each event has a row in `COMMANDS`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

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
    """Converts appended audio to complete samples. If a piece ends in the middle of a sample, the
    rest of the sample must come with the next piece.

    This is needed because clients can split their audio anywhere. Files in a container format are
    rejected.
    """

    def __init__(self) -> None:
        self._rest = b""
        self._files = AppendedFiles("input_audio_buffer.clear")
        self._format: LiveFormat | None = None

    def take(self, audio: str, sent: LiveFormat) -> bytes:
        """Return 16-bit samples.

        If the audio isn't base64 or is part of a file in a container format, `InvalidArgument` is
        raised and nothing changes.
        """
        data = decoded_base64(audio, "audio")
        if not self._files.begun:
            data = self._files.bare(data, sent, "audio")
            self._files.begin(data)
        if self._rest and sent == self._format:
            data = self._rest + data
        whole = len(data) - len(data) % sent.sample_bytes
        self._rest, self._format = data[whole:], sent
        return sent.pcm16(data[:whole])

    def forget(self) -> None:
        """Reset the state, because the buffer has been emptied."""
        self._rest = b""
        self._files.forget()


def read_command(
    event: ClientEvent, settings: ConversationSettings, appended: AppendedBytes
) -> Command | None:
    """Return the command for an event. If the event has no effect, returns None.

    Raises `InvalidArgument` or `NotImplementedYet` with the field.
    """
    kind = type(event)
    return None if kind in WITHOUT_EFFECT else COMMANDS[kind].read(event, settings, appended)


def _change_settings(
    event: client.SessionUpdate, settings: ConversationSettings, _: AppendedBytes
) -> ChangeSettings:
    return ChangeSettings(updated(settings, event.session))


def _append_audio(
    event: client.AudioAppend, settings: ConversationSettings, appended: AppendedBytes
) -> AppendAudio | None:
    settings.check_hears("audio")
    sent = settings.input_format
    pcm16 = appended.take(event.audio, sent)
    return AppendAudio(pcm16, sent.rate_hz) if pcm16 else None


def _commit_audio(
    _: client.AudioCommit, __: ConversationSettings, appended: AppendedBytes
) -> CommitAudio:
    appended.forget()
    return CommitAudio()


def _clear_audio(
    _: client.AudioClear, __: ConversationSettings, appended: AppendedBytes
) -> ClearAudio:
    appended.forget()
    return ClearAudio()


def _create_item(
    event: client.ItemCreate, settings: ConversationSettings, _: AppendedBytes
) -> CreateItem:
    return CreateItem(read_item(event.item, settings), event.previous_item_id)


def _truncate_item(
    event: client.ItemTruncate, _: ConversationSettings, __: AppendedBytes
) -> TruncateItem:
    return TruncateItem(event.item_id, event.audio_end_ms / 1000, event.content_index)


def _create_response(
    event: client.ResponseCreate, settings: ConversationSettings, _: AppendedBytes
) -> CreateResponse:
    asked = event.response or client.ResponseSettings()
    if len(asked.metadata or {}) > client.MOST_METADATA:
        raise InvalidArgument(
            f"response.metadata: must have at most {client.MOST_METADATA} entries",
            field="response.metadata",
        )
    if asked.conversation not in (None, "auto", "none"):
        raise InvalidArgument(
            f"response.conversation: unknown value {asked.conversation!r}; use 'auto' or 'none'",
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


class CommandRow(NamedTuple):
    """The command for an event and the function that parses it.

    The function receives the event, the current settings, and the audio received so far. It returns
    None if a piece of audio doesn't complete a sample.
    """

    command: type[Command]
    read: Callable[[Any, ConversationSettings, AppendedBytes], Command | None]


COMMANDS: Mapping[type[ClientEvent], CommandRow] = {
    client.SessionUpdate: CommandRow(ChangeSettings, _change_settings),
    client.AudioAppend: CommandRow(AppendAudio, _append_audio),
    client.AudioCommit: CommandRow(CommitAudio, _commit_audio),
    client.AudioClear: CommandRow(ClearAudio, _clear_audio),
    client.ItemCreate: CommandRow(CreateItem, _create_item),
    client.ItemRetrieve: CommandRow(RetrieveItem, lambda event, *_: RetrieveItem(event.item_id)),
    client.ItemDelete: CommandRow(DeleteItem, lambda event, *_: DeleteItem(event.item_id)),
    client.ItemTruncate: CommandRow(TruncateItem, _truncate_item),
    client.ResponseCreate: CommandRow(CreateResponse, _create_response),
    client.ResponseCancel: CommandRow(
        CancelResponse, lambda event, *_: CancelResponse(event.response_id or "")
    ),
}
"""Maps client events to commands."""

WITHOUT_EFFECT: Mapping[type[ClientEvent], str] = {
    client.OutputClear: (
        "is not available over a WebSocket, where the client plays the audio and the gateway "
        "has no output buffer"
    )
}
"""Client events that have no effect and the reason why."""
