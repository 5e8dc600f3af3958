"""What is told of a user's transcript, as the realtime API writes it."""

from __future__ import annotations

from typing import Any

import msgspec

from antiphon_gateway.conversations.events import TranscriptEnded, TranscriptFailed, TranscriptText
from antiphon_gateway.endpoints.http.transcription_usage import transcription_usage
from antiphon_gateway.endpoints.realtime.errors import error_details

PREFIX = "conversation.item.input_audio_transcription"


def transcript_json(event: TranscriptText | TranscriptEnded | TranscriptFailed) -> dict[str, Any]:
    """One event."""
    place = {"item_id": event.item_id, "content_index": event.index}
    match event:
        case TranscriptText(text=text):
            return {"type": f"{PREFIX}.delta", **place, "delta": text}
        case TranscriptEnded(text=text, usage=usage):
            cost = msgspec.to_builtins(transcription_usage(usage))
            return {"type": f"{PREFIX}.completed", **place, "transcript": text, "usage": cost}
        case TranscriptFailed(error=error):
            return {"type": f"{PREFIX}.failed", **place, "error": error_details(error)}
