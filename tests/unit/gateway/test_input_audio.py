"""The input audio buffer: turns that are taken out of it, and what stays."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon.errors import InvalidArgument
from antiphon_gateway.conversations.errors import NoAudio
from antiphon_gateway.conversations.input_audio import InputAudioBuffer
from antiphon_gateway.media.audio_in import AudioLimits, Recording, decode_recording
from antiphon_gateway.media.audio_out import wav_file
from antiphon_gateway.media.decoding.decoder import MediaDecoder
from antiphon_gateway.media.pcm_recording import PcmRecording

RATE_HZ = 8_000


def samples(count: int) -> bytes:
    return np.arange(count, dtype="<i2").tobytes()


@pytest.mark.parametrize("taken", [1, 400, 700, 1000])
def test_turn_is_what_came_before_its_end_and_the_rest_stays(taken: int) -> None:
    buffer = InputAudioBuffer(max_s=1.0)
    said = samples(1100)
    buffer.append(said[:600], RATE_HZ)
    buffer.append(said[600:], RATE_HZ)
    buffer.drop_before(100)
    turn = buffer.take(7, 100 + taken)
    rest = buffer.cut(0, 2000)
    # What comes later is none of the turn's.
    buffer.append(samples(50), RATE_HZ)
    assert (bytes(turn.pcm16), turn.rate_hz, turn.turn) == (
        said[200 : 200 + 2 * taken],
        RATE_HZ,
        7,
    )
    assert rest == said[200 + 2 * taken :]
    assert (buffer.start, buffer.end) == (100 + taken, 1150)


def test_nothing_is_no_turn() -> None:
    buffer = InputAudioBuffer(max_s=1.0)
    with pytest.raises(NoAudio):
        buffer.take(0)
    buffer.append(samples(10), RATE_HZ)
    with pytest.raises(NoAudio):
        buffer.take(0, 0)
    assert buffer.take(0).samples == 10
    with pytest.raises(NoAudio):
        buffer.take(0)


@pytest.mark.parametrize("rate_hz", [8_000, 16_000, 24_000])
async def test_samples_are_read_as_a_file_of_them_is(rate_hz: int) -> None:
    pcm16 = np.random.default_rng(1).integers(-(1 << 15), 1 << 15, 150_001).astype("<i2").tobytes()
    limits = AudioLimits(recordings=2, each_s=60.0, all_s=60.0)
    plainly, as_file = PcmRecording(pcm16, rate_hz), wav_file(pcm16, rate_hz)
    both = [Recording("it", plainly), Recording("it", as_file)]
    plain, file = [
        await decode_recording(each, MediaDecoder(1), rate_hz=16_000, left_s=60.0, limits=limits)
        for each in both
    ]
    np.testing.assert_array_equal(plain, file)


def test_positions_keep_their_time_when_the_rate_changes() -> None:
    buffer = InputAudioBuffer(max_s=1.0)
    buffer.append(samples(6_000), 24_000)
    buffer.take(0)
    for rate_hz, starts, ends in ((8_000, 2_000, 2_400), (16_000, 4_800, 5_200)):
        buffer.append(samples(400), rate_hz)
        assert (buffer.start, buffer.end) == (starts, ends)
        assert buffer.seconds(buffer.start) == starts / rate_hz
        buffer.clear()
        assert buffer.start == buffer.end == ends
    buffer.append(samples(10), 16_000)
    assert (buffer.start, buffer.end) == (5_200, 5_210)


def test_rate_of_samples_that_are_there_stays() -> None:
    buffer = InputAudioBuffer(max_s=1.0)
    assert buffer.seconds(0) == 0.0
    buffer.append(samples(10), RATE_HZ)
    with pytest.raises(InvalidArgument, match="8000 Hz, but this audio has 16000 Hz"):
        buffer.append(samples(10), 16_000)
    assert (buffer.rate_hz, buffer.end) == (RATE_HZ, 10)


def test_buffer_holds_exactly_as_much_as_a_recording_may_have() -> None:
    buffer = InputAudioBuffer(max_s=0.1)
    buffer.append(samples(799), RATE_HZ)
    assert buffer.has_room(samples(1), RATE_HZ)
    assert not buffer.has_room(samples(2), RATE_HZ)
    buffer.append(samples(1), RATE_HZ)
    with pytest.raises(InvalidArgument, match=r"longer than 0\.1 seconds"):
        buffer.append(samples(1), RATE_HZ)
    buffer.check_length(samples(800), RATE_HZ)
    with pytest.raises(InvalidArgument, match=r"longer than 0\.1 seconds"):
        buffer.check_length(samples(801), RATE_HZ)
    assert buffer.size_bytes == 1600


def test_only_what_is_before_a_position_is_dropped() -> None:
    buffer = InputAudioBuffer(max_s=1.0)
    buffer.append(samples(100), RATE_HZ)
    buffer.drop_before(40)
    buffer.drop_before(30)
    assert (buffer.start, buffer.end) == (40, 100)
    assert buffer.cut(0, 60) == samples(100)[80:]
    buffer.drop_before(500)
    assert buffer.start == buffer.end == 100
