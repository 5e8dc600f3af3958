"""Messages of a conversation as the values of `conversation_events.py`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from antiphon.client.events import usage_from_proto
from antiphon.client.tools import call_from_proto
from antiphon.errors import DataLoss
from antiphon.live_conversation import (
    AudioAccepted,
    AudioDropped,
    CallResultPart,
    CommandFailed,
    ConversationOpened,
    ConversationReply,
    EndedBy,
    HeldSettings,
    Item,
    ItemCreated,
    ItemCut,
    ItemFetched,
    ItemPart,
    ItemRemoved,
    RecordedPart,
    ReplyStatus,
    ResponseAudioDelta,
    ResponseDone,
    ResponseFunctionCall,
    ResponseFunctionCallDelta,
    ResponseItemDone,
    ResponseItemStarted,
    ResponseStarted,
    ResponseTextDelta,
    ServerStopping,
    SettingsUpdated,
    SilencePassed,
    SpeechBegan,
    SpeechEnded,
    SpokenPart,
    TalkEvent,
    TimedTurns,
    TranscriptDelta,
    TranscriptDone,
    TranscriptLost,
    TranscriptOptions,
    VoiceTurns,
)
from antiphon.v1 import converse_pb2
from antiphon.wire.convert import error_from_proto, sampling_from_proto

_STATUS: Mapping[int, ReplyStatus] = {
    converse_pb2.RESPONSE_STATUS_IN_PROGRESS: "in_progress",
    converse_pb2.RESPONSE_STATUS_COMPLETED: "completed",
    converse_pb2.RESPONSE_STATUS_INCOMPLETE: "incomplete",
    converse_pb2.RESPONSE_STATUS_CANCELLED: "cancelled",
    converse_pb2.RESPONSE_STATUS_FAILED: "failed",
}

_REASON: Mapping[int, EndedBy] = {
    converse_pb2.RESPONSE_END_REASON_MAX_OUTPUT_TOKENS: "max_output_tokens",
    converse_pb2.RESPONSE_END_REASON_CLIENT_CANCELLED: "client_cancelled",
    converse_pb2.RESPONSE_END_REASON_TURN_DETECTED: "turn_detected",
}


def conversation_event(message: converse_pb2.ConverseResponse) -> TalkEvent | None:
    """The event that a message carries; None for one that this version does not know, and for
    what only the client itself needs to go on elsewhere.

    Raises `DataLoss` for what cannot be understood.
    """
    kind = message.WhichOneof("event")
    return None if kind in (None, "saved") else _READERS[kind](getattr(message, kind))


def item_from_proto(proto: converse_pb2.ConversationItem) -> Item:
    """The value of an item."""
    return Item(proto.role, tuple(map(_part, proto.contents)), proto.id, proto.complete)


def _part(proto: converse_pb2.ItemContent) -> ItemPart:
    match proto.WhichOneof("content"):
        case "recorded":
            recorded = proto.recorded
            transcript = recorded.transcript if recorded.HasField("transcript") else None
            return RecordedPart(recorded.pcm16, recorded.rate_hz, recorded.audio_s, transcript)
        case "call":
            return call_from_proto(proto.call)
        case "result":
            return CallResultPart(proto.result.call_id, proto.result.output)
        case "spoken":
            return SpokenPart(proto.spoken.transcript, proto.spoken.audio_s)
        case _:
            return proto.text


def _settings(proto: converse_pb2.ConversationSettings) -> HeldSettings:
    sampling = {stage: sampling_from_proto(each) for stage, each in proto.sampling.items()}
    turns = _turns(proto)
    wish = proto.transcripts
    transcripts = (
        TranscriptOptions(wish.language, wish.prompt) if proto.HasField("transcripts") else None
    )
    return HeldSettings(proto.instructions, proto.spoken, proto.voice, sampling, turns, transcripts)


def _turns(proto: converse_pb2.ConversationSettings) -> VoiceTurns | TimedTurns | None:
    match proto.WhichOneof("turns"):
        case "voice_turns":
            given = proto.voice_turns.ListFields()
            return VoiceTurns(**{field.name: value for field, value in given})
        case "timed_turns":
            return TimedTurns(proto.timed_turns.answer_every_s)
        case _:
            return None


def _reply(proto: converse_pb2.ConversationResponse) -> ConversationReply:
    status = _STATUS.get(proto.status)
    if status is None:
        raise DataLoss(f"a response has an unknown status ({proto.status})")
    return ConversationReply(
        id=proto.id,
        status=status,
        out_of_band=proto.out_of_band,
        metadata=dict(proto.metadata),
        items=tuple(map(item_from_proto, proto.items)),
        usage=usage_from_proto(proto.usage) if proto.HasField("usage") else None,
        error=error_from_proto(proto.error) if proto.HasField("error") else None,
        reason=_REASON.get(proto.reason, ""),
    )


_READERS: Mapping[str, Callable[[Any], TalkEvent]] = {
    "begun": lambda p: ConversationOpened(
        p.model, p.sample_rate_hz, tuple(p.voices), _settings(p.settings)
    ),
    "settings_changed": lambda p: SettingsUpdated(_settings(p.settings)),
    "refused": lambda p: CommandFailed(error_from_proto(p.error), p.reference),
    "audio_committed": lambda p: AudioAccepted(p.item_id, p.previous_item_id),
    "audio_cleared": lambda p: AudioDropped(),
    "speech_started": lambda p: SpeechBegan(p.item_id, p.start_s),
    "speech_stopped": lambda p: SpeechEnded(p.item_id, p.end_s),
    "silence_timed_out": lambda p: SilencePassed(p.item_id, p.start_s, p.end_s),
    "server_stopping": lambda p: ServerStopping(p.within_s),
    "item_added": lambda p: ItemCreated(item_from_proto(p.item), p.previous_item_id),
    "item_retrieved": lambda p: ItemFetched(item_from_proto(p.item)),
    "item_deleted": lambda p: ItemRemoved(p.item_id),
    "item_truncated": lambda p: ItemCut(p.item_id, p.heard_s),
    "transcript_text": lambda p: TranscriptDelta(p.item_id, p.text, p.index),
    "transcript_ended": lambda p: TranscriptDone(
        p.item_id, p.text, usage_from_proto(p.usage), p.index
    ),
    "transcript_failed": lambda p: TranscriptLost(p.item_id, error_from_proto(p.error), p.index),
    "response_created": lambda p: ResponseStarted(_reply(p.response)),
    "response_item_begun": lambda p: ResponseItemStarted(
        p.response_id, p.item_id, p.index, p.previous_item_id
    ),
    "response_text": lambda p: ResponseTextDelta(p.response_id, p.item_id, p.text, p.index),
    "response_audio": lambda p: ResponseAudioDelta(p.response_id, p.item_id, p.pcm16, p.index),
    "response_call_text": lambda p: ResponseFunctionCallDelta(
        p.response_id, p.item_id, p.call_id, p.name, p.arguments, p.index
    ),
    "response_call": lambda p: ResponseFunctionCall(
        p.response_id, p.item_id, call_from_proto(p.call), p.index
    ),
    "response_item_ended": lambda p: ResponseItemDone(
        p.response_id, item_from_proto(p.item), p.index
    ),
    "response_ended": lambda p: ResponseDone(_reply(p.response)),
}
