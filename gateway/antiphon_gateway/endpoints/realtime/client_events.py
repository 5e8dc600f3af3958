"""The events of a realtime client that this gateway reads. Other fields are listed in
`no_effect.py`.
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
    """How the user's speech is transcribed. The model that is served is always used, regardless of
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
    """Settings that only antiphon has.

    These are options of the model, where null removes an option, and sampling settings by stage. ""
    stands for the stage that reads the messages.
    """

    options: dict[str, msgspec.Raw] = {}
    sampling: dict[str, StageSampling] = {}


class OwnSettings(OwnResponseSettings, frozen=True, forbid_unknown_fields=True):
    """Settings of the session that only antiphon has.

    They include whether to send `antiphon.response.timeline` and `antiphon.stopping`. Strict
    clients of OpenAI's API do not know these events, so each must be requested. They also include
    timed answers, which null disables.
    """

    timeline: bool | None = None
    stopping: bool | None = None
    answer_every_s: float | UnsetType | None = UNSET


class BetaFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The fields of the beta API. See `antiphon_gateway.endpoints.realtime.beta_fields`."""

    modalities: tuple[str, ...] | None = None
    voice: str | VoiceId | None = None
    input_audio_format: str | None = None
    output_audio_format: str | None = None
    max_response_output_tokens: int | str | None = None


class SessionSettings(BetaFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The field `session` in `session.update`. Settings that are missing remain unchanged."""

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
    """The field `response` in `response.create`. For settings that are missing, those of the
    session apply.
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
    """Turns the audio so far into an item."""


class AudioClear(
    _ClientEvent, frozen=True, forbid_unknown_fields=True, tag="input_audio_buffer.clear"
):
    """Drops the audio so far."""


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
    """An event for WebRTC. It has no effect over a WebSocket."""


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
    """Decode an event. Unknown fields are added to `ignored`. Raises `InvalidArgument` with the
    reason if the event is invalid.
    """
    try:
        return decode_fields(_EVENTS, data, NO_EFFECT, ignored)
    except InvalidArgument as wrong:
        raise InvalidArgument(
            f"the event cannot be read: {wrong.message}", field=wrong.field or "type"
        ) from None


def event_id_of(data: str) -> str | None:
    """Return the ID that the client has given an event that cannot be read, or None if there is
    none.
    """
    try:
        event_id = _ID.decode(data).event_id
    except (msgspec.MsgspecError, RecursionError):
        return None
    return event_id if isinstance(event_id, str) else None
