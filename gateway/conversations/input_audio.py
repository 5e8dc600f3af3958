"""The input audio buffer: what the microphone has heard and no item has yet. Pure and bounded."""

from __future__ import annotations

from antiphon.errors import InvalidArgument
from gateway.conversations.errors import NoAudio
from gateway.conversations.items import RecordedContent
from gateway.media.audio_out import SAMPLE_BYTES


class InputAudioBuffer:
    """16-bit mono samples of one rate, at most `max_s` of them."""

    def __init__(self, *, max_s: float) -> None:
        self._max_s = max_s
        self._pcm16 = bytearray()
        self._rate_hz = 0

    def append(self, pcm16: bytes, rate_hz: int) -> None:
        """Add samples. Raises `InvalidArgument` for too many, and for another rate."""
        if self._pcm16 and rate_hz != self._rate_hz:
            raise InvalidArgument(
                f"audio: the buffer holds {self._rate_hz} samples a second, and these are "
                f"{rate_hz}; commit or clear it before you change the format",
                field="audio",
            )
        if len(self._pcm16) + len(pcm16) > self._max_s * rate_hz * SAMPLE_BYTES:
            raise InvalidArgument(
                f"audio: the buffer would hold more than {self._max_s:g} seconds, the most that a "
                "recording may have; commit or clear it",
                field="audio",
            )
        self._rate_hz = rate_hz
        self._pcm16 += pcm16

    def clear(self) -> None:
        """Drop what is there."""
        self._pcm16.clear()

    def recorded(self) -> RecordedContent:
        """What is there, as a recording. Raises `NoAudio` when that is nothing."""
        if not self._pcm16:
            raise NoAudio
        return RecordedContent(bytes(self._pcm16), self._rate_hz)
