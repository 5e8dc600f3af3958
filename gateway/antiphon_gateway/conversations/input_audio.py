"""A buffer for input audio that isn't part of an item yet. This module performs no I/O."""

from __future__ import annotations

from antiphon.errors import InvalidArgument
from antiphon_gateway.conversations.errors import NoAudio
from antiphon_gateway.media.audio_out import SAMPLE_BYTES
from antiphon_gateway.media.pcm_recording import PcmRecording


class InputAudioBuffer:
    """A buffer for up to `max_s` seconds of 16-bit mono samples. All samples must have the same
    rate.

    Positions are counted in samples from the start of the conversation, even if those samples have
    already been removed from the buffer.
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
        """Return whether there is room for the audio."""
        return len(self._pcm16) + len(pcm16) <= self._max_s * rate_hz * SAMPLE_BYTES

    def room_bytes(self, rate_hz: int) -> int:
        """Return how much more audio fits into the buffer. If its rate would change, returns 0."""
        if rate_hz != self.rate_hz:
            return 0
        return int(self._max_s * rate_hz) * SAMPLE_BYTES - len(self._pcm16)

    def check_length(self, pcm16: bytes, rate_hz: int) -> None:
        """Raise `InvalidArgument` if the audio is too long even for an empty buffer."""
        if len(pcm16) > self._max_s * rate_hz * SAMPLE_BYTES:
            raise InvalidArgument(
                f"audio: is longer than {self._max_s:g} seconds, the maximum length of a "
                "recording; send it in smaller pieces",
                field="audio",
            )

    def append(self, pcm16: bytes, rate_hz: int) -> None:
        """Append samples. Raises `InvalidArgument` if there are too many samples or if their rate
        differs from the buffer's rate.
        """
        if self._pcm16 and rate_hz != self.rate_hz:
            raise InvalidArgument(
                f"audio: the buffer contains audio at {self.rate_hz} Hz, but this audio has "
                f"{rate_hz} Hz; commit or clear the buffer before you change the format",
                field="audio",
            )
        if not self.has_room(pcm16, rate_hz):
            raise InvalidArgument(
                f"audio: the buffer would become longer than {self._max_s:g} seconds, the "
                "maximum length of a recording; commit or clear it",
                field="audio",
            )
        if self.rate_hz and rate_hz != self.rate_hz:
            self.start = self.start * rate_hz // self.rate_hz
        self.rate_hz = rate_hz
        self._pcm16 += pcm16

    @property
    def size_bytes(self) -> int:
        """The size of the buffered audio in bytes."""
        return len(self._pcm16)

    def clear(self) -> None:
        """Discard all buffered audio."""
        self.drop_before(self.end)

    def drop_before(self, position: int) -> None:
        """Discard all audio before a position."""
        if position > self.start:
            position = min(position, self.end)
            del self._pcm16[: (position - self.start) * SAMPLE_BYTES]
            self.start = position

    def cut(self, start: int, stop: int) -> bytes:
        """Return those samples between `start` and `stop` that are still in the buffer."""
        with memoryview(self._pcm16) as whole:
            return bytes(whole[start * SAMPLE_BYTES : stop * SAMPLE_BYTES])

    def take(self, turn: int, end: int | None = None) -> PcmRecording:
        """Remove the audio up to the position `end` and return it as the recording of a turn. If
        `end` is None, all of the audio is removed.

        Only the audio after `end` is copied. Raises `NoAudio` if the buffer is empty.
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
        """Convert a position to seconds."""
        return position / self.rate_hz if self.rate_hz else 0.0
