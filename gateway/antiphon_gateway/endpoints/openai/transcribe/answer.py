"""Converts the events of a segment to a transcript, either complete or as server-sent events."""

from __future__ import annotations

from collections.abc import Mapping

import msgspec

from antiphon.errors import AntiphonError
from antiphon_gateway.endpoints.http.errors import error_json
from antiphon_gateway.endpoints.http.json_body import invalid
from antiphon_gateway.endpoints.http.server_sent import CONTENT_TYPE as SERVER_SENT
from antiphon_gateway.endpoints.http.server_sent import server_sent
from antiphon_gateway.endpoints.http.transcription_usage import DurationUsage, transcription_usage
from antiphon_gateway.endpoints.openai.audio import AnswerEvent
from antiphon_gateway.endpoints.openai.endpoint import JSON
from antiphon_gateway.endpoints.openai.logprobs import finite
from antiphon_gateway.endpoints.openai.transcribe.schema import (
    Transcription,
    TranscriptionDelta,
    TranscriptionDone,
)
from antiphon_gateway.endpoints.openai.transcribe.segments import srt, vtt, whole_segment
from antiphon_gateway.sessions.events import (
    SegmentFinished,
    SegmentStarted,
    SegmentUsage,
    TextProduced,
)

_PLAIN = "text/plain; charset=utf-8"
FORMATS: Mapping[str, str] = {
    "json": JSON,
    "text": _PLAIN,
    "verbose_json": JSON,
    "srt": _PLAIN,
    "vtt": "text/vtt; charset=utf-8",
}
"""The formats of a complete transcript and their media types."""
_STREAMED = ("json", "text")
UNDETERMINED = "und"
"""The ISO 639 code for an unknown language."""


def checked_format(wanted: str, *, streamed: bool) -> str:
    """Return the name of one of the `FORMATS`. Raises `InvalidArgument` if the name is unknown or
    if the answer is `streamed` and the format doesn't support that.
    """
    name = wanted.strip().lower()
    if name not in FORMATS:
        known = ", ".join(FORMATS)
        raise invalid("response_format", f"unsupported format {name!r}; use one of: {known}")
    if streamed and name not in _STREAMED:
        raise invalid("response_format", f"{name} can't be combined with stream: true")
    return name


class WholeTranscript:
    """A complete transcript in one of the `FORMATS`. `language` and `temperature` are the client's
    values, and `task` is OpenAI's name for the task.
    """

    streamed = False
    encoding = None

    def __init__(
        self,
        wanted: str,
        language: str = "",
        temperature: float | None = None,
        *,
        task: str = "transcribe",
    ) -> None:
        self._task = task
        self.content_type = FORMATS[wanted]
        self._wanted = wanted
        self._language = language or UNDETERMINED
        self._temperature = temperature
        self._seconds = 0.0
        self._text: list[str] = []
        self._tokens: list[int] = []
        self._logprobs: list[float] = []

    def add(self, event: AnswerEvent, choice: int = 0) -> bytes:
        """Return the data to send for an event, or b"" if there is nothing to send yet."""
        match event:
            case SegmentStarted():
                self._seconds = event.input_audio_s
            case TextProduced():
                self._text.append(event.text)
                if self._wanted == "verbose_json":
                    self._tokens += map(int, event.ids)
                    self._logprobs += (finite(each.logprob) for each in event.logprobs)
            case SegmentFinished():
                return self._whole("".join(self._text), event.usage)
        return b""

    def fail(self, error: AntiphonError) -> None:
        """Do nothing, because nothing is sent until the answer is complete."""

    def _whole(self, text: str, usage: SegmentUsage) -> bytes:
        match self._wanted:
            case "text":
                return _utf8(text)
            case "srt":
                return _utf8(srt(text, self._seconds))
            case "vtt":
                return _utf8(vtt(text, self._seconds))
            case "verbose_json":
                return msgspec.json.encode(self._verbose(text))
        return msgspec.json.encode(Transcription(text, transcription_usage(usage)))

    def _verbose(self, text: str) -> Transcription:
        seconds = round(self._seconds, 3)
        return Transcription(
            text,
            DurationUsage(seconds),
            self._task,
            self._language,
            seconds,
            whole_segment(text, seconds, self._tokens, self._logprobs, self._temperature),
        )


class TranscriptEvents:
    """OpenAI's events."""

    streamed = True
    encoding = None
    content_type = SERVER_SENT

    def __init__(self) -> None:
        self._text: list[str] = []

    def add(self, event: AnswerEvent, choice: int = 0) -> bytes:
        """Return the data to send for an event, or b"" if there is nothing to send yet."""
        match event:
            case TextProduced() if event.text:
                self._text.append(event.text)
                return server_sent(msgspec.json.encode(TranscriptionDelta(event.text)))
            case SegmentFinished():
                done = TranscriptionDone("".join(self._text), transcription_usage(event.usage))
                return server_sent(msgspec.json.encode(done))
        return b""

    def fail(self, error: AntiphonError) -> bytes:
        """Return the last event of an answer that fails."""
        return server_sent(error_json(error))


def _utf8(text: str) -> bytes:
    return text.encode(errors="replace")
