"""Formats in which a client can have audio, and what encodes each, a piece at a time.

What comes of a piece may leave at once: nothing that was written is changed later, so headers
leave lengths open. An encoder of a `whole` file gives everything at its end, lengths included.
"""

from __future__ import annotations

import io
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
import soundfile

from antiphon.values.chunk import Tensor
from antiphon_gateway.media.audio_out import pcm16_of, to_pcm16, wav_file, wav_header
from antiphon_gateway.media.mp3 import frame_at

# libsndfile fills pages of a second before it writes one; less than 50 ms it does not take.
OGG_PAGE_MS = 60.0
_SET_OGG_PAGE_LATENCY_MS = 0x1302

_MP3_RATES_HZ = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
_OPUS_RATES_HZ = (8_000, 12_000, 16_000, 24_000, 48_000)
_AAC_RATES_HZ = (7_350, *_MP3_RATES_HZ, 64_000, 88_200, 96_000)


class AudioEncoder(Protocol):
    """Mono float32 samples to the bytes of one file."""

    def add(self, samples: Tensor) -> bytes:
        """What the samples amount to; b"" when there is nothing yet."""
        ...

    def finish(self) -> bytes:
        """The rest of the file."""
        ...


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """`rates_hz` are those that there are; empty: any."""

    media_type: str
    rates_hz: tuple[int, ...] = ()
    # By libsndfile's names; empty: another encoder's.
    container: str = ""
    subtype: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    # Whether common readers refuse a header that leaves the length open.
    needs_length: bool = False

    def rate_for(self, rate_hz: int) -> int:
        """The rate itself, or the next higher one that there is, or the highest."""
        if not self.rates_hz:
            return rate_hz
        return min((each for each in self.rates_hz if each >= rate_hz), default=self.rates_hz[-1])


FORMATS: Mapping[str, AudioFormat] = {
    "wav": AudioFormat("audio/wav"),
    "pcm": AudioFormat("audio/pcm"),
    # 64 kbit/s at 24 kHz. A constant rate, so that players can tell times without a header.
    "mp3": AudioFormat(
        "audio/mpeg",
        _MP3_RATES_HZ,
        "MP3",
        "MPEG_LAYER_III",
        {"bitrate_mode": "CONSTANT", "compression_level": 0.6},
    ),
    "opus": AudioFormat("audio/ogg", _OPUS_RATES_HZ, "OGG", "OPUS"),
    # The least compression has the shortest blocks, 48 ms at 24 kHz.
    "flac": AudioFormat(
        "audio/flac", (), "FLAC", "PCM_16", {"compression_level": 0.0}, needs_length=True
    ),
    "aac": AudioFormat("audio/aac", _AAC_RATES_HZ),
}


class PcmEncoder:
    """Encodes 16-bit samples, after a WAV header if wanted."""

    def __init__(self, rate_hz: int, *, header: bool, whole: bool) -> None:
        self._rate_hz = rate_hz
        self._whole = whole
        self._header = header
        self._parts: list[bytes] = []
        self._begun = False

    def add(self, samples: Tensor) -> bytes:
        """See `AudioEncoder`."""
        data = to_pcm16(samples)
        if self._whole:
            self._parts.append(data)
            return b""
        return self._opening() + data

    def finish(self) -> bytes:
        """See `AudioEncoder`."""
        if not self._whole:
            return self._opening()
        data = b"".join(self._parts)
        return wav_file(data, self._rate_hz) if self._header else data

    def _opening(self) -> bytes:
        begun, self._begun = self._begun, True
        return wav_header(self._rate_hz) if self._header and not begun else b""


class SoundFileEncoder:
    """A format that libsndfile writes. Samples are at a rate that the format has."""

    def __init__(self, audio_format: AudioFormat, rate_hz: int, *, whole: bool) -> None:
        self._sink = io.BytesIO() if whole else ForwardSink()
        self._file = soundfile.SoundFile(
            self._sink,
            "w",
            rate_hz,
            1,
            audio_format.subtype,
            format=audio_format.container,
            **audio_format.settings,
        )
        self._exact = audio_format.subtype == "PCM_16"
        self._drops_first_frame = audio_format.container == "MP3" and not whole
        if audio_format.container == "OGG":
            # soundfile has no name for this command of libsndfile's.
            page_ms = soundfile._ffi.new("double *", OGG_PAGE_MS)
            soundfile._snd.sf_command(self._file._file, _SET_OGG_PAGE_LATENCY_MS, page_ms, 8)

    def add(self, samples: Tensor) -> bytes:
        """See `AudioEncoder`."""
        # Where nothing is lost these are the very samples that `pcm` has.
        self._file.write(pcm16_of(samples) if self._exact else np.clip(samples, -1.0, 1.0))
        return self._taken()

    def finish(self) -> bytes:
        """See `AudioEncoder`."""
        self._file.close()
        return self._sink.getvalue() if isinstance(self._sink, io.BytesIO) else self._taken()

    def _taken(self) -> bytes:
        if isinstance(self._sink, io.BytesIO):
            return b""
        data = self._sink.take()
        if data and self._drops_first_frame:
            # LAME's, for a header that it would write when the length is known. As it is, it
            # plays as silence.
            self._drops_first_frame = False
            data = data[frame_at(data, 0)[0] :]
        return data


class ForwardSink:
    """A file that only grows, and whose bytes are taken away as they come.

    What is written anywhere else than at its end, such as the length in a header that has
    left already, is lost.
    """

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._end = self._position = 0

    def write(self, data: bytes) -> int:
        """Append the bytes if they go to the end."""
        if self._position == self._end:
            self._waiting += data
            self._end += len(data)
        self._position += len(data)
        return len(data)

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Return the position of the next bytes."""
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._end}[whence]
        self._position = origin + offset
        return self._position

    def tell(self) -> int:
        """Return the position of the next bytes."""
        return self._position

    def take(self) -> bytes:
        """What has come since the last time."""
        data = bytes(self._waiting)
        self._waiting.clear()
        return data
