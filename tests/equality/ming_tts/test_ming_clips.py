"""What the front end takes from a recording is what the vendor's takes."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from tests.equality.ming_tts.ming_asking import Recorded
from tests.equality.ming_tts.ming_cases import LATENT_STEP, clips
from tests.equality.ming_tts.ming_in_process import TalkerInProcess

CLIPS = clips()
TOLERANCE = 1e-4


@pytest.mark.parametrize("name", sorted(CLIPS))
def test_a_clip_gives_the_vendors_latents_and_speaker(
    name: str, talker: TalkerInProcess, recorded: Recorded
) -> None:
    voice = talker.encoder.voice(CLIPS[name].astype(np.float32) / 32768)
    assert len(voice.latents) == recorded.arrays[f"recording-{name}/count"]
    heard = voice.latents[:, ::LATENT_STEP]
    assert_allclose(heard, recorded.arrays[f"recording-{name}/latents"], atol=TOLERANCE)
    assert_allclose(voice.speaker, recorded.arrays[f"recording-{name}/speaker"], atol=TOLERANCE)
