"""One response of the realtime API: a segment's events in, server events out. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from antiphon.errors import AntiphonError
from antiphon.segment import FinishReason
from gateway.calls.events import AudioProduced, Event, SegmentStarted, SegmentUsage, TextProduced
from gateway.conversations.items import ConversationItem, SpokenContent, WrittenContent
from gateway.doors.realtime.item_json import item_json
from gateway.doors.realtime.settings import PCM, RealtimeSettings
from gateway.media.audio_out import to_base64, to_pcm16

ServerEvent = dict[str, Any]


class ResponseEvents:
    """Answers to a segment's events. `item` is the message as far as it has come.

    `conversation_id` is empty for a response out of band. An audio item's text is its
    transcript; it may be ahead of the audio.
    """

    def __init__(
        self,
        response_id: str,
        item_id: str,
        settings: RealtimeSettings,
        conversation_id: str,
        metadata: Mapping[str, str] | None,
    ) -> None:
        self.id = response_id
        self._settings = settings
        self._conversation_id = conversation_id
        self._metadata = metadata
        self._text: list[str] = []
        self._sample_rate_hz = 0
        self._samples = 0
        self._begun = False
        self._item_id = item_id
        self._complete = False

    @property
    def item(self) -> ConversationItem:
        """The message as it stands."""
        text = "".join(self._text)
        if self._settings.spoken:
            seconds = self._samples / self._sample_rate_hz if self._sample_rate_hz else 0.0
            content: SpokenContent | WrittenContent = SpokenContent(text, seconds)
        else:
            content = WrittenContent(text)
        return ConversationItem(self._item_id, "assistant", (content,), self._complete)

    def created(self) -> ServerEvent:
        """`response.created`."""
        return {"type": "response.created", "response": self._response("in_progress")}

    def begun(self, previous_item_id: str | None) -> list[ServerEvent]:
        """The item is there, and its one part."""
        self._begun = True
        empty = item_json(ConversationItem(self._item_id, "assistant"), status="in_progress")
        events = [{**self._at_output(), "type": "response.output_item.added", "item": empty}]
        if self._conversation_id:
            events.append(
                {
                    "type": "conversation.item.added",
                    "previous_item_id": previous_item_id,
                    "item": empty,
                }
            )
        part = self._part("")
        return [*events, {**self._at_part(), "type": "response.content_part.added", "part": part}]

    def of(self, event: Event) -> list[ServerEvent]:
        """What a segment's event amounts to; its beginning and its end are other methods'."""
        match event:
            case SegmentStarted():
                self._sample_rate_hz = event.sample_rate_hz
            case TextProduced(text) if text:
                self._text.append(text)
                kind = "output_audio_transcript" if self._settings.spoken else "output_text"
                return [{**self._at_part(), "type": f"response.{kind}.delta", "delta": text}]
            case AudioProduced(samples) if len(samples):
                self._samples += len(samples)
                delta = to_base64(to_pcm16(samples))
                return [{**self._at_part(), "type": "response.output_audio.delta", "delta": delta}]
        return []

    def finished(self, reason: FinishReason, usage: SegmentUsage) -> list[ServerEvent]:
        """The end, or what a cancellation leaves."""
        status = {
            FinishReason.STOP: "completed",
            FinishReason.LENGTH: "incomplete",
            FinishReason.CANCELLED: "cancelled",
        }[reason]
        details = {
            FinishReason.STOP: None,
            FinishReason.LENGTH: {"type": "incomplete", "reason": "max_output_tokens"},
            FinishReason.CANCELLED: {"type": "cancelled", "reason": "client_cancelled"},
        }[reason]
        self._complete = reason is FinishReason.STOP
        return [*self._closed(), self._done(status, details, usage)]

    def failed(self, error: AntiphonError) -> list[ServerEvent]:
        """A stage has failed: the response ends, the connection does not."""
        details = {
            "type": "failed",
            "error": {
                "type": "server_error" if error.retryable else "invalid_request_error",
                "code": error.code.value,
                "message": error.message,
            },
        }
        return [*self._closed(), self._done("failed", details, None)]

    def _closed(self) -> list[ServerEvent]:
        """The ends of the part and of the item, if they have begun."""
        if not self._begun:
            return []
        text, at_part = "".join(self._text), self._at_part()
        if self._settings.spoken:
            ends: list[ServerEvent] = [
                {**at_part, "type": "response.output_audio.done"},
                {**at_part, "type": "response.output_audio_transcript.done", "transcript": text},
            ]
        else:
            ends = [{**at_part, "type": "response.output_text.done", "text": text}]
        item = item_json(self.item)
        ends.append({**at_part, "type": "response.content_part.done", "part": self._part(text)})
        ends.append({**self._at_output(), "type": "response.output_item.done", "item": item})
        if self._conversation_id:
            ends.append({"type": "conversation.item.done", "item": item})
        return ends

    def _done(
        self, status: str, details: ServerEvent | None, usage: SegmentUsage | None
    ) -> ServerEvent:
        response = self._response(status) | {"status_details": details}
        if self._begun:
            response["output"] = [item_json(self.item)]
        if usage is not None:
            response["usage"] = _usage_json(usage)
        return {"type": "response.done", "response": response}

    def _response(self, status: str) -> ServerEvent:
        settings = self._settings
        return {
            "object": "realtime.response",
            "id": self.id,
            "status": status,
            "status_details": None,
            "output": [],
            "conversation_id": self._conversation_id or None,
            "output_modalities": settings.modalities,
            "max_output_tokens": settings.told_max_tokens,
            "audio": {"output": {"format": PCM, "voice": settings.voice}},
            "metadata": self._metadata,
            "usage": None,
        }

    def _part(self, text: str) -> ServerEvent:
        if self._settings.spoken:
            return {"type": "audio", "transcript": text}
        return {"type": "text", "text": text}

    def _at_output(self) -> ServerEvent:
        return {"response_id": self.id, "output_index": 0}

    def _at_part(self) -> ServerEvent:
        return {**self._at_output(), "item_id": self._item_id, "content_index": 0}


def _usage_json(usage: SegmentUsage) -> ServerEvent:
    """Tokens as the API counts them: a codec frame is an audio token."""
    output = usage.completion_tokens + usage.completion_audio_frames
    return {
        "total_tokens": usage.prompt_tokens + output,
        "input_tokens": usage.prompt_tokens,
        "output_tokens": output,
        "input_token_details": {
            "text_tokens": usage.prompt_tokens
            - usage.prompt_audio_tokens
            - usage.prompt_image_tokens,
            "audio_tokens": usage.prompt_audio_tokens,
            "image_tokens": usage.prompt_image_tokens,
            "cached_tokens": usage.prompt_cached_tokens,
        },
        "output_token_details": {
            "text_tokens": usage.completion_tokens,
            "audio_tokens": usage.completion_audio_frames,
        },
    }
