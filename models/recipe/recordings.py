"""Spoken questions for training the audio tower, which use espeak-ng's voices.

Only the clean mel power of each recording is stored. Noise, silence and volume are applied to the
power, with new random values each time a recording is used. `normalise` converts the power to the
same features that Hugging Face's extractor computes from audio.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch.nn import functional as F

from models.recipe.acoustics import Floats
from models.recipe.dialogues import CLOSERS, OPENERS, Dialogues
from models.recipe.espeak import Manner, speak_as
from models.recipe.repertoire import load_repertoire

# The number of recordings of repertoire questions, and of function requests.
ASKED, REQUESTED = 12_000, 800
HEARING_RATE = 16_000
HOP, WINDOW, BANDS = 160, 400, 128
FLOOR = 1e-10
# The dynamic range of Whisper's extractor below the loudest frame, in powers of ten.
RANGE = 8.0

ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-gbcwmd")
SPEAKERS = ("", "+f1", "+f3", "+f4", "+m1", "+m2", "+m4", "+m6", "+m7")
SPEEDS = (125, 195)
PITCHES = (25, 75)
# These voices are not used for training. They are reserved for the evaluation.
UNHEARD_MANNERS = ("en-gb-x-rp", "en-us+f2", "en-gb+m3", "en-gb-x-rp+f2", "en-gb-scotland+m3")

REWORDED, UNKNOWN_SHARE = 0.15, 0.1


@dataclass(frozen=True, slots=True)
class MelRecording:
    """A spoken text, and the power of its 10 ms frames.

    `power` contains log10 values as a float16 array of shape [BANDS, frames].
    """

    text: str
    power: npt.NDArray[np.float16]


def spoken_questions() -> list[str]:
    """Return the questions of the repertoire whose words can all be spoken as written."""
    asked = (question for exchange in load_repertoire() for question in exchange.questions)
    return [each for each in asked if not any(c in "+12345" for c in each.replace("2wav", ""))]


class Texts:
    """Draws the texts of recordings, in lower case and without punctuation."""

    def __init__(self, sentences: Sequence[str]) -> None:
        self._sentences, self._dialogues = sentences, Dialogues()

    def draw(self, at: int, chance: random.Random) -> str:
        """Return the sentence at an index, with an occasional opening, closing or different
        question.
        """
        if chance.random() < UNKNOWN_SHARE:
            return " ".join(self._dialogues.unknown(chance).split())
        text = self._sentences[at % len(self._sentences)]
        if chance.random() < REWORDED:
            if chance.random() < 0.6:
                text = f"{chance.choice(OPENERS)}{text}"
            else:
                text += chance.choice(CLOSERS)
        return text.replace(",", "")


def draw_manner(chance: random.Random) -> Manner:
    """Draw a voice for training and its parameters."""
    voice = chance.choice(ACCENTS) + chance.choice(SPEAKERS)
    return Manner(voice, chance.randint(*SPEEDS), chance.randint(*PITCHES))


def make_recordings(sentences: Sequence[str], count: int, seed: int) -> list[MelRecording]:
    """Record sentences in order, each time with a different voice and different parameters."""
    texts = Texts(sentences)

    def make(at: int) -> MelRecording:
        chance = random.Random(f"recording {seed} {at}")
        text = texts.draw(at, chance)
        samples = speak_as(text, draw_manner(chance), HEARING_RATE)
        power = log_power(trim(samples))
        return MelRecording(text, power.to(torch.float16).numpy())

    _bands()  # imports, which threads may not do side by side
    with ThreadPoolExecutor(2) as pool:
        return list(pool.map(make, range(count)))


def trim(samples: Floats) -> Floats:
    """Remove the silence around speech."""
    loud = np.flatnonzero(np.abs(samples) > 0.01)
    return samples[max(0, loud[0] - 400) : loud[-1] + 800]


def log_power(samples: Floats) -> torch.Tensor:
    """Return log10 of the mel power for every 10 ms, with shape [BANDS, frames]."""
    return (mel_power(torch.from_numpy(samples)).clamp_min(FLOOR)).log10()


def mel_power(samples: torch.Tensor) -> torch.Tensor:
    """Return the mel power, which Whisper's extractor computes before the logarithm."""
    spectrum = torch.stft(
        samples, WINDOW, HOP, window=_hann(), return_complex=True, pad_mode="reflect"
    )
    return _bands().T @ spectrum[..., :-1].abs().square()


def normalise(power: torch.Tensor) -> torch.Tensor:
    """Convert mel power to the features of the extractor."""
    logarithm = power.clamp_min(FLOOR).log10()
    return (logarithm.clamp_min(logarithm.max() - RANGE) + 4.0) / 4.0


