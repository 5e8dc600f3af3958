"""What a realtime client sends, as far as it is read; see `no_effect.py` for other fields."""

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
    """A format of audio, in or out."""

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
    """How what the user says is written down. Whatever `model` is named, the served one does it."""

    model: str | None = None
    language: Language | None = None
    prompt: Annotated[str, msgspec.Meta(max_length=4096)] | None = None


class InputSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How audio comes in."""

    format: SampleFormat | None = None
    turn_detection: TurnSettings | UnsetType | None = UNSET
    transcription: TranscriptionSettings | UnsetType | None = UNSET


class OutputSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How audio goes out."""

    format: SampleFormat | None = None
    voice: str | VoiceId | None = None


class AudioSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Both ways."""

    input: InputSettings | None = None
    output: OutputSettings | None = None


class ToolNamed(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The function that must be called."""

    type: str
    name: str = ""


class OwnResponseSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What antiphon offers besides: options of the model (null: the option is removed), and
    sampling by stage, "" being the one that reads the messages."""

    options: dict[str, msgspec.Raw] = {}
    sampling: dict[str, StageSampling] = {}


class OwnSettings(OwnResponseSettings, frozen=True, forbid_unknown_fields=True):
    """For the session also `antiphon.response.timeline` and `antiphon.stopping`, events
    that strict clients of OpenAI's API do not know, each for those who ask for it; and answers by
    the clock (null: none)."""

    timeline: bool | None = None
    stopping: bool | None = None
    answer_every_s: float | UnsetType | None = UNSET


class BetaFields(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Fields of the API's beta; see `antiphon_gateway.endpoints.realtime.beta_fields`."""

    modalities: tuple[str, ...] | None = None
    voice: str | VoiceId | None = None
    input_audio_format: str | None = None
    output_audio_format: str | None = None
    max_response_output_tokens: int | str | None = None


class SessionSettings(BetaFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`session` of `session.update`: what is absent stays as it was."""

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
    """An item that the client writes, or a reference to one that is there."""

    type: str
    id: str | None = None
    role: str | None = None
    content: tuple[ContentPart, ...] = ()
    call_id: str | None = None
    name: str | None = None
    arguments: str | None = None
    output: str | None = None


class ResponseSettings(BetaFields, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """`response` of `response.create`: what is absent is the session's."""

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
    """New settings."""

    session: SessionSettings = SessionSettings()


class AudioAppend(
    _ClientEvent,
    frozen=True,
    forbid_unknown_fields=True,
    tag="input_audio_buffer.append",
    kw_only=True,
):
    """A piece of audio, in base64."""

    audio: str


class AudioCommit(
    _ClientEvent, frozen=True, forbid_unknown_fields=True, tag="input_audio_buffer.commit"
):
    """The audio so far is an item."""


class AudioClear(
    _ClientEvent, frozen=True, forbid_unknown_fields=True, tag="input_audio_buffer.clear"
):
    """The audio so far is dropped."""


class ItemCreate(
    _ClientEvent,
    frozen=True,
    forbid_unknown_fields=True,
    tag="conversation.item.create",
    kw_only=True,
):
    """An item."""

    item: ItemGiven
    previous_item_id: str | None = None


class ItemRetrieve(
    _ClientEvent,
    frozen=True,
    forbid_unknown_fields=True,
    tag="conversation.item.retrieve",
    kw_only=True,
):
    """Asks for an item."""

    item_id: str


class ItemDelete(
    _ClientEvent,
    frozen=True,
    forbid_unknown_fields=True,
    tag="conversation.item.delete",
    kw_only=True,
):
    """Takes an item out."""

    item_id: str


class ItemTruncate(
    _ClientEvent,
    frozen=True,
    forbid_unknown_fields=True,
    tag="conversation.item.truncate",
    kw_only=True,
):
    """What was heard of a spoken item."""

    item_id: str
    content_index: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]
    audio_end_ms: Annotated[int, msgspec.Meta(ge=0, le=1 << 31)]


class ResponseCreate(_ClientEvent, frozen=True, forbid_unknown_fields=True, tag="response.create"):
    """Asks for an answer."""

    response: ResponseSettings | None = None


class ResponseCancel(_ClientEvent, frozen=True, forbid_unknown_fields=True, tag="response.cancel"):
    """Ends the answer that is being made."""

    response_id: str | None = None


class OutputClear(
    _ClientEvent, frozen=True, forbid_unknown_fields=True, tag="output_audio_buffer.clear"
):
    """WebRTC's; over a WebSocket it says nothing."""


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
    """Decode an event; unknown fields go to `ignored`. Raises `InvalidArgument` with the reason."""
    try:
        return decode_fields(_EVENTS, data, NO_EFFECT, ignored)
    except InvalidArgument as wrong:
        raise InvalidArgument(
            f"the event cannot be read: {wrong.message}", field=wrong.field or "type"
        ) from None


def event_id_of(data: str) -> str | None:
    """The client's id of an event that cannot be read, if it has one."""
    try:
        event_id = _ID.decode(data).event_id
    except (msgspec.MsgspecError, RecursionError):
        return None
    return event_id if isinstance(event_id, str) else None
