"""Parses the settings that clients request over gRPC and writes the functions that are currently
offered. This module performs no I/O.
"""

from __future__ import annotations

import re
from dataclasses import replace

import msgspec

from antiphon.errors import AntiphonError, InvalidArgument
from antiphon.v1 import converse_pb2
from antiphon.values.live_conversation import TimedTurns, TranscriptOptions, VoiceTurns
from antiphon.wire.conversation import option_from_proto
from antiphon.wire.convert import sampling_from_proto
from antiphon_gateway.conversations.settings import (
    FUNCTION,
    MOST_STAGES,
    ConversationSettings,
)
from antiphon_gateway.orders.tools import read_function_texts

_UNPLACED = re.compile(r"(?<![\w.])(options|sampling)(?=[.:]|$)")
"""Matches the start of a settings field that doesn't have the prefix `settings.` yet."""
_RANGES = {
    "prefix_padding_s": (0.0, 10.0),
    "silence_s": (0.032, 60.0),
    "idle_timeout_s": (0.1, 120.0),
}


def with_settings(
    holds: ConversationSettings, asked: converse_pb2.ConversationSettings
) -> ConversationSettings:
    """Return the settings with a client's changes applied. If a change is invalid,
    `InvalidArgument` is raised with the field.
    """
    if len(asked.sampling) > MOST_STAGES:
        raise InvalidArgument(
            f"settings.sampling: must have at most {MOST_STAGES} entries", field="settings.sampling"
        )
    sampling = {
        stage: sampling_from_proto(each, field=f"settings.sampling.{stage}".rstrip("."))
        for stage, each in asked.sampling.items()
    }
    changed = holds.with_sampling(sampling)
    if asked.HasField("instructions"):
        changed = changed.with_instructions(asked.instructions)
    if asked.HasField("spoken"):
        changed = changed.with_spoken(asked.spoken)
    if asked.HasField("voice"):
        changed = changed.with_voice(asked.voice)
    if asked.HasField("functions"):
        changed = _with_functions(changed, asked.functions)
    if asked.options:
        changed = changed.with_options(
            {
                name: option_from_proto(each) if each.WhichOneof("value") else None
                for name, each in asked.options.items()
            }
        )
    match asked.WhichOneof("transcription"):
        case "no_transcripts":
            changed = replace(changed, transcripts=None)
        case "transcripts" if holds.hears:
            wish = TranscriptOptions(asked.transcripts.language, asked.transcripts.prompt)
            changed = replace(changed, transcripts=wish)
    match asked.WhichOneof("turns"):
        case "manual_turns":
            changed = changed.with_turns(None)
        case "voice_turns":
            changed = changed.with_turns(_read_turns(asked.voice_turns))
        case "timed_turns":
            changed = changed.with_turns(TimedTurns(asked.timed_turns.answer_every_s))
    return changed


def name_settings(error: AntiphonError) -> None:
    """In an error, add the prefix `settings.` to the names of options and sampling settings, which
    is how they are named in this API's messages. This can be called more than once.
    """
    if _UNPLACED.match(error.field):
        error.message = _UNPLACED.sub(r"settings.\1", error.message)
        error.args, error.field = (error.message,), f"settings.{error.field}"


def _with_functions(
    holds: ConversationSettings, asked: converse_pb2.OfferedFunctions
) -> ConversationSettings:
    field, choice = "settings.functions", asked.choice
    tools = read_function_texts(asked.functions, f"{field}.functions[{{}}]")
    named = choice.mode == "required" and choice.name
    changed = replace(
        holds,
        tools=tools,
        tool_choice=f"{FUNCTION}{choice.name}" if named else choice.mode or "auto",
        parallel_calls=not choice.one_call,
    )
    try:
        _ = changed.offered
    except InvalidArgument as error:
        raise InvalidArgument(f"{field}.choice: {error.message}", field=f"{field}.choice") from None
    return changed


def write_functions(
    holds: ConversationSettings, settings: converse_pb2.ConversationSettings
) -> None:
    """Add the functions that are currently offered to a settings message."""
    if not holds.tools:
        return
    named = holds.tool_choice.startswith(FUNCTION)
    settings.functions.choice.mode = "required" if named else holds.tool_choice
    settings.functions.choice.name = holds.tool_choice.removeprefix(FUNCTION) if named else ""
    settings.functions.choice.one_call = not holds.parallel_calls
    for each in holds.tools:
        function = msgspec.json.encode(msgspec.json.decode(each)["function"]).decode()
        settings.functions.functions.append(function)


def _read_turns(asked: converse_pb2.VoiceTurns) -> VoiceTurns:
    given = {field.name: value for field, value in asked.ListFields()}
    for name, value in given.items():
        least, most = _RANGES.get(name, (0.0, 1.0))
        # The condition is written in such a way that NaN is rejected.
        if not least <= value <= most:
            field = f"settings.voice_turns.{name}"
            raise InvalidArgument(
                f"{field}: {value:g} is out of range; set it to a value from {least:g} to {most:g}",
                field=field,
            )
    return VoiceTurns(**given)
