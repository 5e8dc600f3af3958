"""A reference recording gives the vector and the frames that the vendor's package takes from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon.chunk import Tensors
from antiphon.errors import FailedPrecondition
from services.qwen3_tts.talker.reference import ReferenceEncoder


def heard(recorded: Tensors) -> np.ndarray:
    return recorded["reference/audio"].astype(np.float32) / 32768


def test_vector_and_frames_of_a_recording_equal_the_recorded(
    checkpoints: dict[str, Path], recorded: Tensors
) -> None:
    encoder = ReferenceEncoder(checkpoints["base"], torch.float32, "cpu")
    vector = encoder.vector(heard(recorded))
    expected = recorded["reference/vector"]
    assert vector.shape == expected.shape
    assert np.abs(vector - expected).max() < 1e-4 * np.abs(expected).max()
    frames = encoder.frames(heard(recorded))
    assert frames.dtype == np.uint16
    assert frames.tolist() == recorded["reference/codes"].tolist()


def test_encoder_is_refused_when_the_checkpoint_clones_no_voices(
    checkpoints: dict[str, Path],
) -> None:
    with pytest.raises(FailedPrecondition, match="speaker_encoder_config"):
        ReferenceEncoder(checkpoints["custom_voice"], torch.float32, "cpu")
