"""The client events of the realtime API that this gateway reads. Fields that have no effect are
listed in `no_effect.py`.
"""

from __future__ import annotations

from typing import Annotated, Any

import msgspec
from msgspec import UNSET, UnsetType

from antiphon.errors import InvalidArgument
from antiphon_gateway.endpoints.http.fields import IgnoredFields, decode_fields
from antiphon_gateway.endpoints.http.language import Language
from antiphon_gateway.endpoints.http.stage_sampling import StageSampling
from antiphon_gateway.endpoints.http.voice import VoiceId
from antiphon_gateway.endpoints.realtime.no_effect import NO_EFFECT

MOST_METADATA = 16


class SampleFormat(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A format for input or output audio."""

    type: str = "audio/pcm"
    rate: int | None = None


class TurnSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How turns are detected."""

    type: str
    threshold: float | None = None
    prefix_padding_ms: float | None = None
    silence_duration_ms: float | None = None
    idle_timeout_ms: float | None = None
    create_response: bool | None = None
    interrupt_response: bool | None = None
    eagerness: str | None = None


class TranscriptionSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How the user's speech is transcribed. The served model is always used, regardless of
    `model`.
    """

    model: str | None = None
    language: Language | None = None
    prompt: Annotated[str, msgspec.Meta(max_length=4096)] | None = None


class InputSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for input audio."""

    format: SampleFormat | None = None
    turn_detection: TurnSettings | UnsetType | None = UNSET
    transcription: TranscriptionSettings | UnsetType | None = UNSET


class OutputSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for output audio."""

    format: SampleFormat | None = None
    voice: str | VoiceId | None = None


class AudioSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings for input and output audio."""

    input: InputSettings | None = None
    output: OutputSettings | None = None


class ToolNamed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The function that must be called."""

    type: str
    name: str = ""


class OwnResponseSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Settings that only exist in antiphon.

    They are the model's options, which can be removed by setting them to null, and the sampling
    settings by stage. The key "" represents the stage that reads the messages.
    """

    options: dict[str, msgspec.Raw] = {}
    sampling: dict[str, StageSampling] = {}


class OwnSettings(OwnResponseSettings, frozen=True, forbid_unknown_fields=True):
    """Session settings that only exist in antiphon.

    They determine whether to send `antiphon.response.timeline` and `antiphon.stopping`. Strict
    clients of OpenAI's API would reject these events, so they have to be requested. They also
    configure timed answers, which are disabled by null.
    """

    timeline: bool | None = None
    stopping: bool | None = None
    answer_every_s: float | UnsetType | None = UNSET


class BetaFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields of the beta API. `antiphon_gateway.endpoints.realtime.beta_fields` converts
    them.
    """

    modalities: tuple[str, ...] | None = None
    voice: str | VoiceId | None = None
    input_audio_format: str | None = None
    output_audio_format: str | None = None
    max_response_output_tokens: int | str | None = None


class SessionSettings(BetaFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The field `session` in `session.update`. Missing settings remain unchanged."""

    type: str = "realtime"
    turn_detection: TurnSettings | UnsetType | None = UNSET
    input_audio_transcription: TranscriptionSettings | UnsetType | None = UNSET
    instructions: str | UnsetType | None = UNSET
    output_modalities: tuple[str, ...] | None = None
    max_output_tokens: int | str | None = None
    audio: AudioSettings | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    tool_choice: str | ToolNamed | None = None
    parallel_tool_calls: bool | None = None
    antiphon: OwnSettings | None = None


class ContentPart(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of an item."""

    type: str
    text: str | None = None
    audio: str | None = None
    transcript: str | None = None


class ItemGiven(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An item that the client sends, or a reference to an existing item."""

    type: str
    id: str | None = None
    role: str | None = None
    content: tuple[ContentPart, ...] = ()
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | None = None


class ResponseSettings(BetaFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The field `response` in `response.create`. Missing settings default to those of the
    session.
    """

    conversation: str | None = None
    input: tuple[ItemGiven, ...] | None = None
    instructions: str | None = None
    output_modalities: tuple[str, ...] | None = None
    max_output_tokens: int | str | None = None
    audio: AudioSettings | None = None
    tools: tuple[dict[str, Any], ...] | None = None
    tool_choice: str | ToolNamed | None = None
    parallel_tool_calls: bool | None = None
    metadata: dict[str, str] | None = None
    antiphon: OwnResponseSettings | None = None


class _ClientEvent(msgspec.Struct, frozen=True, forbid_unknown_fields=True, tag_field="type"):
    event_id: str | None = None


class SessionUpdate(_ClientEvent, frozen=True, forbid_unknown_fields=True, tag="session.update"):
    """Changes settings."""

    session: SessionSettings = SessionSettings()


class AudioAppend(
    _ClientEvent,
    frozen=True,
    forbid_unknown_fields=True,
    tag="input_audio_buffer.append",
    kw_only=True,
):
    """Appends a piece of audio in base64."""

    audio: str


class AudioCommit(
    _ClientEvent, frozen=True, forbid_unknown_fields=True, tag="input_audio_buffer.commit"
):
    """Turns the buffered audio into an item."""


class AudioClear(
    _ClientEvent, frozen=True, forbid_unknown_fields=True, tag="input_audio_buffer.clear"
):
    """Discards the buffered audio."""


class ItemCreate(
    _ClientEvent,
    frozen=True,
    forbid_unknown_fields=True,
    tag="conversation.item.create",
    kw_only=True,
):
    """Creates an item."""

    item: ItemGiven
    previous_item_id: str | None = None


class ItemRetrieve(
    _ClientEvent,
    frozen=True,
    forbid_unknown_fields=True,
    tag="conversation.item.retrieve",
    kw_only=True,
):
    """Requests an item."""

    item_id: str


class ItemDelete(
    _ClientEvent,
    frozen=True,
    forbid_unknown_fields=True,
    tag="conversation.item.delete",
    kw_only=True,
):
    """Deletes an item."""

    item_id: str


class ItemTruncate(
    _ClientEvent,
    frozen=True,
    forbid_unknown_fields=True,
    tag="conversation.item.truncate",
    kw_only=True,
):
    """Reports how much of a spoken item the user has heard."""

    item_id: str
    content_index: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
    audio_end_ms: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]


class ResponseCreate(_ClientEvent, frozen=True, forbid_unknown_fields=True, tag="response.create"):
    """Requests an answer."""

    response: ResponseSettings | None = None


class ResponseCancel(_ClientEvent, frozen=True, forbid_unknown_fields=True, tag="response.cancel"):
    """Cancels the answer that is in progress."""

    response_id: str | None = None


class OutputClear(
    _ClientEvent, frozen=True, forbid_unknown_fields=True, tag="output_audio_buffer.clear"
):
    """An event for WebRTC, which has no effect over a WebSocket."""


ClientEvent = (
    SessionUpdate
    | AudioAppend
    | AudioCommit
    | AudioClear
    | ItemCreate
    | ItemRetrieve
    | ItemDelete
    | ItemTruncate
    | ResponseCreate
    | ResponseCancel
    | OutputClear
)

_EVENTS: msgspec.json.Decoder[ClientEvent] = msgspec.json.Decoder(ClientEvent)


class _OfAnyKind(msgspec.Struct):
    event_id: Any = None


_ID = msgspec.json.Decoder(_OfAnyKind)


def read_event(data: str, ignored: IgnoredFields) -> ClientEvent:
    """Decode an event and add unknown fields to `ignored`. Raises `InvalidArgument` if the event is
    invalid.
    """
    try:
        return decode_fields(_EVENTS, data, NO_EFFECT, ignored)
    except InvalidArgument as wrong:
        raise InvalidArgument(
            f"the event can't be parsed: {wrong.message}", field=wrong.field or "type"
        ) from None


def plain_event(data: str) -> ClientEvent | None:
    """Decode an event that has no fields to which a rule in `fields.py` applies. Returns None if it
    has such fields or is invalid, in which case `read_event` has to be called.
    """
    try:
        return _EVENTS.decode(data)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        return None


def event_id_of(data: str) -> str | None:
    """Return the client's ID for an event that cannot be decoded, or None if it has none."""
    try:
        event_id = _ID.decode(data).event_id
    except (msgspec.MsgspecError, RecursionError):
        return None
    return event_id if isinstance(event_id, str) else None
