"""Converts the events of a segment to audio, either as raw bytes or as server-sent events."""

from __future__ import annotations

import msgspec

from antiphon.errors import AntiphonError
from antiphon_gateway.endpoints.http.errors import error_json
from antiphon_gateway.endpoints.http.server_sent import CONTENT_TYPE as SERVER_SENT
from antiphon_gateway.endpoints.http.server_sent import server_sent
from antiphon_gateway.endpoints.openai.audio import AnswerEvent, AudioEncoded
from antiphon_gateway.endpoints.openai.read_aloud.schema import SpeechDelta, SpeechDone, SpeechUsage
from antiphon_gateway.media.audio_out import Base64Stream
from antiphon_gateway.media.encoding import AudioEncoding
from antiphon_gateway.sessions.events import SegmentFinished, SegmentUsage


class AudioBytes:
    """The audio as a file. It is sent as it is generated, unless its `encoding` requires the
    complete audio.

    If an error occurs after the first byte, it can't be reported, so the connection is closed.
    """

    def __init__(self, encoding: AudioEncoding) -> None:
        self.encoding = encoding
        self.streamed = not encoding.whole
        self.content_type = encoding.media_type

    def add(self, event: AnswerEvent, choice: int = 0) -> bytes:
        """Return what to send for an event."""
        return event.data if isinstance(event, AudioEncoded) else b""

    def fail(self, error: AntiphonError) -> None:
        """Do nothing, because an audio file can't contain an error."""


class AudioEvents:
    """OpenAI's events. Their base64 pieces can simply be concatenated."""

    streamed = True
    content_type = SERVER_SENT

    def __init__(self, encoding: AudioEncoding) -> None:
        self.encoding = encoding
        self._base64 = Base64Stream()

    def add(self, event: AnswerEvent, choice: int = 0) -> bytes:
        """Return the data to send for an event, or b"" if there is nothing to send yet."""
        match event:
            case AudioEncoded():
                return self._delta(self._base64.add(event.data))
            case SegmentFinished():
                done = SpeechDone(usage=_usage(event.usage))
                return self._delta(self._base64.flush()) + server_sent(msgspec.json.encode(done))
        return b""

    def fail(self, error: AntiphonError) -> bytes:
        """Return the last event of an answer that fails."""
        return server_sent(error_json(error))

    def _delta(self, data: str) -> bytes:
        return server_sent(msgspec.json.encode(SpeechDelta(audio=data))) if data else b""


def _usage(usage: SegmentUsage) -> SpeechUsage:
    read, made = usage.prompt_tokens, usage.completion_audio_frames
    return SpeechUsage(input_tokens=read, output_tokens=made, total_tokens=read + made)
