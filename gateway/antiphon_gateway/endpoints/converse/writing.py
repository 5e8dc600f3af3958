"""What a conversation tells, as `ConverseResponse` messages. Pure."""

from __future__ import annotations

from typing import assert_never

from antiphon.v1 import converse_pb2
from antiphon.wire.convert import error_to_proto
from antiphon_gateway.conversations import events as told
from antiphon_gateway.conversations.events import ConversationEvent, EndReason, ResponseStatus
from antiphon_gateway.endpoints.converse.items import write_call, write_item
from antiphon_gateway.endpoints.converse.settings import write_settings
from antiphon_gateway.endpoints.usage_messages import write_usage
from antiphon_gateway.media.audio_out import to_pcm16

_STATUS = {
    ResponseStatus.IN_PROGRESS: converse_pb2.RESPONSE_STATUS_IN_PROGRESS,
    ResponseStatus.COMPLETED: converse_pb2.RESPONSE_STATUS_COMPLETED,
    ResponseStatus.INCOMPLETE: converse_pb2.RESPONSE_STATUS_INCOMPLETE,
    ResponseStatus.CANCELLED: converse_pb2.RESPONSE_STATUS_CANCELLED,
    ResponseStatus.FAILED: converse_pb2.RESPONSE_STATUS_FAILED,
}

_REASON = {
    EndReason.MAX_OUTPUT_TOKENS: converse_pb2.RESPONSE_END_REASON_MAX_OUTPUT_TOKENS,
    EndReason.CLIENT_CANCELLED: converse_pb2.RESPONSE_END_REASON_CLIENT_CANCELLED,
    EndReason.TURN_DETECTED: converse_pb2.RESPONSE_END_REASON_TURN_DETECTED,
}


def write_event(
    event: ConversationEvent, max_retrieved_bytes: int
) -> converse_pb2.ConverseResponse:
    """The message of an event; an item that was asked for has its samples if they are no more."""
    message = converse_pb2.ConverseResponse()
    match event:
        case told.ConversationBegun(settings):
            message.begun.model = settings.model
            message.begun.sample_rate_hz = settings.output_rate_hz
            message.begun.voices.extend(settings.voices)
            message.begun.settings.CopyFrom(write_settings(settings))
        case told.SettingsChanged(settings):
            message.settings_changed.settings.CopyFrom(write_settings(settings))
        case told.CommandRefused(error, reference):
            message.refused.reference = reference or ""
            message.refused.error.CopyFrom(error_to_proto(error))
        case told.AudioCleared():
            message.audio_cleared.SetInParent()
        case told.SpeechStarted(item_id, start_s):
            message.speech_started.item_id = item_id
            message.speech_started.start_s = start_s
        case told.SpeechStopped(item_id, end_s):
            message.speech_stopped.item_id = item_id
            message.speech_stopped.end_s = end_s
        case told.SilenceTimedOut(item_id, start_s, end_s):
            passed = message.silence_timed_out
            passed.item_id, passed.start_s, passed.end_s = item_id, start_s, end_s
        case told.AudioCommitted(item_id, before):
            message.audio_committed.item_id = item_id
            message.audio_committed.previous_item_id = before or ""
        case told.ItemAdded(item, before):
            message.item_added.item.CopyFrom(write_item(item))
            message.item_added.previous_item_id = before or ""
        case told.ItemRetrieved(item):
            message.item_retrieved.item.CopyFrom(
                write_item(item, samples=item.size_bytes <= max_retrieved_bytes)
            )
        case told.GatewayStopping(within_s):
            message.server_stopping.within_s = within_s
        case told.ConversationSaved(token, done, audio_done):
            message.saved.token = token
            message.saved.commands, message.saved.audio_commands = done, audio_done
        case told.ItemDeleted(item_id):
            message.item_deleted.item_id = item_id
        case told.ItemTruncated(item_id, _, end_s):
            message.item_truncated.item_id = item_id
            message.item_truncated.heard_s = end_s
        case told.TranscriptText(item_id, index, text):
            words = message.transcript_text
            words.item_id, words.index, words.text = item_id, index, text
        case told.TranscriptEnded(item_id, index, text, usage):
            whole = message.transcript_ended
            whole.item_id, whole.index, whole.text = item_id, index, text
            whole.usage.CopyFrom(write_usage(usage))
        case told.TranscriptFailed(item_id, index, error):
            failed = message.transcript_failed
            failed.item_id, failed.index = item_id, index
            failed.error.CopyFrom(error_to_proto(error))
        case told.ResponseCreated(response):
            message.response_created.response.CopyFrom(_write_response(response))
        case told.ResponseItemBegun(response, index, item, before):
            begun = message.response_item_begun
            begun.response_id, begun.index, begun.item_id = response.id, index, item.id
            begun.previous_item_id = before or ""
        case told.ResponseText(response_id, index, item_id, text):
            more = message.response_text
            more.response_id, more.index, more.item_id = response_id, index, item_id
            more.text = text
        case told.ResponseAudio(response_id, index, item_id, samples):
            audio = message.response_audio
            audio.response_id, audio.index, audio.item_id = response_id, index, item_id
            audio.pcm16 = to_pcm16(samples)
        case told.ResponseCallText(response_id, index, item_id, call_id, name, arguments):
            piece = message.response_call_text
            piece.response_id, piece.index, piece.item_id = response_id, index, item_id
            piece.call_id, piece.name, piece.arguments = call_id, name, arguments
        case told.ResponseCall(response_id, index, item_id, call):
            made = message.response_call
            made.response_id, made.index, made.item_id = response_id, index, item_id
            made.call.CopyFrom(write_call(call))
        case told.ResponseItemEnded(response, index, item):
            ended = message.response_item_ended
            ended.response_id, ended.index = response.id, index
            ended.item.CopyFrom(write_item(item))
        case told.ResponseEnded(response):
            message.response_ended.response.CopyFrom(_write_response(response))
        case _:
            assert_never(event)
    return message


def _write_response(response: told.Response) -> converse_pb2.ConversationResponse:
    return converse_pb2.ConversationResponse(
        id=response.id,
        status=_STATUS[response.status],
        reason=converse_pb2.RESPONSE_END_REASON_UNSPECIFIED
        if response.reason is None
        else _REASON[response.reason],
        out_of_band=not response.in_conversation,
        metadata=response.metadata or {},
        items=map(write_item, response.items),
        usage=None if response.usage is None else write_usage(response.usage),
        error=None if response.error is None else error_to_proto(response.error),
    )
