"""The codes of a frame, and the units that texts are made of."""

import numpy as np
import pytest

from models.recipe import codes as coding
from models.recipe.acoustics import BANDS, FRAME, HOPS, LOG_FLOOR
from models.recipe.codes import (
    CLOCK_GROUP,
    PITCH_GROUP,
    TEXT_OVER,
    TOKEN_GROUP,
)
from models.recipe.units import Lexicon, Unit, make_lexicon, names_of, pitches
from models.recipe.vocoder import synthesise

LENGTHS = {"red": 4, "fox": 5, "the": 2, ".": 3, "?": 3}


def make_unit(frames: int, seed: int) -> Unit:
    generator = np.random.default_rng(seed)
    log_mel = generator.normal(-2, 1, (frames * HOPS, BANDS)).astype(np.float32)
    return Unit(log_mel, generator.random(frames * HOPS) < 0.7)


@pytest.fixture(scope="module")
def lexicon() -> Lexicon:
    fillers = {f"filler{at}": make_unit(6, 100 + at) for at in range(60)}
    units = {name: make_unit(frames, at) for at, (name, frames) in enumerate(LENGTHS.items())}
    return make_lexicon(units | fillers, seed=0)


def test_codes_of_a_word_are_the_same_when_its_neighbours_differ(lexicon: Lexicon) -> None:
    alone = lexicon.encode(["fox"], 0)[:, : coding.BOOKS]
    between = lexicon.encode(["the", "fox", "red"], 1)[2:7, : coding.BOOKS]
    np.testing.assert_array_equal(alone, between)


def test_codes_say_where_in_the_text_they_are(lexicon: Lexicon) -> None:
    codes = lexicon.encode(["the", "red", "."], 0)
    assert codes[:, TOKEN_GROUP].tolist() == [0, 0, 1, 1, 1, 1, 2, 2, 2]
    assert codes[:, CLOCK_GROUP].tolist() == [0, 1, 2, 3] + [TEXT_OVER] * 5
    assert (codes[:, PITCH_GROUP] % coding.COUNTDOWNS).tolist() == [1, 0, 3, 2, 1, 0, 2, 1, 0]


def test_codes_fit_the_codebook_when_the_text_is_long(lexicon: Lexicon) -> None:
    codes = lexicon.encode(["fox"] * coding.MOST_TOKENS, 1)
    assert codes.min() >= 0
    assert codes.max() < coding.ENTRIES


def test_pulses_differ_between_voices(lexicon: Lexicon) -> None:
    pulses = [coding.pulses_of(lexicon.encode(["the"], v)[:, PITCH_GROUP]) for v in (0, 1)]
    middle = [voice[coding.MIDDLE] for voice in coding.VOICES.values()]
    assert [set(each.tolist()) for each in pulses] == [{middle[0]}, {middle[1]}] or all(
        set(each.tolist()) <= set(voice)
        for each, voice in zip(pulses, coding.VOICES.values(), strict=True)
    )


def test_pitch_falls_before_a_full_stop_and_rises_before_a_question_mark() -> None:
    assert pitches(["fox", "."], [4, 3])[0].tolist()[2:] == [coding.LOW] * 2
    assert pitches(["fox", "?"], [4, 3])[0].tolist()[2:] == [coding.HIGH] * 2


def test_pitch_of_the_first_frame_does_not_depend_on_the_next_token() -> None:
    first = {int(pitches(["fox", mark], [1, 3])[0][0]) for mark in ".,?!"}
    assert len(first) == 1


def test_pitch_follows_from_the_frames_left_and_not_from_the_length() -> None:
    """Two words of different length end alike, and are alike before that."""
    for mark in ".,?":
        short, long = (pitches(["fox", mark], [length, 3])[0].tolist() for length in (4, 7))
        assert long[-3:] == short[-3:]
        assert set(long[:-3]) == set(short[:-3]) == {coding.RAISED}


def test_names_are_words_digits_and_marks() -> None:
    assert names_of("It is code2wav, yes!") == ["it", "is", "code", "2", "wav", ",", "yes", "!"]


@pytest.mark.parametrize("count", [8, 10, 16])
def test_vocoder_repeats_itself_after_one_period(count: int) -> None:
    """The same frame again gives the same samples: the voice is locked to the frames."""
    log_mel = np.full((6 * HOPS, BANDS), -1.5, np.float32)
    voiced = np.ones(6 * HOPS, dtype=bool)
    samples = synthesise(log_mel, voiced, np.full(6, count))
    np.testing.assert_allclose(
        samples[2 * FRAME : 3 * FRAME], samples[3 * FRAME : 4 * FRAME], atol=1e-5
    )


def test_vocoder_is_silent_at_the_floor() -> None:
    hops = 4 * HOPS
    quiet = synthesise(
        np.full((hops, BANDS), LOG_FLOOR, np.float32), np.zeros(hops, dtype=bool), np.full(4, 10)
    )
    assert np.abs(quiet).max() < 2e-3
