"""A waveform as two rows of blocks."""

from __future__ import annotations

import numpy as np
import pytest

from antiphon_tools.demo.waveform import from_pcm16, waveform_rows

RATE_HZ = 1_000
COLUMN = 40


def test_rows_show_highest_and_lowest_of_each_column() -> None:
    samples = np.zeros(3 * COLUMN, np.float32)
    samples[5], samples[COLUMN + 5], samples[COLUMN + 6] = 1.0, 0.5, -1.0
    assert waveform_rows(samples, RATE_HZ, 80) == ("█▄ ", "█ █")


def test_rows_are_as_high_as_the_blocks_when_the_sound_is_quiet_but_there() -> None:
    samples = np.full(COLUMN, 0.1, np.float32)
    assert waveform_rows(samples, RATE_HZ, 80) == ("█", "█")
    assert waveform_rows(samples / np.float32(100), RATE_HZ, 80) == (" ", "█")


def test_rows_are_never_wider_than_asked_and_cover_all_when_the_sound_grows() -> None:
    samples = np.zeros(25 * COLUMN, np.float32)
    samples[-1] = 1.0
    assert waveform_rows(samples, RATE_HZ, 25)[0] == " " * 24 + "█"
    assert waveform_rows(samples, RATE_HZ, 24)[0] == " " * 12 + "█"
    assert waveform_rows(samples, RATE_HZ, 10)[0] == " " * 6 + "█"


def test_rows_are_empty_when_there_is_no_sound_yet() -> None:
    assert waveform_rows(from_pcm16(b""), 0, 80) == ("", "")


def test_samples_are_between_minus_one_and_one_when_they_come_from_pcm16() -> None:
    levels = from_pcm16(np.array([-32768, 0, 16384], "<i2").tobytes())
    assert levels.tolist() == pytest.approx([-1.0, 0.0, 0.5])
    assert levels.dtype == np.float32
