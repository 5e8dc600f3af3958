"""A `ConverseRequest` as a command for the conversation. Pure."""

from __future__ import annotations

import math
from collections.abc import Sequence

from antiphon.errors import InvalidArgument
from antiphon.v1 import converse_pb2
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
    Item,
    RetrieveItem,
    TruncateItem,
)
from antiphon_gateway.conversations.settings import ConversationSettings
from antiphon_gateway.endpoints.grpc.converse.items import (
    USUAL_RATE_HZ,
    checked_name,
    read_item,
    read_samples,
)
from antiphon_gateway.endpoints.grpc.converse.settings import with_settings
from antiphon_gateway.media.live_audio import PCM16, AppendedFiles, LiveFormat
from antiphon_gateway.media.pcm_recording import PcmRecording

MOST_METADATA = 16
MOST_DELIVERED = 64
MOST_KEY_BYTES, MOST_VALUE_BYTES = 64, 512


class AppendedSamples:
    """Reads appended audio. Files in a container are rejected."""

    def __init__(self) -> None:
        self._files = AppendedFiles("clear_audio")

    def take(self, more: converse_pb2.AppendAudio) -> PcmRecording:
        """The next samples. Raises `InvalidArgument`; nothing is taken then."""
        sent = LiveFormat(PCM16.name, more.rate_hz or USUAL_RATE_HZ)
        data = self._files.bare(more.pcm16, sent, "append_audio.pcm16")
        recorded = read_samples(data, more.rate_hz, "append_audio")
        self._files.begin(data)
        return recorded

    def forget(self) -> None:
        """The buffer begins again."""
        self._files.forget()


def read_command(
    request: converse_pb2.ConverseRequest, holds: ConversationSettings, appended: AppendedSamples
) -> Command:
    """Return the command of a message, given the current settings. Raises `InvalidArgument`."""
    match request.WhichOneof("command"):
        case "change_settings":
            asked = request.change_settings.settings
            return ChangeSettings(with_settings(holds, asked))
        case "append_audio":
            holds.check_hears("append_audio.pcm16")
            recorded = appended.take(request.append_audio)
            return AppendAudio(bytes(recorded.pcm16), recorded.rate_hz)
        case "commit_audio":
            appended.forget()
            return CommitAudio()
        case "clear_audio":
            appended.forget()
            return ClearAudio()
        case "create_item":
            created = request.create_item
            after = created.after if created.HasField("after") else None
            return CreateItem(read_item(created.item, holds, "create_item.item"), after)
        case "delete_item":
            return DeleteItem(request.delete_item.item_id)
        case "retrieve_item":
            return RetrieveItem(request.retrieve_item.item_id)
        case "truncate_item":
            return _truncate(request.truncate_item)
        case "create_response":
            return _create_response(request.create_response, holds)
        case "cancel_response":
            return CancelResponse(request.cancel_response.response_id)
        case "open":
            raise InvalidArgument("open: the conversation is open already", field="open")
        case _:
            raise InvalidArgument("command: is empty, or of a later version", field="command")


def _truncate(cut: converse_pb2.TruncateItem) -> TruncateItem:
    if not 0 <= cut.heard_s < math.inf:
        raise InvalidArgument(
            "truncate_item.heard_s: must be a number of seconds from 0",
            field="truncate_item.heard_s",
        )
    return TruncateItem(cut.item_id, cut.heard_s)


def _create_response(
    asked: converse_pb2.CreateResponse, holds: ConversationSettings
) -> CreateResponse:
    given = tuple(
        _read_input(each, holds, f"create_response.input[{index}]")
        for index, each in enumerate(asked.input)
    )
    return CreateResponse(
        settings=with_settings(holds, asked.settings),
        out_of_band=asked.out_of_band,
        given=given or None,
        metadata=_checked_metadata(dict(asked.metadata)),
    )


def _read_input(
    each: converse_pb2.ResponseInput, holds: ConversationSettings, field: str
) -> Item | str:
    match each.WhichOneof("input"):
        case "item":
            return read_item(each.item, holds, f"{field}.item")
        case "item_id":
            return checked_name(each.item_id, f"{field}.item_id")
        case _:
            raise InvalidArgument(f"{field}: is empty", field=field)


def _checked_metadata(metadata: dict[str, str]) -> dict[str, str]:
    field = "create_response.metadata"
    if len(metadata) > MOST_METADATA:
        raise InvalidArgument(f"{field}: at most {MOST_METADATA} entries", field=field)
    for key, value in metadata.items():
        if len(key.encode()) > MOST_KEY_BYTES or len(value.encode()) > MOST_VALUE_BYTES:
            raise InvalidArgument(
                f"{field}: keys have at most {MOST_KEY_BYTES} and values at most "
                f"{MOST_VALUE_BYTES} bytes of UTF-8",
                field=field,
            )
    return metadata


def read_delivered(
    items: Sequence[converse_pb2.DeliveredItem],
) -> dict[str, tuple[str, float]]:
    """Text and seconds of audio, by item, that a client has of answers that were being made."""
    field = "open.resumed.delivered"
    if len(items) > MOST_DELIVERED:
        raise InvalidArgument(f"{field}: at most {MOST_DELIVERED} items", field=field)
    for each in items:
        if not 0 <= each.audio_s < math.inf:
            raise InvalidArgument(
                f"{field}.audio_s: must be a number of seconds from 0", field=f"{field}.audio_s"
            )
    return {each.item_id: (each.text, each.audio_s) for each in items}
