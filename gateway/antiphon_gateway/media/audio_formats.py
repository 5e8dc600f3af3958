"""The audio formats that a client can request, with incremental encoders.

Output is never changed later, so it can be sent as soon as a piece has been encoded. This means
that headers can't contain lengths. If a `whole` file is requested, its encoder returns everything
at the end, including the lengths.
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

# By default, libsndfile collects one second of audio in a page before writing it. The minimum that
# it supports is 50 ms.
OGG_PAGE_MS = 60.0
_SET_OGG_PAGE_LATENCY_MS = 0x1302

_MP3_RATES_HZ = (8_000, 11_025, 12_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000)
_OPUS_RATES_HZ = (8_000, 12_000, 16_000, 24_000, 48_000)
_AAC_RATES_HZ = (7_350, *_MP3_RATES_HZ, 64_000, 88_200, 96_000)


class AudioEncoder(Protocol):
    """Encodes mono float32 samples to the bytes of a single file."""

    def add(self, samples: Tensor) -> bytes:
        """Return the bytes for the samples, or b"" if there are none yet."""
        ...

    def finish(self) -> bytes:
        """Return the remaining bytes of the file."""
        ...


@dataclass(frozen=True, slots=True)
class AudioFormat:
    """An audio format. `rates_hz` contains the sample rates that it supports. If this is empty, all
    rates are supported.
    """

    media_type: str
    rates_hz: tuple[int, ...] = ()
    # libsndfile's name for the container. It is empty if another encoder is used.
    container: str = ""
    subtype: str = ""
    settings: Mapping[str, object] = field(default_factory=dict)
    # Whether common readers reject a header that doesn't contain the length.
    needs_length: bool = False

    def rate_for(self, rate_hz: int) -> int:
        """Return the rate itself if it is supported. Otherwise, return the next higher supported
        rate, or the highest one.
        """
        if not self.rates_hz:
            return rate_hz
        return min((each for each in self.rates_hz if each >= rate_hz), default=self.rates_hz[-1])


FORMATS: Mapping[str, AudioFormat] = {
    "wav": AudioFormat("audio/wav"),
    "pcm": AudioFormat("audio/pcm"),
    # 64 kbit/s at 24 kHz. With a constant bit rate, players can determine times without a header.
    "mp3": AudioFormat(
        "audio/mpeg",
        _MP3_RATES_HZ,
        "MP3",
        "MPEG_LAYER_III",
        {"bitrate_mode": "CONSTANT", "compression_level": 0.6},
    ),
    "opus": AudioFormat("audio/ogg", _OPUS_RATES_HZ, "OGG", "OPUS"),
    # The lowest compression level has the shortest blocks, which are 48 ms long at 24 kHz.
    "flac": AudioFormat(
        "audio/flac", (), "FLAC", "PCM_16", {"compression_level": 0.0}, needs_length=True
    ),
    "aac": AudioFormat("audio/aac", _AAC_RATES_HZ),
}


class PcmEncoder:
    """Encodes 16-bit samples, optionally after a WAV header."""

    def __init__(self, rate_hz: int, *, header: bool, whole: bool) -> None:
        self._rate_hz = rate_hz
        self._whole = whole
        self._header = header
        self._parts: list[bytes] = []
        self._begun = False

    def add(self, samples: Tensor) -> bytes:
        """Implements `AudioEncoder`."""
        data = to_pcm16(samples)
        if self._whole:
            self._parts.append(data)
            return b""
        return self._opening() + data

    def finish(self) -> bytes:
        """Implements `AudioEncoder`."""
        if not self._whole:
            return self._opening()
        data = b"".join(self._parts)
        return wav_file(data, self._rate_hz) if self._header else data

    def _opening(self) -> bytes:
        begun, self._begun = self._begun, True
        return wav_header(self._rate_hz) if self._header and not begun else b""


class SoundFileEncoder:
    """An encoder for formats that libsndfile can write. The samples must have a rate that the
    format supports.
    """

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
            # soundfile doesn't define this libsndfile command.
            page_ms = soundfile._ffi.new("double *", OGG_PAGE_MS)
            soundfile._snd.sf_command(self._file._file, _SET_OGG_PAGE_LATENCY_MS, page_ms, 8)

    def add(self, samples: Tensor) -> bytes:
        """Implements `AudioEncoder`."""
        # For a lossless format, these are exactly the same samples as in `pcm`.
        self._file.write(pcm16_of(samples) if self._exact else np.clip(samples, -1.0, 1.0))
        return self._taken()

    def finish(self) -> bytes:
        """Implements `AudioEncoder`."""
        self._file.close()
        return self._sink.getvalue() if isinstance(self._sink, io.BytesIO) else self._taken()

    def _taken(self) -> bytes:
        if isinstance(self._sink, io.BytesIO):
            return b""
        data = self._sink.take()
        if data and self._drops_first_frame:
            # LAME reserves this frame for a header that it writes once the length is known. If it
            # is left as it is, it plays as silence.
            self._drops_first_frame = False
            data = data[frame_at(data, 0)[0] :]
        return data


class ForwardSink:
    """A file that can only grow and whose bytes are removed once they have been written.

    Anything that isn't written at the end is lost. An example is the length in a header that has
    already been sent.
    """

    def __init__(self) -> None:
        self._waiting = bytearray()
        self._end = self._position = 0

    def write(self, data: bytes) -> int:
        """Append the bytes if they are written at the end of the file."""
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
        """Return what has been written since the last call."""
        data = bytes(self._waiting)
        self._waiting.clear()
        return data
