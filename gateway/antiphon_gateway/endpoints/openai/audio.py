"""Encodes the audio of an HTTP answer. In events, the samples are replaced by bytes in the
requested format.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_gateway.media.encoding import AnswerEncoder, AudioEncoding, EncoderThreads
from antiphon_gateway.sessions.events import AudioProduced, Event, SegmentFinished, SegmentStarted


@dataclass(frozen=True, slots=True)
class AudioEncoded:
    """The next piece of the answer's audio file."""

    data: bytes


AnswerEvent = Event | AudioEncoded
"""An event of an HTTP answer. It uses `AudioEncoded` instead of `AudioProduced`."""


class AnswerAudio:
    """Encodes the audio of an answer, with a separate encoder for each choice. If `encoding` is
    None, audio is left out.
    """

    def __init__(self, encoding: AudioEncoding | None, threads: EncoderThreads) -> None:
        self._encoding = encoding
        self._threads = threads
        self._encoders: dict[int, AnswerEncoder] = {}

    async def encoded(self, event: Event, choice: int = 0) -> tuple[AnswerEvent, ...]:
        """Convert an event of a segment to events of the answer."""
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
