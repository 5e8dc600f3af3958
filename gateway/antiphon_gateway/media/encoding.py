"""Encodes an answer's audio on threads, in the format and at the speed requested by the client."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar, TypeVarTuple

import numpy as np
import soxr

from antiphon.errors import InvalidArgument, NotImplementedYet
from antiphon.values.chunk import Tensor
from antiphon.values.segment import Delivery
from antiphon_gateway.media.audio_formats import FORMATS, AudioEncoder, PcmEncoder, SoundFileEncoder
from antiphon_gateway.media.pyav import (
    MAX_SPEED,
    MIN_SPEED,
    REMEDY,
    AacEncoder,
    Tempo,
    there_is_pyav,
)

Given = TypeVarTuple("Given")
Made = TypeVar("Made")

_NOTHING = np.empty(0, np.float32)


@dataclass(frozen=True, slots=True)
class AudioEncoding:
    """A format in `FORMATS` and the factor by which the speech is sped up.

    The output of a `whole` format is only available at the end, and its headers contain the length.
    """

    name: str
    speed: float = 1.0
    whole: bool = False

    @property
    def media_type(self) -> str:
        """The media type of the format."""
        return FORMATS[self.name].media_type

    @property
    def light(self) -> bool:
        """Whether encoding is so cheap that it doesn't need a thread."""
        return self.name in ("wav", "pcm") and self.speed == 1.0


def leaves_whole(name: str, delivery: Delivery | None) -> bool:
    """Return whether a file in this format is sent only when it is complete, which allows its
    header to contain the length.

    This depends on the delivery. If the delivery is None, it depends on the format. FLAC files are
    then sent when they are complete, because libsndfile can't read a header without a length, and
    libFLAC rejects a wrong length.
    """
    if delivery is None:
        return FORMATS[name].needs_length
    return delivery is Delivery.WHOLE


def available_formats() -> tuple[str, ...]:
    """Return the formats that are available."""
    return tuple(name for name in FORMATS if name != "aac" or there_is_pyav())


def check_format(name: str, known: Iterable[str], field: str) -> None:
    """Raise `InvalidArgument` if the format is unknown, and `NotImplementedYet` if it isn't
    installed.
    """
    if name not in (known := tuple(known)):
        raise InvalidArgument(
            f"{field}: unsupported format {name!r}; use one of: {', '.join(known)}", field=field
        )
    if name == "aac" and not there_is_pyav():
        raise NotImplementedYet(
            f"{field}: aac is not available on this gateway; {REMEDY}", field=field
        )


def check_speed(speed: float, field: str = "speed") -> None:
    """Raise `InvalidArgument` if the speed is out of range, and `NotImplementedYet` if no speed
    other than 1 is supported.
    """
    if not MIN_SPEED <= speed <= MAX_SPEED:
        raise InvalidArgument(
            f"{field}: must be from {MIN_SPEED:g} to {MAX_SPEED:g}, got {speed:g}", field=field
        )
    if speed != 1.0 and not there_is_pyav():
        raise NotImplementedYet(
            f"{field}: the speed can't be changed on this gateway; {REMEDY}", field=field
        )


class Resampler:
    """Converts samples to a different rate as they arrive."""

    def __init__(self, rate_hz: int, to_hz: int) -> None:
        self._stream = soxr.ResampleStream(rate_hz, to_hz, 1, dtype="float32")

    def add(self, samples: Tensor) -> Tensor:
        """Return the samples that won't change any more."""
        found: Tensor = self._stream.resample_chunk(np.ascontiguousarray(samples, np.float32))
        return found

    def finish(self) -> Tensor:
        """Return the remaining samples."""
        found: Tensor = self._stream.resample_chunk(_NOTHING, last=True)
        return found


class EncodingSteps:
    """The speed, sample rate and format of an answer. They are applied in this order."""

    def __init__(self, encoding: AudioEncoding, rate_hz: int) -> None:
        audio_format = FORMATS[encoding.name]
        to_hz = audio_format.rate_for(rate_hz)
        self._steps: list[Tempo | Resampler] = []
        if encoding.speed != 1.0:
            self._steps.append(Tempo(encoding.speed, rate_hz))
        if to_hz != rate_hz:
            self._steps.append(Resampler(rate_hz, to_hz))
        self._encoder = _encoder(encoding, to_hz)

    def add(self, samples: Tensor) -> bytes:
        """Return the bytes for these samples."""
        for step in self._steps:
            samples = step.add(samples)
        return self._encoder.add(samples)

    def finish(self) -> bytes:
        """Return the remaining bytes."""
        rest = _NOTHING
        for step in self._steps:
            rest = np.concatenate((step.add(rest), step.finish()))
        return self._encoder.add(rest) + self._encoder.finish()


def _encoder(encoding: AudioEncoding, rate_hz: int) -> AudioEncoder:
    audio_format = FORMATS[encoding.name]
    if audio_format.container:
        return SoundFileEncoder(audio_format, rate_hz, whole=encoding.whole)
    if encoding.name == "aac":
        return AacEncoder(rate_hz, whole=encoding.whole)
    return PcmEncoder(rate_hz, header=encoding.name == "wav", whole=encoding.whole)


class EncoderThreads:
    """The threads on which the audio of all answers is encoded. Close it when no answer needs it
    any more.

    Each answer waits for one second of its audio at a time, so there are never more waiting pieces
    than answers.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "encode")

    async def start(self, encoding: AudioEncoding, rate_hz: int) -> AnswerEncoder:
        """Return an encoder for one answer."""
        pool = None if encoding.light else self._pool
        steps = await _run(pool, EncodingSteps, encoding, rate_hz)
        return AnswerEncoder(steps, rate_hz, pool)

    def close(self) -> None:
        """Don't start any more work."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class AnswerEncoder:
    """Encodes a single answer, on a thread if threads are available. If a call is cancelled, no
    other answer is affected.
    """

    def __init__(self, steps: EncodingSteps, rate_hz: int, pool: ThreadPoolExecutor | None) -> None:
        self._steps = steps
        self._rate_hz = rate_hz
        self._pool = pool

    async def add(self, samples: Tensor) -> bytes:
        """Return the bytes for the samples. After every second of audio, other answers get a
        turn.
        """
        parts = []
        for start in range(0, len(samples), self._rate_hz):
            second = samples[start : start + self._rate_hz]
            parts.append(await _run(self._pool, self._steps.add, second))
        return b"".join(parts)

    async def finish(self) -> bytes:
        """Return the remaining bytes."""
        return await _run(self._pool, self._steps.finish)


async def _run(
    pool: ThreadPoolExecutor | None, work: Callable[[*Given], Made], *args: *Given
) -> Made:
    """Do the work on a thread, or directly if there is no pool."""
    if pool is None:
        return work(*args)
    return await asyncio.get_running_loop().run_in_executor(pool, work, *args)
