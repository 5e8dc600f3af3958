"""The audio of an HTTP answer: events in, with bytes of the wanted format in place of samples."""

from __future__ import annotations

from dataclasses import dataclass

from gateway.calls.events import AudioProduced, Event, SegmentFinished, SegmentStarted
from gateway.media.encoding import AnswerEncoder, AudioEncoding, EncoderThreads


@dataclass(frozen=True, slots=True)
class AudioEncoded:
    """Some bytes of the answer's audio file."""

    data: bytes


AnswerEvent = Event | AudioEncoded
"""What an HTTP answer is made of: `AudioEncoded` instead of `AudioProduced`."""


class AnswerAudio:
    """Encodes the audio of one answer; without an `encoding` it is left out."""

    def __init__(self, encoding: AudioEncoding | None, threads: EncoderThreads) -> None:
        self._encoding = encoding
        self._threads = threads
        self._encoder: AnswerEncoder | None = None

    async def encoded(self, event: Event) -> tuple[AnswerEvent, ...]:
        """What an event is for the answer."""
        match event:
            case SegmentStarted() if self._encoding is not None and event.sample_rate_hz:
                self._encoder = await self._threads.start(self._encoding, event.sample_rate_hz)
            case AudioProduced():
                data = b"" if self._encoder is None else await self._encoder.add(event.samples)
                return (AudioEncoded(data),) if data else ()
            case SegmentFinished() if self._encoder is not None:
                return (AudioEncoded(await self._encoder.finish()), event)
        return (event,)
