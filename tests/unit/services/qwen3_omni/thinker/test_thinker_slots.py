from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import WhisperFeatureExtractor

from antiphon_services.lm.slots import shared_length
from antiphon_services.qwen3_omni.thinker.audio import audio_tower
from antiphon_services.thinker.audio import AudioFeatures, AudioFrontEnd
from antiphon_services.thinker.generation import prompt_content
from antiphon_services.thinker.schedule import prefill_shares
from tests.unit.services.qwen3_omni.thinker.thinker_conversations import recording


@pytest.fixture(scope="module")
def front_end() -> AudioFrontEnd:
    return AudioFrontEnd(
        WhisperFeatureExtractor(feature_size=128), audio_tower(50), max_audio_s=60.0
    )


def _extract(front_end: AudioFrontEnd, *seconds: float, seed: int = 0) -> AudioFeatures:
    audio = front_end.extract([recording(each, seed=seed) for each in seconds])
    assert audio is not None
    return audio


def test_content_differs_when_the_sound_does(front_end: AudioFrontEnd) -> None:
    first, second = _extract(front_end, 0.5), _extract(front_end, 0.5, seed=1)
    ids = np.asarray([3, *[9] * first.positions[0], 4], dtype=np.int32)
    heard, again, other = (
        prompt_content(ids, 9, each) for each in (first, _extract(front_end, 0.5), second)
    )
    assert heard.tolist() == again.tolist()
    assert shared_length(heard, other) == 1
    assert (heard[1:-1] < 0).all()
    assert prompt_content(ids, 9, None).tolist() == ids.tolist()


def _alone(front_end: AudioFrontEnd, *seconds: float) -> tuple[int, ...]:
    """Digests of recordings that are heard each by itself."""
    audio = front_end.extract([recording(each) for each in seconds], alone=True)
    assert audio is not None
    return audio.digests


def test_digest_differs_when_a_longer_recording_pads_the_chunks(front_end: AudioFrontEnd) -> None:
    assert _alone(front_end, 0.5)[0] != _alone(front_end, 0.5, 0.8)[0]


def test_digest_is_the_same_when_recordings_fill_whole_chunks(front_end: AudioFrontEnd) -> None:
    assert _alone(front_end, 1.0) == _alone(front_end, 1.0, 3.0)[:1]


def test_digest_differs_when_recordings_are_padded_together(front_end: AudioFrontEnd) -> None:
    # The padding reaches into the last frame of the shorter one.
    assert _extract(front_end, 1.003).digests != _extract(front_end, 1.003, 3.0).digests[:1]


def test_shares_go_to_the_oldest_and_then_to_the_shortest() -> None:
    assert prefill_shares([1000, 300, 20], 256) == [64, 172, 20]
    assert prefill_shares([1000], 256) == [256]
    assert prefill_shares([10, 20], 256) == [10, 20]
    assert prefill_shares([5, 5], 1) == [1, 0]
    assert prefill_shares([], 256) == []


@given(st.lists(st.integers(1, 500), max_size=8), st.integers(1, 300))
def test_shares_use_the_budget_and_no_more(remaining: list[int], budget: int) -> None:
    shares = prefill_shares(remaining, budget)
    assert sum(shares) == min(sum(remaining), budget)
    assert all(0 <= share <= rows for share, rows in zip(shares, remaining, strict=True))
    assert not remaining or shares[0] > 0
