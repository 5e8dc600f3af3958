"""Features that require PyAV (the extra `av`), namely AAC and changing the speed.

PyAV's wheels include GPL codecs, so PyAV isn't a default dependency.
"""

from __future__ import annotations

import importlib.util
from fractions import Fraction
from functools import cache
from typing import TYPE_CHECKING

import numpy as np

from antiphon.values.chunk import Tensor
from antiphon_gateway.media.audio_formats import ForwardSink

if TYPE_CHECKING:
    import av

REMEDY = "install PyAV on the gateway's host: pip install 'antiphon[av]'"
MIN_SPEED, MAX_SPEED = 0.25, 4.0
AAC_BITS_PER_S = 64_000
# The smallest factor that a single filter supports.
_SLOWEST = 0.5
_LEAST_SAMPLES = 4
"""The minimum number of samples to pass to a filter. At 2.5 times the speed, a single sample
results in no output, which makes FFmpeg fail to allocate it.
"""
_NOTHING = np.empty(0, np.float32)


@cache
def there_is_pyav() -> bool:
    """Return whether PyAV is installed."""
    return importlib.util.find_spec("av") is not None


class Tempo:
    """Makes speech faster or slower without changing its pitch, using FFmpeg's `atempo`."""

    def __init__(self, speed: float, rate_hz: int) -> None:
        import av.filter

        self._rate_hz = rate_hz
        self._samples = 0
        # Samples that are waiting because there are too few for the filters.
        self._rest = _NOTHING
        self._graph = av.filter.Graph()
        last = self._graph.add_abuffer(
            sample_rate=rate_hz, format="flt", layout="mono", time_base=Fraction(1, rate_hz)
        )
        for each in _steps(speed):
            step = self._graph.add("atempo", f"{each:.6f}")
            last.link_to(step)
            last = step
        last.link_to(self._graph.add("abuffersink"))
        self._graph.configure()

    def add(self, samples: Tensor) -> Tensor:
        """Return the samples that won't change any more."""
        if len(self._rest):
            samples = np.concatenate((self._rest, samples))
        if len(samples) < _LEAST_SAMPLES:
            self._rest = samples
            return _NOTHING
        self._rest = _NOTHING
        self._graph.push(_frame(samples, "flt", self._rate_hz, self._samples))
        self._samples += len(samples)
        return self._pulled()

    def finish(self) -> Tensor:
        """Return the remaining samples. If the last pieces were very short, up to 3 samples of
        silence follow.
        """
        last = _NOTHING
        if missing := -len(self._rest) % _LEAST_SAMPLES:
            last = self.add(np.zeros(missing, np.float32))
        if not self._samples:
            return _NOTHING
        self._graph.push(None)
        return np.concatenate((last, self._pulled()))

    def _pulled(self) -> Tensor:
        import av.error

        pieces = [_NOTHING]
        while True:
            try:
                pieces.append(self._graph.pull().to_ndarray().reshape(-1))
            except (av.error.BlockingIOError, av.error.EOFError):
                return np.concatenate(pieces)


class AacEncoder:
    """Encodes AAC as an ADTS stream, which doesn't have a header that needs to be completed."""

    def __init__(self, rate_hz: int, *, whole: bool) -> None:
        import av

        self._rate_hz = rate_hz
        self._whole = whole
        self._samples = 0
        self._sink = ForwardSink()
        self._container = av.open(self._sink, "w", format="adts")
        self._stream = self._container.add_stream("aac", rate=rate_hz, layout="mono")
        self._stream.bit_rate = AAC_BITS_PER_S

    def add(self, samples: Tensor) -> bytes:
        """Implements `AudioEncoder`."""
        if len(samples):
            clipped = np.clip(samples, -1.0, 1.0)
            self._container.mux(
                self._stream.encode(_frame(clipped, "fltp", self._rate_hz, self._samples))
            )
            self._samples += len(samples)
        return b"" if self._whole else self._sink.take()

    def finish(self) -> bytes:
        """Implements `AudioEncoder`."""
        if self._samples:
            self._container.mux(self._stream.encode(None))
        self._container.close()
        return self._sink.take()


def _frame(samples: Tensor, layout: str, rate_hz: int, first: int) -> av.AudioFrame:
    import av

    row = np.ascontiguousarray(samples, np.float32).reshape(1, -1)
    frame = av.AudioFrame.from_ndarray(row, format=layout, layout="mono")
    frame.sample_rate = rate_hz
    frame.pts = first
    return frame


def _steps(speed: float) -> list[float]:
    """Return factors that a single filter supports and whose product is the speed."""
    if speed >= _SLOWEST:
        return [speed]
    return [_SLOWEST, speed / _SLOWEST]
