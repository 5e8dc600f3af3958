"""Settings of a conversation as `converse.proto` has them, both ways. Pure."""

from __future__ import annotations

from dataclasses import replace

import msgspec

from antiphon.errors import InvalidArgument
from antiphon.v1 import converse_pb2, functions_pb2
from antiphon.wire.convert import sampling_from_proto, sampling_to_proto
from antiphon_gateway.calls.tools import read_function_texts
from antiphon_gateway.conversations.settings import (
    FUNCTION,
    ConversationSettings,
    TranscriptWish,
    TurnDetection,
)

MOST_STAGES = 16
_RANGES = {
    "prefix_padding_s": (0.0, 10.0),
    "silence_s": (0.032, 60.0),
    "idle_timeout_s": (0.1, 120.0),
}


def with_settings(
    holds: ConversationSettings, asked: converse_pb2.ConversationSettings
) -> ConversationSettings:
    """What holds, with what a client asks for. Raises `InvalidArgument` with the field."""
    if len(asked.sampling) > MOST_STAGES:
        raise InvalidArgument(
            f"settings.sampling: more than {MOST_STAGES} of them", field="settings.sampling"
        )
    sampling = {
        stage: sampling_from_proto(each, field=f"settings.sampling.{stage}".rstrip("."))
        for stage, each in asked.sampling.items()
    }
    changed = replace(holds, sampling={**holds.sampling, **sampling})
    if asked.HasField("instructions"):
        changed = replace(changed, instructions=asked.instructions)
    if asked.HasField("spoken"):
        changed = replace(changed, spoken=asked.spoken)
    if asked.HasField("voice"):
        changed = changed.with_voice(asked.voice)
    if asked.HasField("functions"):
        changed = _with_functions(changed, asked.functions)
    match asked.WhichOneof("transcription"):
        case "no_transcripts":
            changed = replace(changed, transcript=None)
        case "transcripts" if holds.hears:
            wish = TranscriptWish(asked.transcripts.language, asked.transcripts.prompt)
            changed = replace(changed, transcript=wish)
    match asked.WhichOneof("turns"):
        case "manual_turns":
            changed = replace(changed, turns=None, answer_every_s=None)
        case "voice_turns":
            turns = _read_turns(asked.voice_turns)
            changed = replace(changed, turns=turns, answer_every_s=None)
        case "timed_turns":
            changed = replace(changed, turns=None, answer_every_s=asked.timed_turns.answer_every_s)
    return changed


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


def _write_functions(holds: ConversationSettings) -> converse_pb2.OfferedFunctions:
    named = holds.tool_choice.startswith(FUNCTION)
    choice = functions_pb2.FunctionChoice(
        mode="required" if named else holds.tool_choice,
        name=holds.tool_choice.removeprefix(FUNCTION) if named else "",
        one_call=not holds.parallel_calls,
    )
    texts = [
        msgspec.json.encode(msgspec.json.decode(each)["function"]).decode() for each in holds.tools
    ]
    return converse_pb2.OfferedFunctions(functions=texts, choice=choice)


def _read_turns(asked: converse_pb2.VoiceTurns) -> TurnDetection:
    given = {field.name: value for field, value in asked.ListFields()}
    for name, value in given.items():
        least, most = _RANGES.get(name, (0.0, 1.0))
        # Written so that what is no number is refused.
        if not least <= value <= most:
            field = f"settings.voice_turns.{name}"
            raise InvalidArgument(
                f"{field}: {value:g} is out of range; give {least:g} to {most:g}", field=field
            )
    return TurnDetection(**given)


def _write_turns(holds: TurnDetection) -> converse_pb2.VoiceTurns:
    return converse_pb2.VoiceTurns(
        threshold=holds.threshold,
        prefix_padding_s=holds.prefix_padding_s,
        silence_s=holds.silence_s,
        creates_response=holds.creates_response,
        interrupts_response=holds.interrupts_response,
        idle_timeout_s=holds.idle_timeout_s,
    )


def write_settings(holds: ConversationSettings) -> converse_pb2.ConversationSettings:
    """The message of all settings."""
    turns, wish, every_s = holds.turns, holds.transcript, holds.answer_every_s
    return converse_pb2.ConversationSettings(
        functions=_write_functions(holds) if holds.tools else None,
        manual_turns=converse_pb2.ManualTurns() if turns is None and every_s is None else None,
        timed_turns=None if every_s is None else converse_pb2.TimedTurns(answer_every_s=every_s),
        no_transcripts=converse_pb2.NoTranscripts() if wish is None else None,
        transcripts=None
        if wish is None
        else converse_pb2.Transcripts(language=wish.language, prompt=wish.prompt),
        voice_turns=None if turns is None else _write_turns(turns),
        instructions=holds.instructions,
        spoken=holds.spoken,
        voice=holds.voice,
        sampling={stage: sampling_to_proto(each) for stage, each in holds.sampling.items()},
    )
