"""The voice that code2wav learns: a source-filter vocoder whose phase is locked to frames.

Every frame contains an integer number of evenly spaced pulses, and eight fixed noise segments. The
waveform is therefore a function of the features of the frame, which has three advantages. Waveform
losses can be used, no adversary is needed, and words can be joined without phase discontinuities.
"""

from __future__ import annotations

from functools import cache

import numpy as np
import numpy.typing as npt

from models.recipe.acoustics import (
    FFT,
    FRAME,
    HOP,
    HOPS,
    LOG_FLOOR,
    RATE,
    Floats,
    band_centres,
)

# Below this frequency, voiced frames consist of pulses. Above it, they consist of noise.
VOICED_HZ, VOICED_WIDTH_HZ = 4500.0, 400.0
# These values were measured. With them, the log-mel level of the output matches the input.
PULSE_GAIN, NOISE_GAIN = 1.65, 1.7
NOISE_SEED = 20


@cache
def _interpolation() -> npt.NDArray[np.float64]:
    """Return a matrix that interpolates bands to FFT bins, with shape [bins, bands]."""
    centres = band_centres()[1:-1]
    hertz = np.arange(FFT // 2 + 1) * RATE / FFT
    identity = np.eye(len(centres))
    return np.stack([np.interp(hertz, centres, row) for row in identity], axis=1)


@cache
def _voiced_part() -> npt.NDArray[np.float64]:
    """Return the fraction of the amplitude that consists of pulses, for each bin of a voiced
    hop.
    """
    hertz = np.arange(FFT // 2 + 1) * RATE / FFT
    return np.asarray(1.0 / (1.0 + np.exp((hertz - VOICED_HZ) / VOICED_WIDTH_HZ)))


@cache
def _noise_phases() -> npt.NDArray[np.complex128]:
    """Return fixed random phases for each hop in a frame, with shape [HOPS, bins]."""
    draws = np.random.default_rng(NOISE_SEED).uniform(0, 2 * np.pi, (HOPS, FFT // 2 + 1))
    return np.asarray(np.exp(1j * draws))


def _log_envelope(log_mel: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return the log amplitude for each bin. Values near the floor are attenuated to silence."""
    quiet = np.minimum(log_mel - (LOG_FLOOR + 0.5), 0.0)
    return np.asarray((log_mel + 6.0 * quiet) @ _interpolation().T)


def _minimum_phase(log_envelope: npt.NDArray[np.float64]) -> npt.NDArray[np.complex128]:
    """Return the minimum-phase spectrum with this log amplitude."""
    cepstrum = np.fft.irfft(log_envelope, FFT)
    cepstrum[:, 1 : FFT // 2] *= 2.0
    cepstrum[:, FFT // 2 + 1 :] = 0.0
    return np.asarray(np.exp(np.fft.rfft(cepstrum, FFT)))


def synthesise(
    log_mel: Floats, voiced: npt.NDArray[np.bool_], pulses: npt.NDArray[np.int64]
) -> Floats:
    """Return the waveform of T frames, as a float32 array of shape [1920 * T].

    `log_mel` has shape [8 * T, 48], and `voiced` has shape [8 * T]. `pulses` contains the number of
    pulses in each frame and has shape [T].
    """
    frames = len(pulses)
    output = np.zeros(frames * FRAME + FFT)
    _add_pulses(output, log_mel.astype(np.float64), voiced, pulses)
    _add_noise(output, log_mel.astype(np.float64), voiced)
    return output[: frames * FRAME].astype(np.float32)


def _add_pulses(
    output: npt.NDArray[np.float64],
    log_mel: npt.NDArray[np.float64],
    voiced: npt.NDArray[np.bool_],
    pulses: npt.NDArray[np.int64],
) -> None:
    period = FRAME / np.repeat(pulses, pulses)
    order = np.concatenate([np.arange(count) for count in pulses])
    at = np.repeat(np.arange(len(pulses)), pulses) * FRAME + order * period
    hop = np.minimum((at // HOP).astype(int), len(log_mel) - 1)
    kept = voiced[hop]
    at, period, hop = at[kept], period[kept], hop[kept]
    if not len(at):
        return
    place = np.clip(at / HOP - 0.5, 0, len(log_mel) - 1)
    low = np.floor(place).astype(int)
    high = np.minimum(low + 1, len(log_mel) - 1)
    weight = (place - low)[:, None]
    envelope = _log_envelope(log_mel[low] * (1 - weight) + log_mel[high] * weight)
    spectrum = _minimum_phase(envelope + np.log(_voiced_part() + 1e-4))
    start = np.floor(at).astype(int)
    bins = np.arange(FFT // 2 + 1)
    delay = np.exp(-2j * np.pi * bins * (at - start)[:, None] / FFT)
    shapes = np.fft.irfft(spectrum * delay, FFT) * (PULSE_GAIN * np.sqrt(period))[:, None]
    for begin, shape in zip(start, shapes, strict=True):
        output[begin : begin + FFT] += shape[: len(output) - begin]


def _add_noise(
    output: npt.NDArray[np.float64],
    log_mel: npt.NDArray[np.float64],
    voiced: npt.NDArray[np.bool_],
) -> None:
    share = np.where(voiced[:, None], np.sqrt(1.0 - _voiced_part() ** 2), 1.0)
    phases = np.tile(_noise_phases(), (len(log_mel) // HOPS, 1))
    segments = np.fft.irfft(np.exp(_log_envelope(log_mel)) * share * phases, FFT)
    window = np.sqrt(np.hanning(2 * HOP + 1)[:-1])
    segments = segments[:, : 2 * HOP] * window * (NOISE_GAIN * np.sqrt(FFT))
    for half in range(2):
        piece = segments[:, half * HOP : (half + 1) * HOP].reshape(-1)
        output[half * HOP : half * HOP + len(piece)] += piece
