"""The audio of a live conversation. Bytes in the transmission format are converted to samples and
back, piece by piece.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import soxr

from antiphon.errors import InvalidArgument
from antiphon.values.chunk import Tensor
from antiphon_gateway.media import g711
from antiphon_gateway.media.audio_out import SAMPLE_BYTES, pcm16_of
from antiphon_gateway.media.decoding.bounds import RejectedRecording
from antiphon_gateway.media.decoding.containers import WAV, unmistakable_container
from antiphon_gateway.media.decoding.wav import read_header
from antiphon_gateway.media.pcm_recording import PcmRecording


@dataclass(frozen=True, slots=True)
class LiveFormat:
    """The transmission format, which is always mono. It consists of either 16-bit little-endian
    samples or bytes in a G.711 law.
    """

    name: str
    rate_hz: int
    companding: g711.Companding | None = None

    @property
    def sample_bytes(self) -> int:
        """The number of bytes per sample."""
        return SAMPLE_BYTES if self.companding is None else 1

    def pcm16(self, data: bytes) -> bytes:
        """Return 16-bit samples at this format's sample rate."""
        return data if self.companding is None else self.companding.decode(data)


PCM16 = LiveFormat("audio/pcm", 24_000)
MU_LAW = LiveFormat("audio/pcmu", g711.RATE_HZ, g711.MU_LAW)
A_LAW = LiveFormat("audio/pcma", g711.RATE_HZ, g711.A_LAW)
_WAV_SUBTYPES = {PCM16.name: "PCM_16", MU_LAW.name: "ULAW", A_LAW.name: "ALAW"}
LIVE_FORMATS = {each.name: each for each in (PCM16, MU_LAW, A_LAW)}


def bare_samples(data: bytes, wanted: LiveFormat, field: str) -> bytes:
    """Return the samples of audio that is supposed to be raw, without a container.

    A WAV file in the same format is accepted, and its samples are returned. Any other file would be
    heard as noise, so `InvalidArgument` is raised.
    """
    found = unmistakable_container(data)
    if found is None:
        return data
    what = f"is a {found.name} file"
    if found is WAV:
        try:
            header = read_header(data)
        except RejectedRecording as error:
            what = str(error)
        else:
            stated = (header.subtype, header.endian, header.channels, header.rate_hz)
            if stated == (_WAV_SUBTYPES[wanted.name], "LITTLE", 1, wanted.rate_hz):
                return data[header.start : header.stop]
            what = f"is a WAV file ({header.subtype}, {header.channels} x {header.rate_hz} Hz)"
    raise InvalidArgument(
        f"{field}: {what}; send {wanted.name} without a container, mono at {wanted.rate_hz} Hz",
        field=field,
    )


class AppendedFiles:
    """Checks pieces of appended audio for container headers.

    A buffer may start with a WAV file that contains raw samples. If a piece starts any other type
    of file, the pieces after it belong to that file, until the buffer is cleared or committed, or
    until a readable file starts. `clear` is the name of the command that clears the buffer.
    """

    def __init__(self, clear: str) -> None:
        self._clear = clear
        self.begun = False
        """Whether the buffer contains samples, in which case further pieces aren't checked."""
        self._rejected = False

    def bare(self, data: bytes, wanted: LiveFormat, field: str) -> bytes:
        """Return the samples in the piece. Raises `InvalidArgument` if the piece belongs to a file,
        in which case it must be dropped.

        Call `begin` once the samples have been used.
        """
        if self.begun or not data:
            return data
        try:
            samples = bare_samples(data, wanted, field)
        except InvalidArgument:
            self._rejected = True
            raise
        if self._rejected and len(samples) == len(data):
            raise InvalidArgument(
                f"{field}: was not used, because it follows a rejected part of a file; send "
                f"{self._clear}, then {wanted.name} without a container",
                field=field,
            )
        return samples

    def begin(self, data: bytes) -> None:
        """Record that the piece has been used. Unless the piece was empty, it is followed by
        samples.
        """
        self.begun = self.begun or bool(data)

    def forget(self) -> None:
        """Reset the state, because the buffer is now empty."""
        self.begun = self._rejected = False


def recoded(recording: PcmRecording, wanted: LiveFormat) -> bytes | bytearray:
    """Return a complete recording in the given format."""
    if wanted.companding is None and recording.rate_hz == wanted.rate_hz:
        return recording.pcm16
    encoder = LiveEncoder(wanted, recording.rate_hz)
    samples = np.frombuffer(recording.pcm16, "<i2").astype(np.float32) / 32767.0
    return encoder.add(samples) + encoder.finish()


class LiveEncoder:
    """Encodes the float32 samples of one utterance at `rate_hz` as they arrive.

    Joining the pieces gives the same result as encoding everything at once. If the sample rate has
    to be converted, the resampler keeps the last few tens of milliseconds until `finish`.
    """

    def __init__(self, wanted: LiveFormat, rate_hz: int) -> None:
        self._wanted = wanted
        self._stream: soxr.ResampleStream | None = None
        if rate_hz != wanted.rate_hz:
            self._stream = soxr.ResampleStream(rate_hz, wanted.rate_hz, 1, dtype="float32")

    def add(self, samples: Tensor) -> bytes:
        """Return the next piece. If the resampler keeps all of it, returns b""."""
        return self._encoded(samples, last=False)

    def finish(self) -> bytes:
        """Return what the resampler has kept. Nothing can be added after this."""
        if self._stream is None:
            return b""
        return self._encoded(np.zeros(0, np.float32), last=True)

    def _encoded(self, samples: Tensor, *, last: bool) -> bytes:
        if self._stream is not None:
            samples = self._stream.resample_chunk(samples, last=last)
        pcm16 = pcm16_of(samples)
        if self._wanted.companding is None:
            return pcm16.tobytes()
        return self._wanted.companding.encode(pcm16)
