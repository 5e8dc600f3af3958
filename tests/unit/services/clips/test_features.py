"""Features of a clip against plain references."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from transformers import WhisperFeatureExtractor

from antiphon_services.clips.features import kaldi_fbank, resampled, whisper_mel

Samples = npt.NDArray[np.float32]
RATE_HZ = 16_000


def clip(count: int) -> Samples:
    time = np.arange(count) / RATE_HZ
    noise = np.random.default_rng(count).standard_normal(count)
    wave = 0.3 * np.sin(2 * np.pi * (200 * time + 900 * time**2)) + 0.02 * noise
    return wave.astype(np.float32)


@pytest.mark.parametrize("bins", [80, 128])
@pytest.mark.parametrize("count", [400, 1_601, 20_000])
def test_whisper_mel_is_that_of_hugging_face(count: int, bins: int) -> None:
    extractor: Any = WhisperFeatureExtractor(feature_size=bins)
    samples = clip(count)
    told = extractor(samples, sampling_rate=RATE_HZ, padding=False, truncation=False)
    expected = np.asarray(told["input_features"][0], np.float32)
    found = whisper_mel(torch.from_numpy(samples), bins).numpy()
    assert found.shape == (bins, count // 160)
    np.testing.assert_allclose(found, expected[:, : count // 160], rtol=0, atol=1e-5)


def fbank(samples: Samples, bins: int) -> npt.NDArray[np.float64]:
    """Kaldi's definition, frame by frame and bin by bin."""
    mels = 1127 * np.log(1 + np.fft.rfftfreq(512, 1 / RATE_HZ) / 700)
    low, high = (1127 * np.log(1 + each / 700) for each in (20, RATE_HZ / 2))
    step = (high - low) / (bins + 1)
    window = (0.5 - 0.5 * np.cos(2 * np.pi * np.arange(400) / 399)) ** 0.85
    rows = []
    for start in range(0, len(samples) - 399, 160):
        frame = samples[start : start + 400].astype(np.float64)
        frame -= frame.mean()
        frame -= 0.97 * np.concatenate((frame[:1], frame[:-1]))
        power = np.abs(np.fft.rfft(frame * window, 512)) ** 2
        row = []
        for bin_ in range(bins):
            left, peak, right = (low + (bin_ + each) * step for each in range(3))
            up, down = (mels - left) / (peak - left), (right - mels) / (right - peak)
            # Kaldi has no weight for the highest frequency.
            weights = np.clip(np.minimum(up, down), 0, None)[:-1]
            row.append(np.log(max(weights @ power[:-1], np.finfo(np.float32).eps)))
        rows.append(row)
    return np.array(rows)


@pytest.mark.parametrize("count", [400, 1_601, 4_000])
def test_fbank_is_kaldis(count: int) -> None:
    samples = clip(count)
    found = kaldi_fbank(samples, 80)
    expected = fbank(samples, 80)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-3)


def test_fbank_of_silence_is_finite() -> None:
    found = kaldi_fbank(np.zeros(800, np.float32), 80)
    np.testing.assert_allclose(found, np.log(np.finfo(np.float32).eps), rtol=1e-6)


@pytest.mark.parametrize(
    ("from_hz", "to_hz"), [(24_000, 16_000), (8_000, 16_000), (44_100, 16_000), (16_000, 16_000)]
)
def test_a_tone_has_the_same_pitch_at_another_rate(from_hz: int, to_hz: int) -> None:
    def tone(rate_hz: int, count: int) -> torch.Tensor:
        return torch.sin(2 * torch.pi * 440 * torch.arange(count).double() / rate_hz).float()

    count = from_hz // 3
    found = resampled(tone(from_hz, count), from_hz, to_hz)
    assert len(found) == -(-count * to_hz // from_hz)
    # The filter reaches over the ends, where there is nothing.
    middle = slice(100, -100)
    expected = tone(to_hz, len(found))
    torch.testing.assert_close(found[middle], expected[middle], rtol=0, atol=5e-3)
