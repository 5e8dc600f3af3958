"""Decodes a stream of events and joins them into a reply.

This module performs no I/O, so it can be used by both the blocking and the asyncio client.
"""

from __future__ import annotations

import wave
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from antiphon.client.events import (
    AudioDelta,
    Event,
    Finished,
    FunctionCallDelta,
    ImageDelta,
    MadeImage,
    StageReport,
    TextDelta,
    audio_from_proto,
    calls_from_proto,
    finished_from_proto,
    image_from_proto,
    progress_from_proto,
    text_from_proto,
)
from antiphon.errors import DataLoss, FailedPrecondition
from antiphon.v1 import speech_pb2
from antiphon.values.answer import FunctionCall, Usage
from antiphon.values.brief import brief
from antiphon.values.logprobs import TokenLogprob
from antiphon.values.segment import FinishReason
from antiphon.wire.convert import error_from_proto

ENDED_EARLY = "the stream ended before the answer was complete"
BYTES_PER_SAMPLE = 2


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer. `pcm16` contains 16-bit little-endian mono samples or is empty if the
    answer has no audio.

    `logprobs` is empty unless `top_logprobs` is set. It contains an entry for each text token.
    """

    text: str
    pcm16: bytes
    sample_rate_hz: int
    finish_reason: FinishReason
    usage: Usage
    reports: dict[str, StageReport]
    logprobs: tuple[TokenLogprob, ...] = ()
    images: tuple[MadeImage, ...] = ()
    calls: tuple[FunctionCall, ...] = ()

    def __repr__(self) -> str:
        return brief(self)

    @property
    def audio_s(self) -> float:
        """The length of the audio in seconds."""
        if not self.pcm16:
            return 0.0
        return len(self.pcm16) / (BYTES_PER_SAMPLE * self.sample_rate_hz)

    def save_wav(self, path: str | Path) -> Path:
        """Write the audio to a WAV file and return its path.

        Raises `FailedPrecondition` if the answer has no audio, and `OSError` if the file cannot be
        written.
        """
        if not self.pcm16:
            raise FailedPrecondition("the answer has no audio to save")
        with wave.open(str(path), "wb") as file:
            file.setnchannels(1)
            file.setsampwidth(BYTES_PER_SAMPLE)
            file.setframerate(self.sample_rate_hz)
            file.writeframes(self.pcm16)
        return Path(path)


def join_events(events: Iterable[Event], sample_rate_hz: int) -> Reply:
    """Join all events of a stream into a reply. Raises `DataLoss` if the last event is missing."""
    text: list[str] = []
    logprobs: list[TokenLogprob] = []
    audio: list[bytes] = []
    images: list[MadeImage] = []
    calls: list[FunctionCall] = []
    finished = None
    for event in events:
        match event:
            case TextDelta():
                text.append(event.text)
                logprobs += event.logprobs
            case AudioDelta():
                audio.append(event.pcm16)
            case ImageDelta():
                images += event.images
            case FunctionCallDelta():
                calls += event.calls
            case Finished():
                finished = event
    if finished is None:
        raise DataLoss(ENDED_EARLY)
    return Reply(
        text="".join(text),
        pcm16=b"".join(audio),
        sample_rate_hz=sample_rate_hz,
        finish_reason=finished.finish_reason,
        usage=finished.usage,
        reports=dict(finished.reports),
        logprobs=tuple(logprobs),
        images=tuple(images),
        calls=tuple(calls),
    )


class EventReader:
    """Decodes the messages of a single answer and checks that they arrive in order."""

    def __init__(self) -> None:
        self.session_id = ""
        self.model = ""
        self.sample_rate_hz = 0
        self.yielded = False
        self._finished = False
        self._samples = 0

    def read(self, message: speech_pb2.GenerateResponse) -> Event | None:
        """Return the event in a message, or None if the message doesn't contain an event.

        Raises the message's error, if it contains one, and `DataLoss` if the message is out of
        order.
        """
        kind = message.WhichOneof("event")
        if kind == "error":
            raise error_from_proto(message.error)
        if self._finished:
            raise DataLoss("the server sent more data after the end of the answer")
        if kind == "started":
            self._read_started(message.started)
            return None
        if kind is None:
            return None
        event = self._read_event(message)
        self.yielded = True
        return event

    def check_ended(self) -> None:
        """Raise `DataLoss` if the stream ended before the answer was complete."""
        if not self._finished:
            raise DataLoss(ENDED_EARLY)

    def check_untouched(self) -> None:
        """Raise `FailedPrecondition` if events have already been read."""
        if self.yielded:
            raise FailedPrecondition(
                "collect() needs the whole answer, but events have already been read"
            )

    def _read_started(self, started: speech_pb2.GenerateStarted) -> None:
        if self.model and (self.model, self.sample_rate_hz) != (
            started.model,
            started.sample_rate_hz,
        ):
            raise DataLoss(f"{started.model} continued an answer of {self.model}")
        self.session_id = started.session_id
        self.model = started.model
        self.sample_rate_hz = started.sample_rate_hz

    def _read_event(self, message: speech_pb2.GenerateResponse) -> Event:
        if message.HasField("text"):
            return text_from_proto(message.text)
        if message.HasField("audio"):
            return self._read_audio(audio_from_proto(message.audio))
        if message.HasField("image"):
            return image_from_proto(message.image)
        if message.HasField("progress"):
            return progress_from_proto(message.progress)
        if message.HasField("calls"):
            return calls_from_proto(message.calls)
        finished = finished_from_proto(message.finished)
        self._finished = True
        return finished

    def _read_audio(self, delta: AudioDelta) -> AudioDelta:
        """Return the delta after checking that it directly follows the previous one. Otherwise,
        there would be an audible click.
        """
        if delta.first_sample != self._samples:
            raise DataLoss(f"audio: expected sample {self._samples}, got {delta.first_sample}")
        self._samples += len(delta.pcm16) // BYTES_PER_SAMPLE
        return delta
