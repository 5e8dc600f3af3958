"""The picture is a PNG in which something is drawn; its spectrogram finds a tone."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.image import imread

from antiphon_tools.demo.picture import DYNAMIC_RANGE_DB, HOP, draw_conversation, spectrogram_db
from antiphon_tools.demo.timeline import conversation_pcm16, place_turns
from antiphon_tools.demo.waveform import from_pcm16
from tests.unit.tools.demo.answers import RATE_HZ, pcm16, turn

STAGES = ("thinker", "talker", "code2wav")


def test_picture_can_be_read_back_when_texts_have_signs_that_the_font_lacks(
    tmp_path: Path,
) -> None:
    odd = turn(voice="high", text="$1\n你好 $2", sound=pcm16(1.0, -9000))
    placed = place_turns([turn(sound=pcm16(1.0, 9000)), turn(text=""), odd])
    samples = from_pcm16(conversation_pcm16(placed, RATE_HZ))
    draw_conversation(placed, samples, RATE_HZ, STAGES, tmp_path / "demo.png")
    picture = imread(tmp_path / "demo.png")
    assert picture.shape[1] > picture.shape[0] > 500
    assert len(np.unique(picture.reshape(-1, picture.shape[2]), axis=0)) > 50


def test_spectrogram_is_loudest_at_the_frequency_and_time_of_a_tone() -> None:
    samples = np.zeros(RATE_HZ, np.float32)
    times = np.arange(RATE_HZ // 2) / RATE_HZ
    samples[RATE_HZ // 2 :] = np.sin(2 * np.pi * 3_000 * times)
    decibels = spectrogram_db(samples)
    middle_of_tone = round(0.75 * RATE_HZ / HOP)
    assert decibels[:, middle_of_tone].argmax() == round(3_000 / RATE_HZ * 1024)
    assert decibels[:, : round(0.4 * RATE_HZ / HOP)].max() == -DYNAMIC_RANGE_DB
    assert decibels.max() == 0.0


def test_spectrogram_is_at_its_floor_when_there_is_silence_only() -> None:
    assert (spectrogram_db(np.zeros(5_000, np.float32)) == -DYNAMIC_RANGE_DB).all()
