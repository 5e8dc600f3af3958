"""A recording gives the codes, mel frames and vector that the vendor's front end takes from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from antiphon_services.cosyvoice3.talker.reference import VoiceEncoder
from tests.equality.cosyvoice3.cosy_asking import Recorded
from tests.equality.cosyvoice3.cosy_cases import clips

pytestmark = pytest.mark.equality

FEATURE_STEP = 7


@pytest.fixture(scope="module")
def encoder(cosy_checkpoints: dict[str, Path]) -> VoiceEncoder:
    return VoiceEncoder(cosy_checkpoints["voices"])


@pytest.mark.parametrize("name", clips())
def test_recording_gives_what_is_recorded(
    name: str, encoder: VoiceEncoder, recorded: Recorded
) -> None:
    samples = clips()[name].astype(np.float32) / 32768
    voice = encoder.voice(samples)
    told = {part: recorded.arrays[f"clip-{name}/{part}"] for part in ("codes", "mel", "speaker")}
    assert voice.codes.tolist() == told["codes"].tolist()
    assert len(voice.mel) == int(recorded.arrays[f"clip-{name}/frames"]) == 2 * len(voice.codes)
    # Loudness is between -11.5 and 3.
    np.testing.assert_allclose(
        voice.mel.reshape(-1)[::FEATURE_STEP], told["mel"].astype(np.float32), rtol=0, atol=1e-4
    )
    # Of filter banks in float64, where the vendor has float32.
    np.testing.assert_allclose(
        voice.speaker[0], told["speaker"].astype(np.float32), rtol=0, atol=1e-4
    )
    assert encoder.voice(samples.copy()) is voice
