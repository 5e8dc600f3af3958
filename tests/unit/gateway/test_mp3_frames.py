from __future__ import annotations

import io

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from antiphon_gateway.media.mp3 import frame_at, has_more_than


def mp3(rate_hz: int, mode: str = "CONSTANT") -> bytes:
    file = io.BytesIO()
    samples = np.random.default_rng(1).uniform(-0.5, 0.5, rate_hz)
    soundfile.write(
        file, samples, rate_hz, "MPEG_LAYER_III", format="MP3", bitrate_mode=mode,
        compression_level=0.5,
    )  # fmt: skip
    return file.getvalue()


@pytest.mark.parametrize("mode", ["CONSTANT", "VARIABLE"])
@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 24_000, 44_100, 48_000])
def test_frames_follow_each_other_to_the_end(rate_hz: int, mode: str) -> None:
    data = mp3(rate_hz, mode)
    place = samples = 0
    while place < len(data):
        size, more = frame_at(data, place)
        assert size
        place, samples = place + size, samples + more
    assert place == len(data)
    assert rate_hz <= samples <= rate_hz + 5 * 1152
    for tag in (b"", b"ID3\4\0\0\0\0\1\0" + bytes(128)):
        assert has_more_than(tag + data, samples - 1)
        assert not has_more_than(tag + data, samples)


@given(st.binary(max_size=400), st.integers(0, 10_000))
def test_frames_of_any_bytes_come_to_an_end(data: bytes, samples: int) -> None:
    more = has_more_than(data, samples)
    # The shortest frame has 24 bytes, the longest 1152 samples.
    assert not more or samples < (len(data) // 24 + 1) * 1152
