"""The audio of an HTTP answer: events in, with bytes of the wanted format in place of samples."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_gateway.media.encoding import AnswerEncoder, AudioEncoding, EncoderThreads
from antiphon_gateway.sessions.events import AudioProduced, Event, SegmentFinished, SegmentStarted


@dataclass(frozen=True, slots=True)
class AudioEncoded:
    """Some bytes of the answer's audio file."""

    data: bytes


AnswerEvent = Event | AudioEncoded
"""What an HTTP answer is made of: `AudioEncoded` instead of `AudioProduced`."""


class AnswerAudio:
    """Encodes the audio of an answer, of each choice by itself; without an `encoding` it is left
    out."""

    def __init__(self, encoding: AudioEncoding | None, threads: EncoderThreads) -> None:
        self._encoding = encoding
        self._threads = threads
        self._encoders: dict[int, AnswerEncoder] = {}

    async def encoded(self, event: Event, choice: int = 0) -> tuple[AnswerEvent, ...]:
        """What an event is for the answer."""
        encoder = self._encoders.get(choice)
        match event:
            case SegmentStarted() if self._encoding is not None and event.sample_rate_hz:
                rate_hz = event.sample_rate_hz
                self._encoders[choice] = await self._threads.start(self._encoding, rate_hz)
            case AudioProduced():
                data = b"" if encoder is None else await encoder.add(event.samples)
                return (AudioEncoded(data),) if data else ()
            case SegmentFinished() if encoder is not None:
                return (AudioEncoded(await encoder.finish()), event)
        return (event,)
