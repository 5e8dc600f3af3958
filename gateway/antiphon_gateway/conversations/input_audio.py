"""The input audio buffer: received audio that is not part of an item yet. Pure and bounded."""

from __future__ import annotations

from antiphon.errors import InvalidArgument
from antiphon_gateway.conversations.errors import NoAudio
from antiphon_gateway.media.audio_out import SAMPLE_BYTES
from antiphon_gateway.media.pcm_recording import PcmRecording


class InputAudioBuffer:
    """16-bit mono samples of one rate, at most `max_s` of them.

    Positions are samples since the conversation began, whether they are still here or not.
    """

    def __init__(self, *, max_s: float) -> None:
        self._max_s = max_s
        self._pcm16 = bytearray()
        self.rate_hz = 0
        self.start = 0

    @property
    def end(self) -> int:
        """The position after the last sample."""
        return self.start + len(self._pcm16) // SAMPLE_BYTES

    def has_room(self, pcm16: bytes, rate_hz: int) -> bool:
        """Whether so much more may be appended."""
        return len(self._pcm16) + len(pcm16) <= self._max_s * rate_hz * SAMPLE_BYTES

    def check_length(self, pcm16: bytes, rate_hz: int) -> None:
        """Raise `InvalidArgument` for what is too long by itself, whatever is there."""
        if len(pcm16) > self._max_s * rate_hz * SAMPLE_BYTES:
            raise InvalidArgument(
                f"audio: is longer than {self._max_s:g} seconds, the most that a recording may "
                "have; send it in pieces",
                field="audio",
            )

    def append(self, pcm16: bytes, rate_hz: int) -> None:
        """Add samples. Raises `InvalidArgument` for too many, and for another rate."""
        if self._pcm16 and rate_hz != self.rate_hz:
            raise InvalidArgument(
                f"audio: the buffer holds {self.rate_hz} samples a second, and these are "
                f"{rate_hz}; commit or clear it before you change the format",
                field="audio",
            )
        if not self.has_room(pcm16, rate_hz):
            raise InvalidArgument(
                f"audio: the buffer would hold more than {self._max_s:g} seconds, the most that a "
                "recording may have; commit or clear it",
                field="audio",
            )
        if self.rate_hz and rate_hz != self.rate_hz:
            self.start = self.start * rate_hz // self.rate_hz
        self.rate_hz = rate_hz
        self._pcm16 += pcm16

    @property
    def size_bytes(self) -> int:
        """What is there."""
        return len(self._pcm16)

    def clear(self) -> None:
        """Drop what is there."""
        self.drop_before(self.end)

    def drop_before(self, position: int) -> None:
        """Drop what is before a position, if it is still there."""
        if position > self.start:
            position = min(position, self.end)
            del self._pcm16[: (position - self.start) * SAMPLE_BYTES]
            self.start = position

    def cut(self, start: int, stop: int) -> bytes:
        """Samples `start` to `stop` of those that are here."""
        with memoryview(self._pcm16) as whole:
            return bytes(whole[start * SAMPLE_BYTES : stop * SAMPLE_BYTES])

    def take(self, turn: int, end: int | None = None) -> PcmRecording:
        """Remove and return the audio up to a position (None: all), as that turn.

        Copies only the audio after the position, not the turn. Raises `NoAudio`.
        """
        end = self.end if end is None else min(end, self.end)
        size = (end - self.start) * SAMPLE_BYTES
        if size <= 0:
            raise NoAudio
        taken: bytes | bytearray
        if size < len(self._pcm16) - size:
            taken = self.cut(0, end - self.start)
            self.drop_before(end)
        else:
            taken, self._pcm16 = self._pcm16, self._pcm16[size:]
            del taken[size:]
            self.start = end
        return PcmRecording(taken, self.rate_hz, turn)

    def seconds(self, position: int) -> float:
        """A position in seconds."""
        return position / self.rate_hz if self.rate_hz else 0.0
