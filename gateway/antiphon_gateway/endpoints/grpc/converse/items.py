"""Parses the items that clients send over gRPC. This module performs no I/O."""

from __future__ import annotations

from antiphon.errors import InvalidArgument
from antiphon.v1 import converse_pb2, functions_pb2
from antiphon.values.answer import FunctionCall
from antiphon.values.conversation import FUNCTION_NAME, Role
from antiphon.values.live_conversation import CallResultPart, Item, ItemPart, SpokenPart
from antiphon_gateway.conversations.items import ROLES, HeardPart
from antiphon_gateway.conversations.settings import ConversationSettings
from antiphon_gateway.media.audio_out import SAMPLE_BYTES
from antiphon_gateway.media.live_audio import PCM16, LiveFormat, bare_samples
from antiphon_gateway.media.pcm_recording import PcmRecording
from antiphon_gateway.orders.tools import read_arguments

MOST_NAME_BYTES = 128
"""The maximum length of an item ID and of the reference that a client can attach to a command, in
bytes.
"""
MOST_CONTENTS = 256
"""The maximum number of parts in an item."""
USUAL_RATE_HZ = 24_000
LEAST_RATE_HZ, MOST_RATE_HZ = 8_000, 48_000


def read_item(
    item: converse_pb2.ConversationItem, settings: ConversationSettings, field: str
) -> Item:
    """Parse an item from a client, using the current settings. The item's ID may be empty.

    Raises `InvalidArgument` if the item is invalid.
    """
    role = ROLES.get(item.role)
    if role is None:
        raise InvalidArgument(
            f"{field}.role: must be {', '.join(ROLES)}, got {item.role!r}", field=f"{field}.role"
        )
    if not 1 <= len(item.contents) <= MOST_CONTENTS:
        raise InvalidArgument(
            f"{field}.contents: must have 1 to {MOST_CONTENTS} parts, got {len(item.contents)}",
            field=f"{field}.contents",
        )
    parts = tuple(
        _read_content(each, role, settings, f"{field}.contents[{index}]")
        for index, each in enumerate(item.contents)
    )
    if len(parts) > 1 and any(isinstance(each, FunctionCall | CallResultPart) for each in parts):
        raise InvalidArgument(
            f"{field}.contents: a function call or its output must be a separate item",
            field=f"{field}.contents",
        )
    return Item(role, parts, checked_name(item.id, f"{field}.id"))


def checked_name(name: str, field: str) -> str:
    """Return the name unchanged. Raises `InvalidArgument` if it is too long."""
    if len(name.encode()) > MOST_NAME_BYTES:
        raise InvalidArgument(
            f"{field}: must have at most {MOST_NAME_BYTES} bytes of UTF-8", field=field
        )
    return name


def read_samples(pcm16: bytes, rate_hz: int, field: str) -> PcmRecording:
    """Return the samples together with their rate. Raises `InvalidArgument` if they are invalid."""
    rate_hz = rate_hz or USUAL_RATE_HZ
    if not LEAST_RATE_HZ <= rate_hz <= MOST_RATE_HZ:
        raise InvalidArgument(
            f"{field}.rate_hz: must be from {LEAST_RATE_HZ} to {MOST_RATE_HZ}, is {rate_hz}",
            field=f"{field}.rate_hz",
        )
    if len(pcm16) % SAMPLE_BYTES:
        raise InvalidArgument(
            f"{field}.pcm16: has {len(pcm16)} bytes, which is not a multiple of two; each "
            "16-bit sample has two bytes",
            field=f"{field}.pcm16",
        )
    return PcmRecording(pcm16, rate_hz)


def read_whole(data: bytes, rate_hz: int, field: str) -> PcmRecording:
    """Return the samples of a complete recording. It can be raw audio or a WAV file with the given
    sample rate.

    Raises `InvalidArgument` if the recording is invalid or if it is a file in another container
    format.
    """
    sent = LiveFormat(PCM16.name, rate_hz or USUAL_RATE_HZ)
    return read_samples(bare_samples(data, sent, f"{field}.pcm16"), rate_hz, field)


def _read_content(
    content: converse_pb2.ItemContent, role: Role, settings: ConversationSettings, field: str
) -> ItemPart:
    kind = content.WhichOneof("content")
    match kind, role:
        case "text", ("system" | "user" | "assistant"):
            return content.text
        case "recorded", "user":
            settings.check_hears(f"{field}.recorded")
            recorded = content.recorded
            recording = read_whole(recorded.pcm16, recorded.rate_hz, f"{field}.recorded")
            return HeardPart.of(recording)
        case "spoken", "assistant":
            return SpokenPart(content.spoken.transcript)
        case "call", "assistant":
            return _read_call(content.call, f"{field}.call")
        case "result", "tool":
            result = content.result
            return CallResultPart(
                _call_id(result.call_id, f"{field}.result.call_id"), result.output
            )
        case None, _:
            raise InvalidArgument(f"{field}: is empty", field=field)
    raise InvalidArgument(
        f"{field}: {kind} is not allowed in an item with the role {role}", field=field
    )


def _read_call(call: functions_pb2.FunctionCall, field: str) -> FunctionCall:
    if FUNCTION_NAME.fullmatch(call.name) is None:
        raise InvalidArgument(
            f"{field}.name: must be 1 to 64 letters, digits, _ or -", field=f"{field}.name"
        )
    arguments = read_arguments(call.arguments, f"{field}.arguments")
    return FunctionCall(_call_id(call.id, f"{field}.id"), call.name, arguments)


def _call_id(call_id: str, field: str) -> str:
    if not call_id:
        raise InvalidArgument(f"{field}: is empty", field=field)
    return checked_name(call_id, field)
