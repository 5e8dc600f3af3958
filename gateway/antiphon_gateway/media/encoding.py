"""An answer's audio in the format and at the speed that its client wants, on threads."""

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
    """A format of `FORMATS`, and the factor by which the speech is sped up.

    The output of a `whole` format comes only at the end, and its headers contain the length.
    """

    name: str
    speed: float = 1.0
    whole: bool = False

    @property
    def media_type(self) -> str:
        """Of the format."""
        return FORMATS[self.name].media_type

    @property
    def light(self) -> bool:
        """Whether it costs so little that it needs no thread."""
        return self.name in ("wav", "pcm") and self.speed == 1.0


def leaves_whole(name: str, delivery: Delivery | None) -> bool:
    """Whether a file of that format leaves when it is complete, so that its header has its length.

    The delivery decides; None leaves it to the format. FLAC is then whole: libsndfile does not read
    a header whose length is open, and one with a wrong length is refused by libFLAC, too.
    """
    if delivery is None:
        return FORMATS[name].needs_length
    return delivery is Delivery.WHOLE


def available_formats() -> tuple[str, ...]:
    """The formats that there are here."""
    return tuple(name for name in FORMATS if name != "aac" or there_is_pyav())


def check_format(name: str, known: Iterable[str], field: str) -> None:
    """Raise `InvalidArgument` for another format, `NotImplementedYet` for one that is not
    installed."""
    if name not in (known := tuple(known)):
        raise InvalidArgument(
            f"{field}: no format {name!r}; there are: {', '.join(known)}", field=field
        )
    if name == "aac" and not there_is_pyav():
        raise NotImplementedYet(f"{field}: there is no aac here; {REMEDY}", field=field)


def check_speed(speed: float, field: str = "speed") -> None:
    """Raise `InvalidArgument` for a speed out of range, `NotImplementedYet` where only 1 works."""
    if not MIN_SPEED <= speed <= MAX_SPEED:
        raise InvalidArgument(
            f"{field}: must be from {MIN_SPEED:g} to {MAX_SPEED:g}, is {speed:g}", field=field
        )
    if speed != 1.0 and not there_is_pyav():
        raise NotImplementedYet(f"{field}: speech is not stretched here; {REMEDY}", field=field)


class Resampler:
    """Samples at another rate, as they come."""

    def __init__(self, rate_hz: int, to_hz: int) -> None:
        self._stream = soxr.ResampleStream(rate_hz, to_hz, 1, dtype="float32")

    def add(self, samples: Tensor) -> Tensor:
        """Return the samples that are final so far."""
        found: Tensor = self._stream.resample_chunk(np.ascontiguousarray(samples, np.float32))
        return found

    def finish(self) -> Tensor:
        """The rest."""
        found: Tensor = self._stream.resample_chunk(_NOTHING, last=True)
        return found


class EncodingSteps:
    """Speed, rate and format of one answer, one after the other."""

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
        """The bytes that these samples bring."""
        for step in self._steps:
            samples = step.add(samples)
        return self._encoder.add(samples)

    def finish(self) -> bytes:
        """The rest of the bytes."""
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
    """The threads on which all answers are encoded. Close it when no answer needs it any more.

    An answer waits for one second of its audio at a time, so as much waits as there are answers.
    """

    def __init__(self, threads: int) -> None:
        self._pool = ThreadPoolExecutor(threads, "encode")

    async def start(self, encoding: AudioEncoding, rate_hz: int) -> AnswerEncoder:
        """What encodes one answer."""
        pool = None if encoding.light else self._pool
        steps = await _run(pool, EncodingSteps, encoding, rate_hz)
        return AnswerEncoder(steps, rate_hz, pool)

    def close(self) -> None:
        """Start nothing more."""
        self._pool.shutdown(wait=False, cancel_futures=True)


class AnswerEncoder:
    """Encodes one answer, on a thread if there are some. Cancelling loses the answer alone."""

    def __init__(self, steps: EncodingSteps, rate_hz: int, pool: ThreadPoolExecutor | None) -> None:
        self._steps = steps
        self._rate_hz = rate_hz
        self._pool = pool

    async def add(self, samples: Tensor) -> bytes:
        """The bytes that the samples bring. Others have their turn after each second."""
        parts = []
        for start in range(0, len(samples), self._rate_hz):
            second = samples[start : start + self._rate_hz]
            parts.append(await _run(self._pool, self._steps.add, second))
        return b"".join(parts)

    async def finish(self) -> bytes:
        """The rest of the bytes."""
        return await _run(self._pool, self._steps.finish)


async def _run(
    pool: ThreadPoolExecutor | None, work: Callable[[*Given], Made], *args: *Given
) -> Made:
    """Do the work on a thread; here, when there is no pool."""
    if pool is None:
        return work(*args)
    return await asyncio.get_running_loop().run_in_executor(pool, work, *args)