def _hann() -> torch.Tensor:
    return torch.hann_window(WINDOW)


@cache
def _bands() -> torch.Tensor:
    """Return the mel filters, of shape [WINDOW / 2 + 1, BANDS]."""
    from transformers import WhisperFeatureExtractor

    extractor: Any = WhisperFeatureExtractor(feature_size=BANDS)  # type: ignore[no-untyped-call]
    return torch.from_numpy(extractor.mel_filters).float()


def save_recordings(recordings: Sequence[MelRecording], path: Path) -> None:
    """Write recordings to a .npz file."""
    lengths = np.array([each.power.shape[1] for each in recordings])
    power = np.concatenate([each.power for each in recordings], 1)
    np.savez(path, power=power, lengths=lengths, texts=np.array([r.text for r in recordings]))


def load_recordings(path: Path) -> list[MelRecording]:
    """Read recordings from a .npz file."""
    with np.load(path) as stored:
        ends = np.cumsum(stored["lengths"])[:-1]
        parts = np.split(stored["power"], ends, axis=1)
        return [MelRecording(str(t), p) for t, p in zip(stored["texts"], parts, strict=True)]


NOISE_SECONDS = 30
SNR_DB = (14.0, 45.0)
QUIET_SHARE = 0.15
LEAD, TAIL = (2, 45), (2, 65)
LOUDNESS_DB = (-14.0, 2.0)
SHIFT = 3
WITHOUT_WORDS, TONES = (30, 500), 12


class Surroundings:
    """Adds background sounds to speech: silence, noise, and changes of volume and timbre."""

    def __init__(self, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self._noises = [_coloured(generator, slope) for slope in (0.0, 0.5, 1.0)]
        self._tones = [_tone(generator) for _ in range(TONES)]

    def add(self, recording: MelRecording, chance: random.Random) -> tuple[torch.Tensor, int]:
        """Return features of the recording with background, and the frame at which it starts.

        The features have shape [BANDS, frames].
        """
        power = 10.0 ** torch.from_numpy(recording.power).float()
        shift = chance.randint(-SHIFT, SHIFT)
        power = torch.roll(power, shift, 0)
        if shift:
            edge = slice(0, shift) if shift > 0 else slice(shift, None)
            power[edge] = FLOOR
        begin = chance.randint(*LEAD)
        power = F.pad(power, (begin, chance.randint(*TAIL)), value=FLOOR)
        power *= 10 ** (chance.uniform(*LOUDNESS_DB) / 10)
        if chance.random() >= QUIET_SHARE:
            noise = chance.choice(self._noises)
            cut = chance.randrange(noise.shape[1] - power.shape[1])
            part = noise[:, cut : cut + power.shape[1]]
            level = 10 ** (-chance.uniform(*SNR_DB) / 10)
            power = power + part * (level * recording_level(power) / part.mean())
        return normalise(power), begin

    def nothing(self, chance: random.Random) -> torch.Tensor:
        """Return features of a recording without speech."""
        noise = chance.choice([*self._noises, *self._tones])
        frames = chance.randint(*WITHOUT_WORDS)
        begin = chance.randrange(noise.shape[1] - frames)
        level = 10 ** chance.uniform(-6.0, 0.0)
        return normalise(noise[:, begin : begin + frames] * level + chance.choice((0.0, 1e-4)))


def recording_level(power: torch.Tensor) -> torch.Tensor:
    """Return the mean power of the frames that contain speech."""
    loudness = power.mean(0)
    return loudness[loudness > loudness.max() * 1e-3].mean()


def _coloured(generator: np.random.Generator, slope: float) -> torch.Tensor:
    """Return the mel power of noise whose spectrum decreases with frequency."""
    size = NOISE_SECONDS * HEARING_RATE
    spectrum = np.fft.rfft(generator.normal(size=size))
    frequency = np.maximum(np.fft.rfftfreq(size, 1 / HEARING_RATE), 50.0)
    noise = np.fft.irfft(spectrum / frequency**slope)
    return mel_power(torch.from_numpy((noise / noise.std()).astype(np.float32)))


def _tone(generator: np.random.Generator) -> torch.Tensor:
    """Return the mel power of a tone with varying volume."""
    time = np.arange(WITHOUT_WORDS[1] * 2 * HOP) / HEARING_RATE
    swell = 1 + generator.uniform(0, 1) * np.sin(2 * np.pi * generator.uniform(0.1, 5) * time)
    tone = swell * np.sin(2 * np.pi * generator.uniform(80, 3000) * time)
    return mel_power(torch.from_numpy(tone.astype(np.float32)))
