"""A recording of any rate and length is cloned as the vendor's package clones it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon.pipelines.qwen3_tts import SAMPLE_RATE_HZ
from antiphon_gateway.media.audio_in import AudioLimits, decode_recording
from antiphon_gateway.media.audio_in import Recording as AudioFile
from antiphon_gateway.media.decoding.decoder import MediaDecoder
from antiphon_services.qwen3_tts.talker.reference import ReferenceEncoder
from tests.equality.qwen3_tts.cases import RECORDINGS, Recording
from tests.equality.qwen3_tts.tts_asking import Recorded

pytestmark = pytest.mark.equality

LIMITS = AudioLimits(recordings=1, each_s=60.0, all_s=60.0)


@pytest.fixture(scope="module")
def encoder(tts_checkpoints: dict[str, Path]) -> ReferenceEncoder:
    return ReferenceEncoder(tts_checkpoints["base"], torch.float32, "cpu")


@pytest.mark.parametrize("recording", RECORDINGS, ids=lambda each: each.name)
async def test_recording_gives_the_recorded_frames_and_vector(
    recording: Recording, encoder: ReferenceEncoder, recorded: Recorded
) -> None:
    file = AudioFile("options.reference_audio", recorded.wav(recording))
    samples = await decode_recording(
        file, MediaDecoder(1), rate_hz=SAMPLE_RATE_HZ, left_s=LIMITS.all_s, limits=LIMITS
    )
    frames = recorded.arrays[f"{recording.name}/codes"]
    assert encoder.frames(samples).tolist() == frames.tolist()
    vector = recorded.arrays[f"{recording.name}/vector"].astype(np.float32)
    assert np.abs(encoder.vector(samples) - vector).max() < 1e-4 * np.abs(vector).max()
