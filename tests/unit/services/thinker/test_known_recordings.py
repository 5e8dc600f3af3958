"""What a thinker keeps of recordings that came before."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon.errors import NotFound
from antiphon_services.thinker.known_recordings import KnownRecording, KnownRecordings, MadeOnce


def recording(name: bytes, size_bytes: int) -> KnownRecording:
    return KnownRecording(name, 9, size_bytes, MadeOnce(lambda: np.zeros((1, 1), np.float32)))


def test_recordings_that_were_asked_for_longest_ago_make_room() -> None:
    known = KnownRecordings(100)
    for name in (b"a", b"b"):
        known.put(recording(name, 50))
    assert known.named(b"a", "audio.0").samples == 9
    known.put(recording(b"c", 50))
    assert known.get(b"a") is not None
    with pytest.raises(NotFound, match="send its samples again") as forgotten:
        known.named(b"b", "audio.4")
    assert forgotten.value.field == "audio.4"
    assert known.size_bytes == 100


def test_recording_that_comes_again_counts_once_and_the_latest_stays_whatever_its_size() -> None:
    known = KnownRecordings(100)
    for _ in range(3):
        known.put(recording(b"a", 60))
    assert known.size_bytes == 60
    known.put(recording(b"b", 1000))
    assert known.get(b"a") is None
    assert known.get(b"b") is not None


def test_features_are_made_when_first_asked_for_and_once() -> None:
    made: list[int] = []

    def make() -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
        made.append(1)
        return np.ones((2, 3), np.float32)

    once = MadeOnce(make)
    assert not made
    assert once.features() is once.features()
    assert len(made) == 1
