"""Recordings have as many samples at another rate as librosa gives them, whatever their pieces."""

from __future__ import annotations

import numpy as np
import pytest
import soxr

from antiphon_gateway.media.resampling import RecordingResampler, resampled_length

# What librosa 0.11.0 gives: from, to, samples, and how many they become.
LIBROSA = (
    (44_100, 24_000, 1, 1),
    (44_100, 24_000, 146, 80),
    (44_100, 24_000, 147, 81),  # 80 exactly, but the quotient of the rates is rounded up
    (44_100, 24_000, 148, 81),
    (44_100, 24_000, 17_640, 9_600),
    (44_100, 24_000, 44_100, 24_001),
    (22_050, 24_000, 10_007, 10_892),
    (11_025, 24_000, 5_292, 11_521),
    (11_025, 24_000, 10_007, 21_784),
    (32_000, 24_000, 15_359, 11_520),
    (32_000, 24_000, 10_007, 7_506),
    (8_000, 24_000, 10_007, 30_021),
    (44_100, 16_000, 44_100, 16_000),
    (24_000, 16_000, 10_007, 6_672),
    (48_000, 16_000, 10_007, 3_336),
)


@pytest.mark.parametrize(("from_hz", "to_hz", "samples", "wanted"), LIBROSA)
@pytest.mark.parametrize("piece", [1 << 20, 997])
def test_length_is_librosas(
    from_hz: int, to_hz: int, samples: int, wanted: int, piece: int
) -> None:
    assert resampled_length(samples, from_hz, to_hz) == wanted
    heard = np.random.default_rng(samples).standard_normal(samples).astype(np.float32)
    resampler = RecordingResampler(from_hz, to_hz)
    made = [
        resampler.add(heard[start : start + piece], last=start + piece >= samples)
        for start in range(0, samples, piece)
    ]
    whole = np.concatenate(made)
    assert len(whole) == wanted
    plain = soxr.resample(heard, from_hz, to_hz)
    assert 0 <= wanted - len(plain) <= 1
    np.testing.assert_array_equal(whole[: len(plain)], plain)
    assert not whole[len(plain) :].any()


def test_samples_at_the_wanted_rate_are_passed_on() -> None:
    heard = np.arange(5, dtype=np.float32)
    resampler = RecordingResampler(24_000, 24_000)
    assert [*resampler.add(heard, last=False), *resampler.add(heard, last=True)] == [*heard, *heard]


def test_last_piece_may_be_empty() -> None:
    heard = np.ones(10_007, np.float32)
    resampler = RecordingResampler(44_100, 24_000)
    made = [resampler.add(heard, last=False), resampler.add(heard[:0], last=True)]
    assert sum(map(len, made)) == resampled_length(10_007, 44_100, 24_000)
