"""The input audio of a conversation: what is kept of silence, and where in time turns are."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import soxr

from antiphon.values.live_conversation import SpeechBegan, VoiceTurns
from antiphon_gateway.conversations.turn_detector import UNDECIDED_S, TurnDetector, TurnHeard
from antiphon_gateway.voice_activity.listener import VoiceListener

IDLE_S = 5.0


@pytest.fixture
def listener() -> Iterator[VoiceListener]:
    listener = VoiceListener()
    yield listener
    listener.close()


def silence(seconds: float, rate_hz: int) -> bytes:
    return bytes(2 * round(seconds * rate_hz))


def sentence(rate_hz: int) -> bytes:
    """A sentence in noise, and the silence that ends a turn."""
    with np.load(Path(__file__).parent / "voice_activity" / "onnxruntime.npz") as file:
        said = soxr.resample(file["samples"].astype(np.float32), 16_000, rate_hz)
    return said.astype("<i2").tobytes() + silence(1.0, rate_hz)


async def heard_in(
    hearing: TurnDetector, pcm16: bytes, rate_hz: int
) -> list[SpeechBegan | TurnHeard]:
    """What comes of audio that is sent in pieces of 0.1 s."""
    size = 2 * (rate_hz // 10)
    found = []
    for start in range(0, len(pcm16), size):
        found += await hearing.append(pcm16[start : start + size], rate_hz)
    return found


@pytest.mark.parametrize(
    ("turns", "kept_s"),
    [
        (VoiceTurns(idle_timeout_s=IDLE_S), IDLE_S),
        (VoiceTurns(prefix_padding_s=6.0, idle_timeout_s=IDLE_S), 6.0 + UNDECIDED_S),
        (VoiceTurns(prefix_padding_s=0.5), 0.5 + UNDECIDED_S),
    ],
)
async def test_silence_that_times_out_is_recorded_for_as_long_as_it_lasted(
    listener: VoiceListener, turns: VoiceTurns, kept_s: float
) -> None:
    hearing = TurnDetector(listener, turns, max_s=60.0)
    assert await heard_in(hearing, silence(8.0, 24_000), 24_000) == []
    assert hearing.size_bytes == 2 * round(kept_s * 24_000)
    timed_out = hearing.time_out()
    assert timed_out is not None
    told, recording = timed_out
    assert (told.start_s, told.end_s) == (8.0 - kept_s, 8.0)
    assert recording.seconds == kept_s
    assert hearing.time_out() is None


async def test_silence_after_a_change_of_rate_is_what_was_heard_since(
    listener: VoiceListener,
) -> None:
    hearing = TurnDetector(listener, VoiceTurns(idle_timeout_s=IDLE_S), max_s=60.0)
    await heard_in(hearing, silence(2.0, 24_000), 24_000)
    await heard_in(hearing, silence(1.5, 8_000), 8_000)
    timed_out = hearing.time_out()
    assert timed_out is not None
    told, recording = timed_out
    assert (told.start_s, told.end_s) == (2.0, 3.5)
    assert (recording.rate_hz, recording.samples) == (8_000, 12_000)


async def test_turns_are_where_they_were_spoken_whatever_the_rate_was_before(
    listener: VoiceListener,
) -> None:
    hearing = TurnDetector(listener, VoiceTurns(), max_s=60.0)
    begun_s, first_s = 0.0, 0.0
    for rate_hz in (16_000, 8_000, 24_000):
        said = sentence(rate_hz)
        started, ended = await heard_in(hearing, said, rate_hz)
        assert isinstance(started, SpeechBegan)
        assert isinstance(ended, TurnHeard)
        # Resamplers round, and the network sees another sound: a frame is 32 ms.
        first_s = first_s or started.start_s
        assert started.start_s - begun_s == pytest.approx(first_s, abs=0.1)
        assert ended.recording.rate_hz == rate_hz
        assert ended.recording.seconds == pytest.approx(ended.stopped.end_s - started.start_s)
        begun_s += len(said) / (2 * rate_hz)
