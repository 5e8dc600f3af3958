"""The network in numpy against what onnxruntime 1.31 answered with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from gateway.voice_activity.network import FRAME_SAMPLES, no_memory, voice_network


def recorded() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Frames of a sentence in noise, and how probably each holds speech."""
    with np.load(Path(__file__).with_name("onnxruntime.npz")) as file:
        samples, expected = file["samples"], file["probabilities"]
    frames = samples[: len(expected) * FRAME_SAMPLES].reshape(-1, FRAME_SAMPLES)
    return frames.astype(np.float32) / np.float32(32768), expected


def test_probabilities_are_those_of_onnxruntime() -> None:
    frames, expected = recorded()
    memories, heard = [no_memory()], []
    for frame in frames:
        (spoken,), memories = voice_network().hear(frame[None], memories)
        heard.append(spoken)
    assert expected.max() > 0.9
    assert expected.min() < 0.1
    np.testing.assert_allclose(heard, expected, atol=3e-6)


def test_frames_in_company_are_heard_as_alone() -> None:
    frames, expected = recorded()
    rng = np.random.default_rng(0)
    memories, heard = [no_memory()] * 5, []
    for frame in frames:
        others = rng.normal(0, 0.1, (4, FRAME_SAMPLES)).astype(np.float32)
        spoken, memories = voice_network().hear(np.concatenate([frame[None], others]), memories)
        heard.append(spoken[0])
    np.testing.assert_allclose(heard, expected, atol=3e-6)
