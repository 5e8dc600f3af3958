"""Events of a segment to audio, as it comes: the bare bytes, or server-sent events."""

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
    """The file as it is generated, or as a whole if its `encoding` requires it.

    An error after the first byte cannot be reported; the connection is closed.
    """

    def __init__(self, encoding: AudioEncoding) -> None:
        self.encoding = encoding
        self.streamed = not encoding.whole
        self.content_type = encoding.media_type

    def add(self, event: AnswerEvent, choice: int = 0) -> bytes:
        """What to send for an event."""
        return event.data if isinstance(event, AudioEncoded) else b""

    def fail(self, error: AntiphonError) -> None:
        """Do nothing: a file cannot contain an error."""


class AudioEvents:
    """OpenAI's events, whose base64 pieces join up."""

    streamed = True
    content_type = SERVER_SENT

    def __init__(self, encoding: AudioEncoding) -> None:
        self.encoding = encoding
        self._base64 = Base64Stream()

    def add(self, event: AnswerEvent, choice: int = 0) -> bytes:
        """What to send for an event; b"" when there is nothing yet."""
        match event:
            case AudioEncoded():
                return self._delta(self._base64.add(event.data))
            case SegmentFinished():
                done = SpeechDone(usage=_usage(event.usage))
                return self._delta(self._base64.flush()) + server_sent(msgspec.json.encode(done))
        return b""

    def fail(self, error: AntiphonError) -> bytes:
        """The last event of an answer that fails."""
        return server_sent(error_json(error))

    def _delta(self, data: str) -> bytes:
        return server_sent(msgspec.json.encode(SpeechDelta(audio=data))) if data else b""


def _usage(usage: SegmentUsage) -> SpeechUsage:
    read, made = usage.prompt_tokens, usage.completion_audio_frames
    return SpeechUsage(input_tokens=read, output_tokens=made, total_tokens=read + made)
