"""Converts conversations to and from the messages in `converse.proto`. It is used by both the
client and the gateway.

The fields of a value have the same names as those of its message, so a new type of event only needs
a row in `EVENTS`. Unknown events are converted to None. If a message lacks a field, the value's
default is used.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, MutableMapping, MutableSequence
from dataclasses import MISSING, fields
from typing import Any, NamedTuple

from google.protobuf.descriptor import Descriptor, EnumDescriptor, FieldDescriptor

from antiphon.errors import DataLoss
from antiphon.v1 import converse_pb2, options_pb2
from antiphon.values import live_conversation as talk
from antiphon.values.answer import FunctionCall, Usage
from antiphon.wire.convert import (
    error_from_proto,
    error_to_proto,
    sampling_from_proto,
    sampling_to_proto,
)

EVENTS: Mapping[str, type[Any]] = {
    "begun": talk.ConversationOpened,
    "settings_changed": talk.SettingsUpdated,
    "refused": talk.CommandFailed,
    "audio_committed": talk.AudioAccepted,
    "audio_cleared": talk.AudioDropped,
    "speech_started": talk.SpeechBegan,
    "speech_stopped": talk.SpeechEnded,
    "silence_timed_out": talk.SilencePassed,
    "server_stopping": talk.ServerStopping,
    "saved": talk.ConversationSaved,
    "item_added": talk.ItemCreated,
    "item_retrieved": talk.ItemFetched,
    "item_deleted": talk.ItemRemoved,
    "item_truncated": talk.ItemCut,
    "transcript_text": talk.TranscriptDelta,
    "transcript_ended": talk.TranscriptDone,
    "transcript_failed": talk.TranscriptLost,
    "response_created": talk.ResponseStarted,
    "response_item_begun": talk.ResponseItemStarted,
    "response_text": talk.ResponseTextDelta,
    "response_audio": talk.ResponseAudioDelta,
    "response_call_text": talk.ResponseFunctionCallDelta,
    "response_call": talk.ResponseFunctionCall,
    "response_item_ended": talk.ResponseItemDone,
    "response_ended": talk.ResponseDone,
}
"""Maps the fields of `ConverseResponse` to event classes."""
PARTS: Mapping[str, type[Any]] = {
    "text": str,
    "recorded": talk.RecordedPart,
    "spoken": talk.SpokenPart,
    "call": FunctionCall,
    "result": talk.CallResultPart,
}
"""Maps the fields of `ItemContent` to the parts of an item."""
_KINDS: Mapping[str, type[Any]] = {
    "ConversationItem": talk.Item,
    "ConversationResponse": talk.ConversationReply,
    "FunctionCall": FunctionCall,
    "Usage": Usage,
}
"""Maps the names of messages to nested values."""
_RENAMED = {"parts": "contents"}


def event_to_proto(event: object) -> converse_pb2.ConverseResponse:
    """Convert an event to a message. The event may also be an instance of a subclass of one of the
    classes in `EVENTS`.
    """
    message = converse_pb2.ConverseResponse()
    kind: Any = type(event)
    field = _event_field(kind)
    _write(event, EVENTS[field], getattr(message, field))
    return message


def event_from_proto(
    message: converse_pb2.ConverseResponse,
) -> talk.TalkEvent | talk.ConversationSaved | None:
    """Convert a message to an event. Returns None if this version doesn't know the event.

    Raises `DataLoss` if the message is malformed.
    """
    field = message.WhichOneof("event")
    if field is None:
        return None
    event: talk.TalkEvent | talk.ConversationSaved = _read(getattr(message, field), EVENTS[field])
    return event


def settings_to_proto(held: talk.HeldSettings) -> converse_pb2.ConversationSettings:
    """Convert complete settings to a message."""
    message = converse_pb2.ConversationSettings(
        instructions=held.instructions,
        spoken=held.spoken,
        voice=held.voice,
        sampling={stage: sampling_to_proto(each) for stage, each in held.sampling.items()},
    )
    match held.turns:
        case talk.VoiceTurns():
            _write(held.turns, talk.VoiceTurns, message.voice_turns)
        case talk.TimedTurns():
            _write(held.turns, talk.TimedTurns, message.timed_turns)
        case None:
            message.manual_turns.SetInParent()
    if held.transcripts is None:
        message.no_transcripts.SetInParent()
    else:
        _write(held.transcripts, talk.TranscriptOptions, message.transcripts)
    for name, value in held.options.items():
        match value:
            case str():
                message.options[name].text = value
            case bytes():
                message.options[name].audio.SetInParent()
            case number:
                message.options[name].number = number
    return message


def settings_from_proto(message: converse_pb2.ConversationSettings) -> talk.HeldSettings:
    """Convert a complete message to settings."""
    turns: talk.VoiceTurns | talk.TimedTurns | None = None
    if message.HasField("voice_turns"):
        turns = _read(message.voice_turns, talk.VoiceTurns)
    elif message.HasField("timed_turns"):
        turns = _read(message.timed_turns, talk.TimedTurns)
    return talk.HeldSettings(
        instructions=message.instructions,
        spoken=message.spoken,
        voice=message.voice,
        sampling={stage: sampling_from_proto(each) for stage, each in message.sampling.items()},
        turns=turns,
        transcripts=_read(message.transcripts, talk.TranscriptOptions)
        if message.HasField("transcripts")
        else None,
        options={name: option_from_proto(each) for name, each in message.options.items()},
    )


def option_from_proto(option: options_pb2.OptionInput) -> str | float | bytes:
    """Return a text, a number or an audio file. If the kind of value was introduced in a later
    version, the result is an empty text.
    """
    match option.WhichOneof("value"):
        case "number":
            return option.number
        case "audio":
            return option.audio.wav
        case _:
            return option.text


@functools.cache
def _event_field(kind: Any) -> str:
    return next(field for field, each in EVENTS.items() if issubclass(kind, each))


def _row(table: Mapping[str, type[Any]], value: object) -> str:
    """Return the name of the oneof field for the value."""
    return next(field for field, kind in table.items() if isinstance(value, kind))


class _Shared(NamedTuple):
    """A field that a value and its message have in common."""

    value_name: str
    name: str
    described: FieldDescriptor
    optional: bool


@functools.cache
def _shared(kind: Any, descriptor: Descriptor) -> tuple[_Shared, ...]:
    """Return the fields that a value and its message have in common."""
    shared = []
    for field in fields(kind):
        name = _RENAMED.get(field.name, field.name)
        if (described := descriptor.fields_by_name.get(name)) is not None:
            optional = field.default is not MISSING or field.default_factory is not MISSING
            shared.append(_Shared(field.name, name, described, optional))
    return tuple(shared)


def _write(value: object, kind: Any, message: Any) -> None:
    """Copy the fields of a value of this class to a message."""
    message.SetInParent()
    for value_name, name, described, _ in _shared(kind, message.DESCRIPTOR):
        match getattr(value, value_name):
            case None:
                pass
            case tuple(several):
                target = getattr(message, name)
                for each in several:
                    if described.message_type is None:
                        target.append(each)
                    else:
                        _write_message(each, target.add())
            case Mapping() as named:
                getattr(message, name).update(named)
            case str(word) if described.enum_type is not None:
                numbers = described.enum_type.values_by_name
                full = f"{_prefix(described.enum_type)}{word.upper() or _UNSPECIFIED}"
                setattr(message, name, numbers[full].number)
            case other if described.message_type is not None:
                _write_message(other, getattr(message, name))
            case plain:
                setattr(message, name, plain)


def _write_message(value: Any, message: Any) -> None:
    match message.DESCRIPTOR.name:
        case "SessionError":
            message.CopyFrom(error_to_proto(value))
        case "ConversationSettings":
            message.CopyFrom(settings_to_proto(value))
        case "ItemContent" if isinstance(value, str):
            message.text = value
        case "ItemContent":
            field = _row(PARTS, value)
            _write(value, PARTS[field], getattr(message, field))
        case name:
            _write(value, _KINDS[name], message)


def _read(message: Any, kind: Any) -> Any:
    """Convert a message to a value of this class."""
    values: dict[str, Any] = {}
    for value_name, name, described, optional in _shared(kind, message.DESCRIPTOR):
        if optional and described.has_presence and not message.HasField(name):
            continue
        match getattr(message, name):
            case MutableMapping() as named:
                values[value_name] = dict(named)
            case MutableSequence() as several:
                values[value_name] = tuple(_read_one(each, described) for each in several)
            case number if described.enum_type is not None:
                word = _word(described.enum_type, number)
                if not (word or optional):
                    raise DataLoss(f"the response contains an unknown {name} ({number})")
                values[value_name] = word
            case one:
                values[value_name] = _read_one(one, described)
    return kind(**values)


def _read_one(value: Any, described: FieldDescriptor) -> Any:
    if described.message_type is None:
        return value
    match described.message_type.name:
        case "SessionError":
            return error_from_proto(value)
        case "ConversationSettings":
            return settings_from_proto(value)
        case "ItemContent":
            # If the kind of part was introduced in a later version, it is read as empty text.
            field = value.WhichOneof("content") or "text"
            return value.text if field == "text" else _read(getattr(value, field), PARTS[field])
        case name:
            return _read(value, _KINDS[name])


_UNSPECIFIED = "UNSPECIFIED"


def _prefix(enum: EnumDescriptor) -> str:
    return enum.values[0].name.removesuffix(_UNSPECIFIED)


def _word(enum: EnumDescriptor, number: int) -> str:
    """Return the name of an enum constant in lower case, without its prefix. If the constant is
    unknown, returns an empty string.
    """
    known = enum.values_by_number.get(number) if number else None
    return known.name.removeprefix(_prefix(enum)).lower() if known is not None else ""
