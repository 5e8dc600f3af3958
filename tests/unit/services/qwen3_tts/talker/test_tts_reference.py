"""A reference recording gives the vector and the frames that the vendor's package takes from it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from antiphon.errors import FailedPrecondition
from antiphon.values.chunk import Tensors
from antiphon_services.clips import cache
from antiphon_services.qwen3_tts.talker.reference import ReferenceEncoder
from antiphon_services.qwen3_tts.talker.speaker import SpeakerEncoder


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


def test_recording_is_encoded_once_as_long_as_it_is_among_the_last(
    checkpoints: dict[str, Path], recorded: Tensors, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "KEPT_CLIPS", 2)
    encoder = ReferenceEncoder(checkpoints["base"], torch.float32, "cpu")
    encoded: list[object] = []
    forward = SpeakerEncoder.forward

    def noted(module: SpeakerEncoder, *given: torch.Tensor) -> torch.Tensor:
        encoded.append(None)
        return forward(module, *given)

    monkeypatch.setattr(SpeakerEncoder, "forward", noted)
    one, two, three = (heard(recorded)[start:] for start in range(3))
    first = encoder.vector(one)
    assert encoder.vector(one.copy()) is first
    assert encoder.vector(two).tolist() != first.tolist()
    assert encoder.vector(one) is first
    assert len(encoded) == 2
    encoder.vector(three)
    assert encoder.vector(one) is first
    encoder.vector(two)
    assert len(encoded) == 4


def test_encoder_is_refused_when_the_checkpoint_clones_no_voices(
    checkpoints: dict[str, Path],
) -> None:
    with pytest.raises(FailedPrecondition, match="speaker_encoder_config"):
        ReferenceEncoder(checkpoints["custom_voice"], torch.float32, "cpu")
