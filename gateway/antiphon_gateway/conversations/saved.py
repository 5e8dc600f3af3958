"""Serializes a conversation so that another gateway can restore it. The size of the result is
limited. This module performs no I/O.

The result always includes all of the text. Recordings can be large, so only the latest ones that
fit are included. Earlier recordings are replaced by their transcripts. If they have none, they are
lost.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import fields, replace
from typing import Any, get_type_hints

import msgspec

from antiphon.errors import FailedPrecondition, InvalidArgument, Unavailable
from antiphon.values.answer import FunctionCall
from antiphon.values.live_conversation import (
    CallResultPart,
    Item,
    ItemPart,
    RecordedPart,
    ResponseDone,
    SpokenPart,
    TimedTurns,
    VoiceTurns,
)
from antiphon_gateway.conversations.events import ConversationEvent, ItemDone, Response
from antiphon_gateway.conversations.items import HeardPart, item_bytes
from antiphon_gateway.conversations.settings import ConversationSettings, SemanticTurns
from antiphon_gateway.media.live_audio import LIVE_FORMATS
from antiphon_gateway.media.pcm_recording import PcmRecording

_TEXT = "text"
_PARTS: Mapping[str, type[Any]] = {
    "recorded": RecordedPart,
    "spoken": SpokenPart,
    "call": FunctionCall,
    "result": CallResultPart,
}
_TURNS: Mapping[str, type[Any]] = {
    "voice": VoiceTurns,
    "semantic": SemanticTurns,
    "timed": TimedTurns,
}
_SERVED = {
    "model",
    "voices",
    "voice_aliases",
    "output_rate_hz",
    "hears",
    "takes_tools",
    "reads_aloud",
    "voice_instructions",
}
"""Settings that depend on the served model."""
_KEPT = {n: hint for n, hint in get_type_hints(ConversationSettings).items() if n not in _SERVED}
"""Settings that the client has set and their types."""
_WRITTEN = {"turns", "input_format", "output_format", "options"}
"""Settings that are saved in a different form."""
_NARROWED = ("voice", "spoken", "instructions")
"""Settings for which the served model may accept only certain values."""


class PendingResponse(msgspec.Struct, frozen=True, array_like=True):
    """A response in progress.

    `open_items` contains the items that have started but not ended, with their positions in the
    response.
    """

    id: str
    in_conversation: bool
    metadata: dict[str, str] | None
    spoken: bool
    open_items: dict[str, int] = {}


class _Item(msgspec.Struct, frozen=True, array_like=True):
    id: str
    role: str
    complete: bool
    parts: tuple[list[Any], ...]


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    model: str
    settings: dict[str, Any]
    items: tuple[_Item, ...]
    pending: tuple[PendingResponse, ...]


class SavedConversation(msgspec.Struct, frozen=True):
    """The state from which another gateway continues a conversation."""

    settings: ConversationSettings
    items: tuple[Item, ...]
    pending: tuple[PendingResponse, ...]


def save(
    settings: ConversationSettings,
    items: Iterable[Item],
    pending: Iterable[PendingResponse],
    most_bytes: int,
) -> bytes | None:
    """Serialize a conversation, using at most `most_bytes` bytes.

    Returns None if the text and the options alone are larger than that or can't be encoded as
    UTF-8.
    """
    kept = tuple(items)
    texts = sum(item_bytes(each) - _recorded_bytes(each) for each in kept)
    if texts + settings.options_bytes > most_bytes:
        return None
    saved = _Saved(settings.model, _settings(settings), (), tuple(pending))
    try:
        bare = msgspec.structs.replace(saved, items=_items(kept, frozenset()))
        room = most_bytes - len(msgspec.msgpack.encode(bare))
        if room < 0:
            return None
        heard = _latest_recordings(kept, room)
        whole = msgspec.structs.replace(saved, items=_items(kept, heard))
        return msgspec.msgpack.encode(whole)
    except UnicodeEncodeError:
        return None


def restore(data: bytes, first: ConversationSettings) -> SavedConversation:
    """Restore a conversation. `first` contains the settings of a new conversation.

    Raises `InvalidArgument` if the data was saved by a different version, and `FailedPrecondition`
    if the conversation uses a different model.
    """
    try:
        saved = msgspec.msgpack.decode(data, type=_Saved)
    except msgspec.DecodeError as error:
        raise _another_version() from error
    if saved.model != first.model:
        raise FailedPrecondition(
            f"token: the conversation used the model {saved.model!r}, but the gateway serves "
            f"{first.model!r}",
            field="token",
        )
    try:
        settings = _restored_settings(saved.settings, first)
        items = tuple(
            Item(each.role, tuple(map(_restored_part, each.parts)), each.id, each.complete)
            for each in saved.items
        )
    except (msgspec.ValidationError, LookupError, ValueError) as error:
        raise _another_version() from error
    return SavedConversation(settings, items, saved.pending)


def with_delivered(
    saved: SavedConversation, delivered: Mapping[str, tuple[str, float]]
) -> SavedConversation:
    """Return the conversation with its incomplete items shortened to the text and audio that the
    client has received.

    Incomplete function calls are removed.
    """
    made = {item_id: each for each in saved.pending for item_id in each.open_items}
    items = []
    for item in saved.items:
        if (response := made.get(item.id)) is None:
            items.append(item)
        elif not any(isinstance(each, FunctionCall) for each in item.parts):
            text, seconds = delivered.get(item.id, ("", 0.0))
            said = SpokenPart(text, seconds) if response.spoken else text
            items.append(replace(item, parts=(said,), complete=False))
    return SavedConversation(saved.settings, tuple(items), saved.pending)


def lost_responses(saved: SavedConversation) -> list[ConversationEvent]:
    """Return the events that end the responses that were in progress. Their status is "failed"."""
    ends: list[ConversationEvent] = []
    items = {each.id: each for each in saved.items}
    lost = Unavailable("the gateway that generated the answer was lost; create another response")
    for each in saved.pending:
        made = [(items[item_id], at) for item_id, at in each.open_items.items() if item_id in items]
        response = Response(
            each.id,
            "failed",
            not each.in_conversation,
            each.metadata,
            items=tuple(item for item, _ in made),
            error=lost,
            settings=saved.settings,
        )
        ends += [ItemDone(response.id, item, at, response=response) for item, at in made]
        ends.append(ResponseDone(response))
    return ends


def _another_version() -> InvalidArgument:
    return InvalidArgument(
        "token: was issued by another version of the gateway; open a new conversation",
        field="token",
    )


def _packed(value: object, kinds: Mapping[str, type[Any]]) -> list[Any]:
    """Convert a dataclass to a list of its type name and field values."""
    kind = next(name for name, each in kinds.items() if type(value) is each)
    return [kind, *(getattr(value, each.name) for each in fields(kinds[kind]))]


def _unpacked(packed: list[Any], kinds: Mapping[str, type[Any]]) -> Any:
    kind, *values = packed
    names = (each.name for each in fields(kinds[kind]))
    return msgspec.convert(dict(zip(names, values, strict=True)), kinds[kind])


def _settings(holds: ConversationSettings) -> dict[str, Any]:
    """Return the settings that the client has set, by field name."""
    return {name: getattr(holds, name) for name in _KEPT} | {
        "turns": None if holds.turns is None else _packed(holds.turns, _TURNS),
        "input_format": holds.input_format.name,
        "output_format": holds.output_format.name,
    }


def _restored_settings(
    held: Mapping[str, Any], first: ConversationSettings
) -> ConversationSettings:
    """Restore the settings.

    If they were saved by an incompatible version, `LookupError`, `ValueError` or
    `msgspec.ValidationError` is raised.
    """
    if held.keys() != _KEPT.keys():
        raise ValueError("other settings")
    turns = held["turns"]
    plain = {name: msgspec.convert(held[name], _KEPT[name]) for name in _KEPT.keys() - _WRITTEN}
    voice, spoken, instructions = (plain.pop(name) for name in _NARROWED)
    settings = replace(
        first,
        input_format=LIVE_FORMATS[held["input_format"]],
        output_format=LIVE_FORMATS[held["output_format"]],
        options=_restored_options(held["options"]),
        **plain,
    )
    settings = settings.with_voice(voice).with_spoken(spoken).with_instructions(instructions)
    settings = settings.with_turns(None if turns is None else _unpacked(turns, _TURNS))
    return settings if first.hears else replace(settings, transcripts=None)


def _restored_options(saved: object) -> dict[str, str | float | bytes]:
    options = msgspec.convert(saved, dict[str, Any])
    if not all(isinstance(each, str | float | bytes) for each in options.values()):
        raise ValueError("other options")
    return options


def _items(items: Iterable[Item], heard: frozenset[int]) -> tuple[_Item, ...]:
    return tuple(
        _Item(i.id, i.role, i.complete, tuple(_saved_part(each, heard) for each in i.parts))
        for i in items
    )


def _recorded_bytes(item: Item) -> int:
    return sum(len(e.recording.pcm16) for e in item.parts if isinstance(e, HeardPart))


def _latest_recordings(items: Iterable[Item], room: int) -> frozenset[int]:
    """Return the indices of the latest recordings that fit into `room` bytes."""
    heard = set()
    parts = [each for item in items for each in item.parts]
    for part in reversed(parts):
        if isinstance(part, HeardPart):
            # Serialization adds a few bytes for the length and the type.
            room -= len(part.recording.pcm16) + 64
            if room < 0:
                break
            heard.add(part.recording.number)
    return frozenset(heard)


def _saved_part(part: ItemPart, heard: frozenset[int]) -> list[Any]:
    if isinstance(part, HeardPart):
        kept = part.recording.number in heard
        if part.transcript and not kept:
            part = part.transcript
        else:
            pcm16 = bytes(part.recording.pcm16) if kept else b""
            part = RecordedPart(pcm16, part.rate_hz, part.audio_s, part.transcript)
    return [_TEXT, part] if isinstance(part, str) else _packed(part, _PARTS)


def _restored_part(saved: list[Any]) -> ItemPart:
    if saved[0] == _TEXT:
        return msgspec.convert(saved[1], str)
    part: ItemPart = _unpacked(saved, _PARTS)
    if isinstance(part, RecordedPart):
        return HeardPart.of(PcmRecording(part.pcm16, part.rate_hz), part.transcript)
    return part
