"""The network in numpy against what onnxruntime 1.31 answered with the same weights."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import sliding_window_view

from antiphon_gateway.voice_activity.network import (
    CONTEXT_SAMPLES,
    FRAME_SAMPLES,
    SEEN_SAMPLES,
    no_memory,
    voice_network,
)


def recorded() -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    """Frames of a sentence in noise, and how probably each holds speech."""
    with np.load(Path(__file__).with_name("onnxruntime.npz")) as file:
        samples, expected = file["samples"], file["probabilities"]
    heard = samples[: len(expected) * FRAME_SAMPLES].astype(np.float32) / np.float32(32768)
    heard = np.concatenate([np.zeros(CONTEXT_SAMPLES, np.float32), heard])
    return sliding_window_view(heard, SEEN_SAMPLES)[::FRAME_SAMPLES], expected


@pytest.mark.parametrize("at_once", [1, 3, 1000])
def test_probabilities_are_those_of_onnxruntime(at_once: int) -> None:
    frames, expected = recorded()
    memories, heard = [no_memory()], []
    for start in range(0, len(frames), at_once):
        (spoken,), memories = voice_network().hear([frames[start : start + at_once]], memories)
        heard += spoken
    assert expected.max() > 0.9
    assert expected.min() < 0.1
    np.testing.assert_allclose(heard, expected, atol=3e-6)


def test_frames_in_company_are_heard_as_alone() -> None:
    frames, expected = recorded()
    rng = np.random.default_rng(0)
    memories, heard, start = [no_memory()] * 5, list[float](), 0
    while start < len(frames):
        # Others have more frames than this one, as many and fewer.
        mine, *theirs = rng.integers(1, 4, 5)
        noise = [rng.normal(0, 0.1, (n, SEEN_SAMPLES)).astype(np.float32) for n in theirs]
        sounds = [*noise[:2], frames[start : start + mine], *noise[2:]]
        spoken, memories = voice_network().hear(sounds, memories)
        assert [len(each) for each in spoken] == [len(each) for each in sounds]
        heard += spoken[2]
        start += mine
    np.testing.assert_allclose(heard, expected, atol=3e-6)
