"""Converts a `ConverseRequest` to a conversation command. Each command has a row in `COMMANDS`.
This module performs no I/O.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

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
    """Parses appended audio. Files in a container format are rejected."""

    def __init__(self) -> None:
        self._files = AppendedFiles("clear_audio")

    def take(self, more: converse_pb2.AppendAudio) -> PcmRecording:
        """Return the next samples. If they aren't valid, `InvalidArgument` is raised and nothing
        changes.
        """
        sent = LiveFormat(PCM16.name, more.rate_hz or USUAL_RATE_HZ)
        data = self._files.bare(more.pcm16, sent, "append_audio.pcm16")
        recorded = read_samples(data, more.rate_hz, "append_audio")
        self._files.begin(data)
        return recorded

    def forget(self) -> None:
        """Reset the state, because the buffer has been emptied."""
        self._files.forget()


def read_command(
    request: converse_pb2.ConverseRequest, holds: ConversationSettings, appended: AppendedSamples
) -> Command:
    """Parse the command in a message, using the current settings. Raises `InvalidArgument` if it is
    invalid.
    """
    field = request.WhichOneof("command")
    if field == "open":
        raise InvalidArgument("open: the conversation is already open", field="open")
    if field is None:
        raise InvalidArgument("command: is empty, or was added in a later version", field="command")
    return COMMANDS[field].read(getattr(request, field), holds, appended)


def _append_audio(
    asked: converse_pb2.AppendAudio, holds: ConversationSettings, appended: AppendedSamples
) -> AppendAudio:
    holds.check_hears("append_audio.pcm16")
    recorded = appended.take(asked)
    return AppendAudio(bytes(recorded.pcm16), recorded.rate_hz)


def _commit_audio(
    _: converse_pb2.CommitAudio, __: ConversationSettings, appended: AppendedSamples
) -> CommitAudio:
    appended.forget()
    return CommitAudio()


def _clear_audio(
    _: converse_pb2.ClearAudio, __: ConversationSettings, appended: AppendedSamples
) -> ClearAudio:
    appended.forget()
    return ClearAudio()


def _create_item(
    asked: converse_pb2.CreateItem, holds: ConversationSettings, _: AppendedSamples
) -> CreateItem:
    after = asked.after if asked.HasField("after") else None
    return CreateItem(read_item(asked.item, holds, "create_item.item"), after)


def _truncate_item(
    asked: converse_pb2.TruncateItem, _: ConversationSettings, __: AppendedSamples
) -> TruncateItem:
    if not 0 <= asked.heard_s < math.inf:
        raise InvalidArgument(
            "truncate_item.heard_s: must be a number of seconds, at least 0",
            field="truncate_item.heard_s",
        )
    return TruncateItem(asked.item_id, asked.heard_s)


def _create_response(
    asked: converse_pb2.CreateResponse, holds: ConversationSettings, _: AppendedSamples
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
        raise InvalidArgument(f"{field}: must have at most {MOST_METADATA} entries", field=field)
    for key, value in metadata.items():
        if len(key.encode()) > MOST_KEY_BYTES or len(value.encode()) > MOST_VALUE_BYTES:
            raise InvalidArgument(
                f"{field}: keys must have at most {MOST_KEY_BYTES} bytes and values at most "
                f"{MOST_VALUE_BYTES} bytes of UTF-8",
                field=field,
            )
    return metadata


class CommandField(NamedTuple):
    """The command for a field of `ConverseRequest` and the function that parses it.

    The function receives the message in the field, the current settings, and the audio received so
    far.
    """

    command: type[Command]
    read: Callable[[Any, ConversationSettings, AppendedSamples], Command]


COMMANDS: Mapping[str, CommandField] = {
    "change_settings": CommandField(
        ChangeSettings, lambda asked, holds, _: ChangeSettings(with_settings(holds, asked.settings))
    ),
    "append_audio": CommandField(AppendAudio, _append_audio),
    "commit_audio": CommandField(CommitAudio, _commit_audio),
    "clear_audio": CommandField(ClearAudio, _clear_audio),
    "create_item": CommandField(CreateItem, _create_item),
    "delete_item": CommandField(DeleteItem, lambda asked, *_: DeleteItem(asked.item_id)),
    "retrieve_item": CommandField(RetrieveItem, lambda asked, *_: RetrieveItem(asked.item_id)),
    "truncate_item": CommandField(TruncateItem, _truncate_item),
    "create_response": CommandField(CreateResponse, _create_response),
    "cancel_response": CommandField(
        CancelResponse, lambda asked, *_: CancelResponse(asked.response_id)
    ),
}
"""Maps the fields of `ConverseRequest` to commands. `open` is missing, because it is allowed only
in the first message.
"""


def read_delivered(
    items: Sequence[converse_pb2.DeliveredItem],
) -> dict[str, tuple[str, float]]:
    """Return the text and the seconds of audio that a client has received of each item that was in
    progress.
    """
    field = "open.resumed.delivered"
    if len(items) > MOST_DELIVERED:
        raise InvalidArgument(f"{field}: must have at most {MOST_DELIVERED} items", field=field)
    for each in items:
        if not 0 <= each.audio_s < math.inf:
            raise InvalidArgument(
                f"{field}.audio_s: must be a number of seconds, at least 0",
                field=f"{field}.audio_s",
            )
    return {each.item_id: (each.text, each.audio_s) for each in items}
