"""Events of a segment to a transcript: whole, or as server-sent events."""

from __future__ import annotations

import msgspec

from antiphon.errors import AntiphonError
from gateway.calls.events import SegmentFinished, SegmentStarted, SegmentUsage, TextProduced
from gateway.doors.http.audio import AnswerEvent
from gateway.doors.http.errors import error_json
from gateway.doors.http.server_sent import server_sent
from gateway.doors.http.transcription_usage import DurationUsage, transcription_usage
from gateway.doors.transcribe.schema import Transcription, TranscriptionDelta, TranscriptionDone

UNDETERMINED = "und"
"""ISO 639's code for a language that nobody has told."""


class WholeTranscript:
    """One JSON object, `verbose` or not, or the text alone where it is `plain`."""

    streamed = False
    encoding = None

    def __init__(self, *, plain: bool = False, verbose: bool = False, language: str = "") -> None:
        self.content_type = "text/plain; charset=utf-8" if plain else "application/json"
        self._plain = plain
        self._verbose = verbose
        self._language = language or UNDETERMINED
        self._seconds = 0.0
        self._text: list[str] = []

    def add(self, event: AnswerEvent, choice: int = 0) -> bytes:
        """What to send for an event; b"" when there is nothing yet."""
        match event:
            case SegmentStarted():
                self._seconds = event.input_audio_s
            case TextProduced():
                self._text.append(event.text)
            case SegmentFinished():
                text = "".join(self._text)
                if self._plain:
                    return text.encode(errors="replace")
                return msgspec.json.encode(self._whole(text, event.usage))
        return b""

    def fail(self, error: AntiphonError) -> None:
        """Nothing is sent before it is whole."""

    def _whole(self, text: str, usage: SegmentUsage) -> Transcription:
        if not self._verbose:
            return Transcription(text, transcription_usage(usage))
        seconds = round(self._seconds, 3)
        return Transcription(text, DurationUsage(seconds), "transcribe", self._language, seconds)


class TranscriptEvents:
    """OpenAI's events."""

    streamed = True
    encoding = None
    content_type = "text/event-stream; charset=utf-8"

    def __init__(self) -> None:
        self._text: list[str] = []

    def add(self, event: AnswerEvent, choice: int = 0) -> bytes:
        """What to send for an event; b"" when there is nothing yet."""
        match event:
            case TextProduced() if event.text:
                self._text.append(event.text)
                return server_sent(msgspec.json.encode(TranscriptionDelta(event.text)))
            case SegmentFinished():
                done = TranscriptionDone("".join(self._text), transcription_usage(event.usage))
                return server_sent(msgspec.json.encode(done))
        return b""

    def fail(self, error: AntiphonError) -> bytes:
        """The last event of an answer that fails."""
        return server_sent(error_json(error))
