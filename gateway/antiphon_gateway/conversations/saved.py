"""What another gateway needs to go on with a conversation, as bytes and back. Pure and bounded.

Texts are always in it. Recordings are as large as the time that they take, so only the latest that
fit are: of an older one its transcript stays, if there is one, and without one the model no longer
hears what was said.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace

import msgspec

from antiphon.conversation import ToolCall
from antiphon.errors import FailedPrecondition, InvalidArgument, Unavailable
from antiphon.sampling import SamplingRequest
from antiphon_gateway.conversations.events import (
    ConversationEvent,
    Response,
    ResponseEnded,
    ResponseItemEnded,
    ResponseStatus,
)
from antiphon_gateway.conversations.items import (
    CallContent,
    CallOutput,
    Content,
    ConversationItem,
    RecordedContent,
    Role,
    SpokenContent,
    WrittenContent,
)
from antiphon_gateway.conversations.settings import (
    ConversationSettings,
    TranscriptWish,
    TurnDetection,
)
from antiphon_gateway.media.live_audio import LIVE_FORMATS
from antiphon_gateway.media.pcm_recording import PcmRecording


class _Written(msgspec.Struct, frozen=True, array_like=True, tag="written"):
    text: str


class _Recorded(msgspec.Struct, frozen=True, array_like=True, tag="recorded"):
    pcm16: bytes
    rate_hz: int
    transcript: str | None


class _Spoken(msgspec.Struct, frozen=True, array_like=True, tag="spoken"):
    transcript: str
    seconds: float


class _Call(msgspec.Struct, frozen=True, array_like=True, tag="call"):
    id: str
    name: str
    arguments: str


class _Output(msgspec.Struct, frozen=True, array_like=True, tag="output"):
    call_id: str
    output: str


class _Item(msgspec.Struct, frozen=True, array_like=True):
    id: str
    role: Role
    complete: bool
    contents: tuple[_Written | _Recorded | _Spoken | _Call | _Output, ...]


class PendingResponse(msgspec.Struct, frozen=True, array_like=True):
    """A response that is being made. `open_items` are those that have begun, and not ended, with
    their places in the response."""

    id: str
    in_conversation: bool
    metadata: dict[str, str] | None
    spoken: bool
    open_items: dict[str, int] = {}


class _Settings(msgspec.Struct, frozen=True):
    spoken: bool
    voice: str
    instructions: str
    max_output_tokens: int | None
    turns: TurnDetection | None
    answer_every_s: float | None
    input_format: str
    output_format: str
    transcript: TranscriptWish | None
    timeline: bool
    stopping: bool
    sampling: dict[str, SamplingRequest]
    tools: tuple[str, ...]
    tool_choice: str
    parallel_calls: bool


class _Saved(msgspec.Struct, frozen=True, array_like=True):
    model: str
    settings: _Settings
    items: tuple[_Item, ...]
    pending: tuple[PendingResponse, ...]


class SavedConversation(msgspec.Struct, frozen=True):
    """A conversation as another gateway goes on with it."""

    settings: ConversationSettings
    items: tuple[ConversationItem, ...]
    pending: tuple[PendingResponse, ...]


def save(
    settings: ConversationSettings,
    items: Iterable[ConversationItem],
    pending: Iterable[PendingResponse],
    most_bytes: int,
) -> bytes | None:
    """At most so many bytes; None if the texts alone are more, or cannot be written in UTF-8."""
    kept = tuple(items)
    if sum(each.size_bytes - _recorded_bytes(each) for each in kept) > most_bytes:
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
    """What was saved, where `first` are the settings of a new conversation.

    Raises `InvalidArgument` for bytes that another version wrote, and `FailedPrecondition` for a
    conversation with another model.
    """
    try:
        saved = msgspec.msgpack.decode(data, type=_Saved)
    except msgspec.DecodeError as error:
        raise InvalidArgument(
            "token: another version of the gateway has made it", field="token"
        ) from error
    if saved.model != first.model:
        raise FailedPrecondition(
            f"token: the conversation is with {saved.model!r}, and {first.model!r} is served",
            field="token",
        )
    held = saved.settings
    settings = replace(
        first,
        spoken=held.spoken,
        instructions=held.instructions,
        max_output_tokens=held.max_output_tokens,
        turns=held.turns,
        answer_every_s=held.answer_every_s,
        input_format=LIVE_FORMATS[held.input_format],
        output_format=LIVE_FORMATS[held.output_format],
        transcript=held.transcript if first.hears else None,
        timeline=held.timeline,
        stopping=held.stopping,
        sampling=held.sampling,
        tools=held.tools,
        tool_choice=held.tool_choice,
        parallel_calls=held.parallel_calls,
    ).with_voice(held.voice)
    items = tuple(
        ConversationItem(each.id, each.role, tuple(map(_content, each.contents)), each.complete)
        for each in saved.items
    )
    return SavedConversation(settings, items, saved.pending)


def with_delivered(
    saved: SavedConversation, delivered: Mapping[str, tuple[str, float]]
) -> SavedConversation:
    """The conversation, where the items that were being made have as much text and as many seconds
    of audio as the client has. Of a call that was being written, nothing is kept."""
    made = {item_id: each for each in saved.pending for item_id in each.open_items}
    items = []
    for item in saved.items:
        if (response := made.get(item.id)) is None:
            items.append(item)
        elif not any(isinstance(each, CallContent) for each in item.contents):
            text, seconds = delivered.get(item.id, ("", 0.0))
            said = SpokenContent(text, seconds) if response.spoken else WrittenContent(text)
            items.append(replace(item, contents=(said,), complete=False))
    return SavedConversation(saved.settings, tuple(items), saved.pending)


def lost_responses(saved: SavedConversation) -> list[ConversationEvent]:
    """The ends of the responses that were being made: they have failed."""
    ends: list[ConversationEvent] = []
    items = {each.id: each for each in saved.items}
    lost = Unavailable("the gateway that made the answer was lost; ask for another")
    for each in saved.pending:
        made = [(items[item_id], at) for item_id, at in each.open_items.items() if item_id in items]
        response = Response(
            each.id,
            saved.settings,
            each.in_conversation,
            each.metadata,
            ResponseStatus.FAILED,
            error=lost,
            items=tuple(item for item, _ in made),
        )
        ends += [ResponseItemEnded(response, at, item) for item, at in made]
        ends.append(ResponseEnded(response))
    return ends


def _settings(holds: ConversationSettings) -> _Settings:
    return _Settings(
        holds.spoken,
        holds.voice,
        holds.instructions,
        holds.max_output_tokens,
        holds.turns,
        holds.answer_every_s,
        holds.input_format.name,
        holds.output_format.name,
        holds.transcript,
        holds.timeline,
        holds.stopping,
        dict(holds.sampling),
        holds.tools,
        holds.tool_choice,
        holds.parallel_calls,
    )


def _items(items: Iterable[ConversationItem], heard: frozenset[int]) -> tuple[_Item, ...]:
    return tuple(
        _Item(i.id, i.role, i.complete, tuple(_saved(each, heard) for each in i.contents))
        for i in items
    )


def _recorded_bytes(item: ConversationItem) -> int:
    return sum(len(e.audio.pcm16) for e in item.contents if isinstance(e, RecordedContent))


def _latest_recordings(items: Iterable[ConversationItem], room: int) -> frozenset[int]:
    """The numbers of the latest recordings that have room together."""
    heard = set()
    contents = [each for item in items for each in item.contents]
    for content in reversed(contents):
        if isinstance(content, RecordedContent):
            # What is written of it takes a few more bytes for its length and its kind.
            room -= len(content.audio.pcm16) + 64
            if room < 0:
                break
            heard.add(content.audio.number)
    return frozenset(heard)


def _saved(
    content: Content, heard: frozenset[int]
) -> _Written | _Recorded | _Spoken | _Call | _Output:
    match content:
        case WrittenContent(text):
            return _Written(text)
        case RecordedContent(audio, transcript):
            if audio.number in heard:
                return _Recorded(bytes(audio.pcm16), audio.rate_hz, transcript)
            if transcript:
                return _Written(transcript)
            return _Recorded(b"", audio.rate_hz, transcript)
        case SpokenContent(transcript, seconds):
            return _Spoken(transcript, seconds)
        case CallContent(call):
            return _Call(call.id, call.name, call.arguments)
        case CallOutput(call_id, output):
            return _Output(call_id, output)


def _content(saved: _Written | _Recorded | _Spoken | _Call | _Output) -> Content:
    match saved:
        case _Written(text):
            return WrittenContent(text)
        case _Recorded(pcm16, rate_hz, transcript):
            return RecordedContent(PcmRecording(pcm16, rate_hz), transcript)
        case _Spoken(transcript, seconds):
            return SpokenContent(transcript, seconds)
        case _Call(call_id, name, arguments):
            return CallContent(ToolCall(call_id, name, arguments))
        case _Output(call_id, output):
            return CallOutput(call_id, output)
