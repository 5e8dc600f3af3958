"""Spectral features of a clip. They are computed from float32 samples [n] and returned as float32
rows.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional
from transformers.audio_utils import mel_filter_bank, spectrogram, window_function

LEAST_MEL, LEAST_POWER = 1e-5, 1e-9

SINC_ZEROS, ROLLOFF = 6, 0.99

WHISPER_WINDOW, WHISPER_HOP, WHISPER_HIGHEST_HZ = 400, 160, 8_000.0
WHISPER_RANGE = 8.0

FBANK_RATE_HZ, FBANK_WINDOW, FBANK_HOP, FBANK_FFT = 16_000, 400, 160, 512
FBANK_LOWEST_HZ = 20.0


@dataclass(frozen=True, slots=True)
class LogMel:
    """Computes the logarithms of magnitudes on Slaney's mel scale. Windows are placed within the
    signal after it has been extended by reflection.
    """

    sample_rate_hz: int
    bins: int
    window: int
    hop: int
    highest_hz: float

    def of(self, samples: Tensor) -> Tensor:
        """Return [bins, frames] for samples [n]. n must be greater than (window - hop) / 2."""
        filters = mel_filter_bank(
            self.window // 2 + 1,
            self.bins,
            0.0,
            self.highest_hz,
            self.sample_rate_hz,
            "slaney",
            "slaney",
        )
        beside = (self.window - self.hop) // 2
        padded = functional.pad(samples.float()[None, None], (beside, beside), mode="reflect")[0, 0]
        window = torch.hann_window(self.window, device=samples.device)
        spectrum = torch.stft(
            padded, self.window, self.hop, window=window, center=False, return_complex=True
        )
        magnitudes = (torch.view_as_real(spectrum).pow(2).sum(-1) + LEAST_POWER).sqrt()
        mel = torch.from_numpy(filters.T).to(magnitudes) @ magnitudes
        return mel.clamp(min=LEAST_MEL).log()


def whisper_mel(samples: Tensor, bins: int) -> Tensor:
    """Return Whisper's log mel features [bins, n // 160] for samples [n] at 16 kHz, without padding
    to 30 s.
    """
    filters = mel_filter_bank(
        WHISPER_WINDOW // 2 + 1,
        bins,
        0.0,
        WHISPER_HIGHEST_HZ,
        2 * int(WHISPER_HIGHEST_HZ),
        "slaney",
        "slaney",
    )
    window = torch.hann_window(WHISPER_WINDOW)
    spectrum = torch.stft(samples, WHISPER_WINDOW, WHISPER_HOP, window=window, return_complex=True)
    power = spectrum[:, :-1].abs() ** 2
    mel = (torch.from_numpy(filters.T).to(power) @ power).clamp(min=1e-10).log10()
    return (torch.maximum(mel, mel.max() - WHISPER_RANGE) + 4.0) / 4.0


def kaldi_fbank(samples: npt.NDArray[np.float32], bins: int) -> npt.NDArray[np.float32]:
    """Return Kaldi's log mel filter banks [frames, bins] for samples [n] at 16 kHz, without
    dither.
    """
    filters = mel_filter_bank(
        FBANK_FFT // 2 + 1,
        bins,
        FBANK_LOWEST_HZ,
        FBANK_RATE_HZ / 2,
        FBANK_RATE_HZ,
        norm=None,
        mel_scale="kaldi",
        triangularize_in_mel_space=True,
    )
    made = spectrogram(
        samples,
        window_function(FBANK_WINDOW, "povey", periodic=False),
        frame_length=FBANK_WINDOW,
        hop_length=FBANK_HOP,
        fft_length=FBANK_FFT,
        power=2.0,
        center=False,
        preemphasis=0.97,
        mel_filters=filters,
        log_mel="log",
        mel_floor=float(np.finfo(np.float32).eps),
        remove_dc_offset=True,
    )
    return np.ascontiguousarray(made.T, np.float32)


def resampled(samples: Tensor, from_hz: int, to_hz: int) -> Tensor:
    """Resample [n] with a sinc filter and a Hann window, as torchaudio's `resample` does by
    default.
    """
    common = math.gcd(from_hz, to_hz)
    old, new = from_hz // common, to_hz // common
    if old == new:
        return samples
    cutoff = min(old, new) * ROLLOFF
    width = math.ceil(SINC_ZEROS * old / cutoff)
    index = torch.arange(-width, width + old, dtype=torch.float64)[None, None] / old
    times = torch.arange(0, -new, -1)[:, None, None] / new + index
    times = (times * cutoff).clamp(-SINC_ZEROS, SINC_ZEROS)
    window = torch.cos(times * math.pi / SINC_ZEROS / 2) ** 2
    kernels = (torch.sinc(times) * window * (cutoff / old)).to(torch.float32)
    padded = functional.pad(samples, (width, width + old))[None, None]
    made = functional.conv1d(padded, kernels, stride=old)[0].T.flatten()
    return made[: math.ceil(new * len(samples) / old)]
