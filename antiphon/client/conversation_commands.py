"""Builds the messages for the commands of a conversation. If an argument is invalid,
`InvalidArgument` is raised.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import TypedDict

from antiphon.client.checks import listed, named, number_between, of_type, unicode_text, wrong_type
from antiphon.client.request import OptionInput, option_to_proto
from antiphon.client.tools import (
    Function,
    FunctionChoice,
    call_to_proto,
    choice_to_proto,
    functions_to_proto,
)
from antiphon.errors import InvalidArgument
from antiphon.v1 import converse_pb2, options_pb2
from antiphon.values.answer import FunctionCall
from antiphon.values.live_conversation import (
    CallResultPart,
    Item,
    ItemPart,
    RecordedPart,
    SpokenPart,
    TimedTurns,
    TranscriptOptions,
    VoiceTurns,
)
from antiphon.values.sampling import SamplingRequest
from antiphon.wire.convert import sampling_to_proto

Request = converse_pb2.ConverseRequest
PIECE_BYTES = 256 << 10
"""The maximum size in bytes of the audio in a single message. This is about 5 seconds at 24 kHz."""
MOST_RATE_HZ = 48_000
MOST_TURN_S = 120.0
MOST_SLICE_S = 86_400.0
"""A generous upper limit for the length of a recording, in seconds. The actual limit is enforced by
the server.
"""


class ConversationOptions(TypedDict, total=False):
    """Settings for a conversation or for a single response. Settings that are omitted remain
    unchanged.

    `instructions` is the system prompt. `spoken` selects whether answers are spoken as well as
    written. It defaults to true if the model can speak. `voice` is the name of one of the server's
    voices. An unknown name leaves the voice unchanged. `sampling` maps stages to sampling settings,
    as it does in `generate`. The key `""` refers to the stage that receives the messages. `turns`
    selects how the end of a user turn is detected, either by voice activity or by a timer. By
    default, it is None, and the client ends each turn with `commit_audio`. Set `transcripts` to
    receive transcripts of the user's speech.

    `functions` lists the functions that the model may call. `function_choice` and `parallel_calls`
    control these calls, as they do in `generate`. If any of these three settings is given, the
    other two return to their defaults unless they are given as well. `options` sets model options,
    as in `generate`. Set an option to None to remove it.
    """

    instructions: str
    spoken: bool
    voice: str
    sampling: Mapping[str, SamplingRequest]
    turns: VoiceTurns | TimedTurns | None
    transcripts: TranscriptOptions | None
    functions: Sequence[Function]
    function_choice: FunctionChoice
    parallel_calls: bool
    options: Mapping[str, OptionInput | None]


def open_request(model: str, options: ConversationOptions) -> Request:
    """Return the message that opens the conversation."""
    opening = converse_pb2.OpenConversation(
        model=unicode_text("model", model), settings=settings_to_proto(options)
    )
    return Request(open=opening)


def change_settings(options: ConversationOptions, reference: str) -> Request:
    """Return the message that changes settings."""
    changed = converse_pb2.ChangeSettings(settings=settings_to_proto(options))
    return Request(reference=_reference(reference), change_settings=changed)


def audio_requests(pcm16: bytes, rate_hz: int, reference: str) -> list[Request]:
    """Return the messages that append audio, which is split into pieces."""
    of_type("pcm16", pcm16, bytes)
    number_between("rate_hz", rate_hz, 0, MOST_RATE_HZ)
    named_as = _reference(reference)
    return [
        Request(
            reference=named_as,
            append_audio=converse_pb2.AppendAudio(
                pcm16=pcm16[start : start + PIECE_BYTES], rate_hz=rate_hz
            ),
        )
        for start in range(0, len(pcm16), PIECE_BYTES)
    ]


def commit_audio(reference: str) -> Request:
    """Return the message that commits the buffered audio."""
    return Request(reference=_reference(reference), commit_audio=converse_pb2.CommitAudio())


def clear_audio(reference: str) -> Request:
    """Return the message that clears the audio buffer."""
    return Request(reference=_reference(reference), clear_audio=converse_pb2.ClearAudio())


def create_item(item: str | Item, after: str | None, reference: str) -> Request:
    """Return the message that inserts an item. If `item` is a `str`, it becomes a user message."""
    created = converse_pb2.CreateItem(
        item=item_to_proto("item", item),
        after=None if after is None else unicode_text("after", after),
    )
    return Request(reference=_reference(reference), create_item=created)


def delete_item(item_id: str, reference: str) -> Request:
    """Return the message that removes an item."""
    deleted = converse_pb2.DeleteItem(item_id=unicode_text("item_id", item_id))
    return Request(reference=_reference(reference), delete_item=deleted)


def retrieve_item(item_id: str, reference: str) -> Request:
    """Return the message that requests an item."""
    asked = converse_pb2.RetrieveItem(item_id=unicode_text("item_id", item_id))
    return Request(reference=_reference(reference), retrieve_item=asked)


def truncate_item(item_id: str, heard_s: float, reference: str) -> Request:
    """Return the message that shortens an item to the part that the user has heard."""
    cut = converse_pb2.TruncateItem(
        item_id=unicode_text("item_id", item_id),
        heard_s=number_between("heard_s", heard_s, 0, 86_400),
    )
    return Request(reference=_reference(reference), truncate_item=cut)


def create_response(
    given: Sequence[str | Item],
    metadata: Mapping[str, str] | None,
    options: ConversationOptions,
    reference: str,
    *,
    out_of_band: bool,
) -> Request:
    """Return the message that requests a response. Each `str` in `given` is the ID of an item."""
    if isinstance(given, str | bytes):
        raise wrong_type("given", "a sequence of items and item IDs", given)
    asked = converse_pb2.CreateResponse(
        settings=settings_to_proto(options),
        out_of_band=of_type("out_of_band", out_of_band, bool),
        input=[_input(f"given[{place}]", each) for place, each in enumerate(given)],
        metadata={
            name: unicode_text(f"metadata.{name}", value)
            for name, value in named("metadata", metadata).items()
        },
    )
    return Request(reference=_reference(reference), create_response=asked)


def cancel_response(response_id: str, reference: str) -> Request:
    """Return the message that cancels a response."""
    cancelled = converse_pb2.CancelResponse(response_id=unicode_text("response_id", response_id))
    return Request(reference=_reference(reference), cancel_response=cancelled)


def settings_to_proto(options: ConversationOptions) -> converse_pb2.ConversationSettings:
    """Return the settings as a proto message."""
    known = ConversationOptions.__annotations__
    if unknown := [name for name in options if name not in known]:
        raise InvalidArgument(
            f"{unknown[0]}: unknown setting; use one of: {', '.join(known)}",
            field=unknown[0],
        )
    settings = converse_pb2.ConversationSettings(
        sampling={
            stage: sampling_to_proto(of_type(f"sampling.{stage}", each, SamplingRequest))
            for stage, each in named("sampling", options.get("sampling")).items()
        }
    )
    if "instructions" in options:
        settings.instructions = unicode_text("instructions", options["instructions"])
    if "spoken" in options:
        settings.spoken = of_type("spoken", options["spoken"], bool)
    if "voice" in options:
        settings.voice = unicode_text("voice", options["voice"])
    if {"functions", "function_choice", "parallel_calls"} & options.keys():
        settings.functions.functions.extend(functions_to_proto(options.get("functions", ())))
        choice = options.get("function_choice", "auto")
        parallel = options.get("parallel_calls", True)
        settings.functions.choice.CopyFrom(choice_to_proto(choice, parallel=parallel))
    if "transcripts" in options:
        _set_transcripts(settings, options["transcripts"])
    if "turns" in options:
        _set_turns(settings, options["turns"])
    for name, value in named("options", options.get("options")).items():
        given = (
            options_pb2.OptionInput()
            if value is None
            else option_to_proto(f"options.{name}", value)
        )
        settings.options[name].CopyFrom(given)
    return settings


def _set_transcripts(settings: converse_pb2.ConversationSettings, wish: object) -> None:
    if wish is None:
        settings.no_transcripts.SetInParent()
        return
    given = of_type("transcripts", wish, TranscriptOptions)
    settings.transcripts.SetInParent()
    settings.transcripts.language = unicode_text("transcripts.language", given.language)
    settings.transcripts.prompt = unicode_text("transcripts.prompt", given.prompt)


def _set_turns(settings: converse_pb2.ConversationSettings, turns: object) -> None:
    if turns is None:
        settings.manual_turns.SetInParent()
        return
    if isinstance(turns, TimedTurns):
        every_s = number_between("turns.answer_every_s", turns.answer_every_s, 0, MOST_SLICE_S)
        settings.timed_turns.answer_every_s = every_s
        return
    asked = settings.voice_turns
    asked.SetInParent()
    for name, value in asdict(of_type("turns", turns, VoiceTurns)).items():
        field = f"turns.{name}"
        if name.endswith("_response"):
            setattr(asked, name, of_type(field, value, bool))
        elif value is not None:
            setattr(asked, name, number_between(field, value, 0, MOST_TURN_S))


def item_to_proto(field: str, item: str | Item) -> converse_pb2.ConversationItem:
    """Return an item as a proto message. If `item` is a `str`, it becomes a user message."""
    if isinstance(item, str):
        item = Item("user", (item,))
    of_type(field, item, Item)
    if isinstance(item.parts, str | bytes):
        raise wrong_type(f"{field}.parts", "a tuple of parts", item.parts)
    return converse_pb2.ConversationItem(
        id=unicode_text(f"{field}.id", item.id),
        role=unicode_text(f"{field}.role", item.role),
        contents=[
            _content(f"{field}.parts[{place}]", part)
            for place, part in enumerate(listed(f"{field}.parts", item.parts, object))
        ],
    )


def _content(field: str, part: ItemPart | object) -> converse_pb2.ItemContent:
    match part:
        case str():
            return converse_pb2.ItemContent(text=unicode_text(field, part))
        case RecordedPart(pcm16, rate_hz):
            of_type(f"{field}.pcm16", pcm16, bytes)
            number_between(f"{field}.rate_hz", rate_hz, 0, MOST_RATE_HZ)
            recorded = converse_pb2.RecordedAudio(pcm16=pcm16, rate_hz=rate_hz)
            return converse_pb2.ItemContent(recorded=recorded)
        case SpokenPart(transcript):
            spoken = converse_pb2.SpokenAudio(transcript=unicode_text(field, transcript))
            return converse_pb2.ItemContent(spoken=spoken)
        case FunctionCall():
            return converse_pb2.ItemContent(call=call_to_proto(field, part))
        case CallResultPart(call_id, output):
            result = converse_pb2.CallResult(
                call_id=unicode_text(f"{field}.call_id", call_id),
                output=unicode_text(f"{field}.output", output),
            )
            return converse_pb2.ItemContent(result=result)
    wanted = "text, a RecordedPart, a SpokenPart, a FunctionCall or a CallResultPart"
    raise wrong_type(field, wanted, part)


def _input(field: str, given: str | Item) -> converse_pb2.ResponseInput:
    if isinstance(given, str):
        return converse_pb2.ResponseInput(item_id=unicode_text(field, given))
    return converse_pb2.ResponseInput(item=item_to_proto(field, given))


def _reference(reference: str) -> str:
    return unicode_text("reference", reference)
