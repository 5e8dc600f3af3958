"""Converts items to and from the realtime API's format."""

from __future__ import annotations

from typing import Any

from antiphon.errors import Internal, InvalidArgument, NotImplementedYet
from antiphon.values.answer import FunctionCall
from antiphon.values.conversation import FUNCTION_NAME, Role
from antiphon.values.live_conversation import (
    CallResultPart,
    Item,
    ItemPart,
    RecordedPart,
    SpokenPart,
)
from antiphon_gateway.conversations.items import HeardPart
from antiphon_gateway.conversations.settings import ConversationSettings
from antiphon_gateway.endpoints.realtime.client_events import ContentPart, ItemGiven
from antiphon_gateway.media.audio_out import to_base64
from antiphon_gateway.media.data_url import decoded_base64
from antiphon_gateway.media.live_audio import LiveFormat, bare_samples, recoded
from antiphon_gateway.media.pcm_recording import PcmRecording
from antiphon_gateway.orders.tools import read_arguments

MOST_ID_CHARS = 128
MOST_CONTENTS = 256
"""The maximum number of parts in an item."""

_ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}


def read_item(given: ItemGiven, settings: ConversationSettings) -> Item:
    """Parse an item from a client, using the current settings. If the client hasn't sent an ID, the
    item's ID is empty.

    Raises `InvalidArgument` or `NotImplementedYet` with the field.
    """
    if given.type in ("function_call", "function_call_output"):
        return _read_call(given)
    if given.type != "message":
        raise NotImplementedYet(
            f"item.type: {given.type!r} is not supported; use 'message', 'function_call' or "
            "'function_call_output'",
            field="item.type",
        )
    if given.role not in _ROLES:
        raise InvalidArgument(
            f"item.role: unknown role {given.role!r}; use one of: {', '.join(_ROLES)}",
            field="item.role",
        )
    _check_id(given)
    if len(given.content) > MOST_CONTENTS:
        raise InvalidArgument(
            f"item.content: has {len(given.content)} parts; the maximum is {MOST_CONTENTS}",
            field="item.content",
        )
    role = _ROLES[given.role]
    contents = tuple(
        _content(part, role, settings, f"item.content[{index}]")
        for index, part in enumerate(given.content)
    )
    if not contents:
        raise InvalidArgument("item.content: is empty", field="item.content")
    return Item(role, contents, given.id or "")


def _check_id(given: ItemGiven) -> None:
    if given.id is not None and not 1 <= len(given.id) <= MOST_ID_CHARS:
        raise InvalidArgument(
            f"item.id: must have 1 to {MOST_ID_CHARS} characters", field="item.id"
        )


def _read_call(given: ItemGiven) -> Item:
    """Parse a function call from an earlier answer, or the result of a call."""
    _check_id(given)
    if given.call_id is None or not 1 <= len(given.call_id) <= MOST_ID_CHARS:
        raise InvalidArgument(
            f"item.call_id: must have 1 to {MOST_ID_CHARS} characters", field="item.call_id"
        )
    if given.type == "function_call_output":
        output = CallResultPart(given.call_id, given.output or "")
        return Item("tool", (output,), given.id or "")
    if FUNCTION_NAME.fullmatch(given.name or "") is None:
        raise InvalidArgument(
            "item.name: must be 1 to 64 letters, digits, _ or -", field="item.name"
        )
    arguments = read_arguments(given.arguments or "", "item.arguments")
    call = FunctionCall(given.call_id, given.name or "", arguments)
    return Item("assistant", (call,), given.id or "")


def _content(part: ContentPart, role: Role, settings: ConversationSettings, field: str) -> ItemPart:
    match role, part.type:
        case (("user" | "system"), ("input_text" | "text")):
            return part.text or ""
        case "user", ("input_audio" | "audio"):
            settings.check_hears(f"{field}.audio")
            sent = settings.input_format
            pcm16 = pcm16_from_base64(part.audio or "", sent, f"{field}.audio")
            return HeardPart.of(PcmRecording(pcm16, sent.rate_hz))
        case "assistant", ("output_text" | "text" | "input_text"):
            return part.text or ""
        case "assistant", ("output_audio" | "audio"):
            return SpokenPart(part.transcript or "")
    raise NotImplementedYet(
        f"{field}.type: {part.type!r} is not supported in an item with the role {role}",
        field=f"{field}.type",
    )


def pcm16_from_base64(audio: str, sent: LiveFormat, field: str) -> bytes:
    """Convert audio in the format `sent` to 16-bit samples. If there is an incomplete sample at the
    end, it is dropped, as for appended audio.

    Raises `InvalidArgument` if the audio isn't base64 or if it is a file in a container format.
    """
    data = bare_samples(decoded_base64(audio, field), sent, field)
    return sent.pcm16(data[: len(data) - len(data) % sent.sample_bytes])


def item_json(item: Item, *, status: str = "", audio: LiveFormat | None = None) -> dict[str, Any]:
    """Return an item in the form used in events. If `audio` is set, recordings are included in this
    format.
    """
    head = {
        "id": item.id,
        "object": "realtime.item",
        "status": status or ("completed" if item.complete else "incomplete"),
    }
    match item.parts:
        case (FunctionCall() as call,):
            named = {"call_id": call.id, "name": call.name, "arguments": call.arguments}
            return head | {"type": "function_call"} | named
        case (CallResultPart(call_id, output),):
            return head | {"type": "function_call_output", "call_id": call_id, "output": output}
    return head | {
        "type": "message",
        "role": item.role,
        "content": [_content_json(each, item.role, audio=audio) for each in item.parts],
    }


def part_json(item: Item) -> dict[str, Any]:
    """Return a part of a response's item in the form used in `content_part` events."""
    (content,) = item.parts
    if isinstance(content, SpokenPart):
        return {"type": "audio", "transcript": content.transcript}
    return _content_json(content, "user", audio=None) | {"type": "text"}


def _content_json(content: ItemPart, role: str, *, audio: LiveFormat | None) -> dict[str, Any]:
    match content:
        case str(text):
            return {"type": "output_text" if role == "assistant" else "input_text", "text": text}
        case SpokenPart(transcript):
            return {"type": "output_audio", "transcript": transcript}
        case FunctionCall() | CallResultPart():
            raise Internal("a function call must be a separate item")
        case RecordedPart(transcript=transcript):
            told: dict[str, Any] = {"type": "input_audio", "transcript": transcript}
            if audio is None or not isinstance(content, HeardPart):
                return told
            return told | {"audio": to_base64(recoded(content.recording, audio))}
