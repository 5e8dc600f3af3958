"""Recordings decoded within limits; what the endpoints make of them is in the contract tests."""

from __future__ import annotations

import io
import tracemalloc
from typing import Any

import numpy as np
import pytest
import soundfile
import soxr

from antiphon.errors import InvalidArgument
from antiphon_gateway.media.audio_in import AudioLimits, Recording, decode_recording
from antiphon_gateway.media.decoding.decoder import MediaDecoder
from antiphon_gateway.media.resampling import resampled_length

RATE_HZ = 16_000
DECODER = MediaDecoder(1)


def wav(samples: np.ndarray[Any, Any], rate_hz: int, subtype: str) -> bytes:
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, subtype=subtype, format="WAV")
    return file.getvalue()


async def test_audio_of_a_low_rate_is_refused_before_anything_is_made_of_it() -> None:
    tracemalloc.start()
    recording = Recording("wav", wav(np.zeros(1_750_000), 1_000, "PCM_U8"))
    limits = AudioLimits(recordings=1, each_s=600.0, all_s=900.0)
    tracemalloc.reset_peak()
    before, _ = tracemalloc.get_traced_memory()
    with pytest.raises(InvalidArgument, match="600"):
        await decode_recording(
            recording, DECODER, rate_hz=RATE_HZ, left_s=limits.all_s, limits=limits
        )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak - before < 1 << 20


@pytest.mark.parametrize("channels", [1, 2, 7])
@pytest.mark.parametrize("rate_hz", [1_000, 22_050, 48_000])
async def test_audio_read_block_by_block_is_what_it_is_at_once(rate_hz: int, channels: int) -> None:
    samples = np.random.default_rng(5).uniform(-1, 1, (200_001, channels)).astype(np.float32)
    limits = AudioLimits(recordings=1, each_s=600.0, all_s=600.0)
    recording = Recording("wav", wav(samples, rate_hz, "FLOAT"))
    got = await decode_recording(
        recording, DECODER, rate_hz=RATE_HZ, left_s=limits.all_s, limits=limits
    )
    plain = soxr.resample(samples.mean(axis=1, dtype=np.float32), rate_hz, RATE_HZ)
    wanted = np.pad(plain, (0, resampled_length(200_001, rate_hz, RATE_HZ) - len(plain)))
    np.testing.assert_array_equal(got, wanted)
