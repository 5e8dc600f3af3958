from __future__ import annotations

import base64
import io

import numpy as np
import pytest
import soundfile
from hypothesis import given
from hypothesis import strategies as st

from antiphon_gateway.media.audio_out import Base64Stream, to_pcm16, wav_file


def test_base64_pieces_hold_whole_samples_when_audio_does_not_come_in_threes() -> None:
    stream = Base64Stream()
    samples = [stream.add(bytes(3)), stream.add(bytes(3)), stream.add(bytes(8)), stream.flush()]
    assert [len(base64.b64decode(text)) for text in samples] == [0, 6, 6, 2]


@given(st.lists(st.binary(max_size=40), max_size=12))
def test_base64_pieces_join_up_to_the_whole(pieces: list[bytes]) -> None:
    stream = Base64Stream()
    texts = [stream.add(piece) for piece in pieces]
    # Three bytes are a whole group of base64, two a whole sample.
    assert all(len(base64.b64decode(text, validate=True)) % 6 == 0 for text in texts)
    texts.append(stream.flush())
    assert base64.b64decode("".join(texts), validate=True) == b"".join(pieces)
    assert stream.flush() == ""


def test_pcm16_rounds_and_clips() -> None:
    samples = np.array([-1.5, -1.0, -0.25, 0.0, 0.25, 1.0, 9.0], np.float32)
    got = np.frombuffer(to_pcm16(samples), "<i2")
    assert got.tolist() == [-32767, -32767, -8192, 0, 8192, 32767, 32767]


@pytest.mark.parametrize("count", [0, 1, 480])
def test_wav_file_reads_back(count: int) -> None:
    pcm16 = np.arange(count, dtype="<i2").tobytes()
    samples, rate = soundfile.read(io.BytesIO(wav_file(pcm16, 24_000)), dtype="int16")
    assert (rate, samples.astype("<i2").tobytes()) == (24_000, pcm16)
