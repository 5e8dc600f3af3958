"""Acoustic features of a frame: log-mel hops, voicing and a pulse count.

A frame consists of 1920 samples at 24 kHz, which are divided into eight hops of 240 samples. Each
hop has 48 log-mel amplitudes and one voicing bit.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float32]

RATE = 24_000
FRAME = 1920
HOP = 240
HOPS = FRAME // HOP
FFT = 1024
WINDOW = 512
BANDS = 48
LOWEST_HZ, HIGHEST_HZ = 60.0, 10_000.0
FLOOR = 1.5e-3
LOG_FLOOR = float(np.log(FLOOR))

VOICED_CORRELATION = 0.5
SHORTEST_PERIOD, LONGEST_PERIOD = 80, 340


def _mel(hertz: npt.ArrayLike) -> npt.NDArray[np.float64]:
    return 2595.0 * np.log10(1.0 + np.asarray(hertz, dtype=np.float64) / 700.0)


@cache
def band_centres() -> npt.NDArray[np.float64]:
    """Return the centers of all bands in Hz, and the two outer edges, with shape [BANDS + 2]."""
    mels = np.linspace(_mel(LOWEST_HZ), _mel(HIGHEST_HZ), BANDS + 2)
    return np.asarray(700.0 * (10.0 ** (mels / 2595.0) - 1.0))


@cache
def mel_filters() -> Floats:
    """Return triangular filters of unit area over the FFT bins, with shape [BANDS, FFT // 2 +
    1].
    """
    edges = band_centres()
    hertz = np.arange(FFT // 2 + 1) * RATE / FFT
    rise = (hertz - edges[:-2, None]) / (edges[1:-1] - edges[:-2])[:, None]
    fall = (edges[2:, None] - hertz) / (edges[2:] - edges[1:-1])[:, None]
    filters = np.clip(np.minimum(rise, fall), 0.0, None) + 1e-9
    return np.asarray(filters / filters.sum(1, keepdims=True), dtype=np.float32)


def log_mel(samples: Floats) -> Floats:
    """Return the log-mel amplitudes of each hop, with shape [n, BANDS].

    `samples` has shape [n * HOP].
    """
    hops = len(samples) // HOP
    margin = (WINDOW - HOP) // 2
    padded = np.pad(samples, (margin, margin + HOP))
    starts = np.arange(hops)[:, None] * HOP
    windows = padded[starts + np.arange(WINDOW)] * np.hanning(WINDOW)
    power = np.abs(np.fft.rfft(windows, FFT)) ** 2
    amplitude = np.sqrt(power @ mel_filters().T.astype(np.float64))
    return np.asarray(np.log(np.maximum(amplitude / np.sqrt(WINDOW), FLOOR)), dtype=np.float32)


def voicing(samples: Floats) -> npt.NDArray[np.bool_]:
    """Return whether each hop is voiced, based on its normalized autocorrelation, with shape
    [n].
    """
    hops = len(samples) // HOP
    reach = WINDOW + LONGEST_PERIOD
    padded = np.pad(samples, (reach // 2, reach))
    found = np.zeros(hops, dtype=bool)
    lags = np.arange(SHORTEST_PERIOD, LONGEST_PERIOD)
    for hop in range(hops):
        piece = padded[hop * HOP + HOP // 2 : hop * HOP + HOP // 2 + reach].astype(np.float64)
        head = piece[:WINDOW]
        energy = float(head @ head)
        if energy < 1e-2:
            continue
        cumulated = np.concatenate([[0.0], np.cumsum(piece**2)])
        shifted = cumulated[lags + WINDOW] - cumulated[lags]
        products = np.correlate(piece[: WINDOW + LONGEST_PERIOD], head, "valid")[lags]
        found[hop] = (products / np.sqrt(energy * shifted + 1e-9)).max() > VOICED_CORRELATION
    return found


def stretch(hops: Floats, wanted: int) -> Floats:
    """Resample hop features of shape [n, d] to `wanted` hops, with linear interpolation."""
    at = np.linspace(0, len(hops) - 1, wanted)
    low = np.floor(at).astype(int)
    high = np.minimum(low + 1, len(hops) - 1)
    weight = (at - low)[:, None]
    return np.asarray(hops[low] * (1 - weight) + hops[high] * weight, dtype=np.float32)
