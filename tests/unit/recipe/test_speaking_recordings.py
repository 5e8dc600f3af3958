"""Recordings to learn hearing by: the extractor's features, with noise and silence in power."""

import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.recipe.functions import function_requests
from models.recipe.recordings import (
    FLOOR,
    HEARING_RATE,
    LEAD,
    TAIL,
    MelRecording,
    Surroundings,
    Texts,
    draw_manner,
    load_recordings,
    log_power,
    mel_power,
    normalise,
    save_recordings,
    spoken_questions,
)


def speech_like(seconds: float, seed: int) -> np.ndarray[Any, np.dtype[np.float32]]:
    """Noise that swells, with a moment of silence."""
    generator = np.random.default_rng(seed)
    time = np.arange(int(seconds * HEARING_RATE)) / HEARING_RATE
    samples = generator.normal(0, 0.1, len(time)) * np.sin(2 * np.pi * 1.5 * time)
    samples[: len(time) // 5] = 0
    return samples.astype(np.float32)


@pytest.fixture(scope="module")
def recording() -> MelRecording:
    return MelRecording("what is antiphon", log_power(speech_like(1.2, 1)).half().numpy())


@pytest.fixture(scope="module")
def surroundings() -> Surroundings:
    return Surroundings(0)


@pytest.mark.parametrize("seconds", [0.4, 1.7])
def test_features_are_those_of_hugging_faces_extractor(
    tokenizer_directory: Path, vocabulary: object, seconds: float
) -> None:
    from transformers import WhisperFeatureExtractor

    extractor: Any = WhisperFeatureExtractor.from_pretrained(tokenizer_directory)
    samples = speech_like(seconds, 2)
    wanted = extractor(
        [samples], sampling_rate=HEARING_RATE, padding=True, truncation=False, return_tensors="pt"
    )["input_features"][0]
    found = normalise(mel_power(torch.from_numpy(samples)))
    torch.testing.assert_close(found, wanted[:, : found.shape[1]], rtol=0, atol=1e-5)


def test_recording_lies_within_silence_where_it_is_said_to(
    recording: MelRecording, surroundings: Surroundings
) -> None:
    lengths = set()
    for seed in range(12):
        features, begin = surroundings.add(recording, random.Random(seed))
        assert LEAD[0] <= begin <= LEAD[1]
        rest = features.shape[1] - begin - recording.power.shape[1]
        assert TAIL[0] <= rest <= TAIL[1]
        assert torch.isfinite(features).all()
        lengths.add(features.shape[1])
        silence = features[:, :begin].mean()
        spoken = features[:, begin + recording.power.shape[1] // 2 :][:, :20].mean()
        assert spoken > silence
    assert len(lengths) > 6


def test_same_chance_gives_the_same_features(
    recording: MelRecording, surroundings: Surroundings
) -> None:
    one, two = (surroundings.add(recording, random.Random(5))[0] for _ in range(2))
    assert torch.equal(one, two)


def test_noise_without_words_has_many_lengths_and_is_finite(surroundings: Surroundings) -> None:
    drawn = [surroundings.nothing(random.Random(seed)) for seed in range(20)]
    assert len({each.shape[1] for each in drawn}) > 10
    assert all(torch.isfinite(each).all() for each in drawn)


def test_recordings_are_read_as_they_were_written(recording: MelRecording, tmp_path: Path) -> None:
    other = MelRecording("hello", np.full((128, 7), np.log10(FLOOR), np.float16))
    save_recordings([recording, other], tmp_path / "recordings.npz")
    one, two = load_recordings(tmp_path / "recordings.npz")
    assert (one.text, two.text) == (recording.text, other.text)
    np.testing.assert_array_equal(one.power, recording.power)
    np.testing.assert_array_equal(two.power, other.power)


def test_every_sentence_is_drawn_and_most_as_they_are() -> None:
    sentences = [*spoken_questions(), *function_requests()]
    texts = Texts(sentences)
    drawn = [texts.draw(at, random.Random(at)) for at in range(2 * len(sentences))]
    plain = sum(text == sentences[at % len(sentences)] for at, text in enumerate(drawn))
    assert 0.6 < plain / len(drawn) < 0.95
    assert not any("," in text for text in drawn)


def test_manners_of_training_are_not_the_judges() -> None:
    from models.recipe.recordings import UNHEARD_MANNERS

    voices = {draw_manner(random.Random(seed)).voice for seed in range(400)}
    assert len(voices) > 30
    assert not voices & set(UNHEARD_MANNERS)
