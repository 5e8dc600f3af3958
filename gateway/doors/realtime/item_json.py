"""Items as the realtime API writes them."""

from __future__ import annotations

import binascii
from typing import Any

import pybase64

from antiphon.errors import InvalidArgument, NotImplementedYet
from gateway.conversations.items import (
    Content,
    ConversationItem,
    RecordedContent,
    Role,
    SpokenContent,
    WrittenContent,
)
from gateway.doors.realtime.client_events import ContentPart, ItemGiven
from gateway.media.audio_out import to_base64
from gateway.media.live_audio import LiveFormat, recoded

MOST_ID_CHARS = 128
MOST_CONTENTS = 256
"""Parts of one item."""

_ROLES: dict[str, Role] = {"system": "system", "user": "user", "assistant": "assistant"}


def read_item(given: ItemGiven, sent: LiveFormat) -> ConversationItem:
    """An item that a client writes, its audio in the format in which it is `sent`; its id is empty
    if it brings none.

    Raises `InvalidArgument` and `NotImplementedYet` with the field.
    """
    if given.type != "message":
        raise NotImplementedYet(
            f"item.type: {given.type!r} is not supported yet; give a 'message'", field="item.type"
        )
    if given.role not in _ROLES:
        raise InvalidArgument(
            f"item.role: {given.role!r} is none; there are {', '.join(_ROLES)}", field="item.role"
        )
    if given.id is not None and not 1 <= len(given.id) <= MOST_ID_CHARS:
        raise InvalidArgument(
            f"item.id: must have 1 to {MOST_ID_CHARS} characters", field="item.id"
        )
    if len(given.content) > MOST_CONTENTS:
        raise InvalidArgument(
            f"item.content: has {len(given.content)} parts; the most is {MOST_CONTENTS}",
            field="item.content",
        )
    role = _ROLES[given.role]
    contents = tuple(
        _content(part, role, sent, f"item.content[{index}]")
        for index, part in enumerate(given.content)
    )
    if not contents:
        raise InvalidArgument("item.content: is empty", field="item.content")
    return ConversationItem(given.id or "", role, contents)


def _content(part: ContentPart, role: Role, sent: LiveFormat, field: str) -> Content:
    match role, part.type:
        case (("user" | "system"), "input_text"):
            return WrittenContent(part.text or "")
        case "user", "input_audio":
            pcm16 = pcm16_from_base64(part.audio or "", sent, f"{field}.audio")
            return RecordedContent(pcm16, sent.rate_hz)
        case "assistant", ("output_text" | "text"):
            return WrittenContent(part.text or "")
        case "assistant", ("output_audio" | "audio"):
            return SpokenContent(part.transcript or "")
    raise NotImplementedYet(
        f"{field}.type: {part.type!r} is not supported in an item of {role}", field=f"{field}.type"
    )


def pcm16_from_base64(audio: str, sent: LiveFormat, field: str) -> bytes:
    """16-bit samples of audio in that format.

    Raises `InvalidArgument` for what is no base64, or no whole samples.
    """
    try:
        data = pybase64.b64decode(audio, validate=True)
    except (binascii.Error, ValueError) as error:
        raise InvalidArgument(f"{field}: is not base64: {error}", field=field) from None
    if len(data) % sent.sample_bytes:
        raise InvalidArgument(
            f"{field}: has {len(data)} bytes, and 16-bit samples have two each", field=field
        )
    return sent.pcm16(data)


def item_json(
    item: ConversationItem, *, status: str = "", audio: LiveFormat | None = None
) -> dict[str, Any]:
    """An item as events tell it; its recordings only if their format is given, in `audio`."""
    return {
        "id": item.id,
        "object": "realtime.item",
        "type": "message",
        "status": status or ("completed" if item.complete else "incomplete"),
        "role": item.role,
        "content": [_content_json(each, item.role, audio=audio) for each in item.contents],
    }


def part_json(item: ConversationItem) -> dict[str, Any]:
    """The one part of an item that a response makes, as `content_part` events tell it."""
    (content,) = item.contents
    if isinstance(content, SpokenContent):
        return {"type": "audio", "transcript": content.transcript}
    return _content_json(content, "user", audio=None) | {"type": "text"}


def _content_json(content: Content, role: Role, *, audio: LiveFormat | None) -> dict[str, Any]:
    match content:
        case WrittenContent(text):
            return {"type": "output_text" if role == "assistant" else "input_text", "text": text}
        case SpokenContent(transcript):
            return {"type": "output_audio", "transcript": transcript}
        case RecordedContent(pcm16, rate_hz, transcript):
            told: dict[str, Any] = {"type": "input_audio", "transcript": transcript}
            if audio is None:
                return told
            return told | {"audio": to_base64(recoded(pcm16, rate_hz, audio))}
