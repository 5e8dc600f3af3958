"""Events of a segment to audio, as it comes: the bare bytes, or server-sent events."""

from __future__ import annotations

import msgspec

from antiphon.errors import AntiphonError
from gateway.calls.events import AudioProduced, Event, SegmentFinished, SegmentStarted, SegmentUsage
from gateway.doors.http.errors import error_json
from gateway.doors.http.server_sent import server_sent
from gateway.doors.read_aloud.schema import SpeechDelta, SpeechDone, SpeechUsage
from gateway.media.audio_out import Base64Stream, to_pcm16, wav_header

CONTENT_TYPES = {"wav": "audio/wav", "pcm": "audio/pcm"}


class AudioBytes:
    """The samples as 16-bit integers, behind a WAV header that leaves the length open if wanted.

    An error after the first byte cannot be told: the connection is cut.
    """

    streamed = True

    def __init__(self, audio_format: str) -> None:
        self._format = audio_format

    @property
    def content_type(self) -> str:
        """Of the format."""
        return CONTENT_TYPES[self._format]

    def add(self, event: Event) -> bytes:
        """What to send for an event."""
        match event:
            case SegmentStarted() if self._format == "wav":
                return wav_header(event.sample_rate_hz)
            case AudioProduced():
                return to_pcm16(event.samples)
        return b""

    def fail(self, error: AntiphonError) -> None:
        """Nothing can be said among samples."""


class AudioEvents:
    """OpenAI's events, whose base64 pieces join up."""

    streamed = True
    content_type = "text/event-stream; charset=utf-8"

    def __init__(self, audio_format: str) -> None:
        self._bytes = AudioBytes(audio_format)
        self._base64 = Base64Stream()

    def add(self, event: Event) -> bytes:
        """What to send for an event; b"" when there is nothing yet."""
        sent = self._delta(self._base64.add(self._bytes.add(event)))
        if not isinstance(event, SegmentFinished):
            return sent
        done = SpeechDone(usage=_usage(event.usage))
        return self._delta(self._base64.flush()) + server_sent(msgspec.json.encode(done))

    def fail(self, error: AntiphonError) -> bytes:
        """The last event of an answer that fails."""
        return server_sent(error_json(error))

    def _delta(self, data: str) -> bytes:
        return server_sent(msgspec.json.encode(SpeechDelta(audio=data))) if data else b""


def _usage(usage: SegmentUsage) -> SpeechUsage:
    read, made = usage.prompt_tokens, usage.completion_audio_frames
    return SpeechUsage(input_tokens=read, output_tokens=made, total_tokens=read + made)
