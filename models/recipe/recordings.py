"""Spoken questions to learn hearing by: espeak-ng's voices, as power in mel bands.

What is kept is each recording's clean power, because noise, silence and loudness can be
added to power, and are drawn anew each time that a recording is heard. `Hearing` makes of
it what Hugging Face's extractor makes of the sound.
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

# Of the repertoire's questions, and of requests for functions.
ASKED, REQUESTED = 12_000, 800
HEARING_RATE = 16_000
HOP, WINDOW, BANDS = 160, 400, 128
FLOOR = 1e-10
# What Whisper's extractor keeps below the loudest moment, in powers of ten.
RANGE = 8.0

ACCENTS = ("en-us", "en-gb", "en-gb-scotland", "en-gb-x-gbcwmd")
SPEAKERS = ("", "+f1", "+f3", "+f4", "+m1", "+m2", "+m4", "+m6", "+m7")
SPEEDS = (125, 195)
PITCHES = (25, 75)
# Nothing of them is trained: the judge's.
UNHEARD_MANNERS = ("en-gb-x-rp", "en-us+f2", "en-gb+m3", "en-gb-x-rp+f2", "en-gb-scotland+m3")

REWORDED, UNKNOWN_SHARE = 0.15, 0.1


@dataclass(frozen=True, slots=True)
class MelRecording:
    """What is said, and the power of its 10 ms frames: log10, float16 [BANDS, frames]."""

    text: str
    power: npt.NDArray[np.float16]


def spoken_questions() -> list[str]:
    """The repertoire's questions that can be said as they are written."""
    asked = (question for exchange in load_repertoire() for question in exchange.questions)
    return [each for each in asked if not any(c in "+12345" for c in each.replace("2wav", ""))]


class Texts:
    """Draws what recordings say: lower case, without punctuation."""

    def __init__(self, sentences: Sequence[str]) -> None:
        self._sentences, self._dialogues = sentences, Dialogues()

    def draw(self, at: int, chance: random.Random) -> str:
        """Sentence by sentence, now and then with an opening, a closing or another question."""
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
    """A voice that training uses, and how it speaks."""
    voice = chance.choice(ACCENTS) + chance.choice(SPEAKERS)
    return Manner(voice, chance.randint(*SPEEDS), chance.randint(*PITCHES))


def make_recordings(sentences: Sequence[str], count: int, seed: int) -> list[MelRecording]:
    """Sentences one after the other, each time in another manner."""
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
    """Without the silence around it."""
    loud = np.flatnonzero(np.abs(samples) > 0.01)
    return samples[max(0, loud[0] - 400) : loud[-1] + 800]


def log_power(samples: Floats) -> torch.Tensor:
    """log10 of the power in mel bands, of every 10 ms: [BANDS, frames]."""
    return (mel_power(torch.from_numpy(samples)).clamp_min(FLOOR)).log10()


def mel_power(samples: torch.Tensor) -> torch.Tensor:
    """Power in mel bands, as Whisper's extractor has it before the logarithm."""
    spectrum = torch.stft(
        samples, WINDOW, HOP, window=_hann(), return_complex=True, pad_mode="reflect"
    )
    return _bands().T @ spectrum[..., :-1].abs().square()


def normalise(power: torch.Tensor) -> torch.Tensor:
    """The extractor's features of power in mel bands."""
    logarithm = power.clamp_min(FLOOR).log10()
    return (logarithm.clamp_min(logarithm.max() - RANGE) + 4.0) / 4.0


def _hann() -> torch.Tensor:
    return torch.hann_window(WINDOW)


@cache
def _bands() -> torch.Tensor:
    """[WINDOW / 2 + 1, BANDS]."""
    from transformers import WhisperFeatureExtractor

    extractor: Any = WhisperFeatureExtractor(feature_size=BANDS)  # type: ignore[no-untyped-call]
    return torch.from_numpy(extractor.mel_filters).float()


def save_recordings(recordings: Sequence[MelRecording], path: Path) -> None:
    """Write them to a .npz file."""
    lengths = np.array([each.power.shape[1] for each in recordings])
    power = np.concatenate([each.power for each in recordings], 1)
    np.savez(path, power=power, lengths=lengths, texts=np.array([r.text for r in recordings]))


def load_recordings(path: Path) -> list[MelRecording]:
    """Read them again."""
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
    """Adds what is around speech: silence, noise, another loudness and throat."""

    def __init__(self, seed: int) -> None:
        generator = np.random.default_rng(seed)
        self._noises = [_coloured(generator, slope) for slope in (0.0, 0.5, 1.0)]
        self._tones = [_tone(generator) for _ in range(TONES)]

    def add(self, recording: MelRecording, chance: random.Random) -> tuple[torch.Tensor, int]:
        """Features [BANDS, frames] of the recording somewhere, and the frame where it begins."""
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
        """Features of a recording in which nobody speaks."""
        noise = chance.choice([*self._noises, *self._tones])
        frames = chance.randint(*WITHOUT_WORDS)
        begin = chance.randrange(noise.shape[1] - frames)
        level = 10 ** chance.uniform(-6.0, 0.0)
        return normalise(noise[:, begin : begin + frames] * level + chance.choice((0.0, 1e-4)))


def recording_level(power: torch.Tensor) -> torch.Tensor:
    """Mean power of the moments in which something is said."""
    loudness = power.mean(0)
    return loudness[loudness > loudness.max() * 1e-3].mean()


def _coloured(generator: np.random.Generator, slope: float) -> torch.Tensor:
    """Mel power of noise whose spectrum falls with frequency."""
    size = NOISE_SECONDS * HEARING_RATE
    spectrum = np.fft.rfft(generator.normal(size=size))
    frequency = np.maximum(np.fft.rfftfreq(size, 1 / HEARING_RATE), 50.0)
    noise = np.fft.irfft(spectrum / frequency**slope)
    return mel_power(torch.from_numpy((noise / noise.std()).astype(np.float32)))


def _tone(generator: np.random.Generator) -> torch.Tensor:
    """Mel power of a tone that swells and fades."""
    time = np.arange(WITHOUT_WORDS[1] * 2 * HOP) / HEARING_RATE
    swell = 1 + generator.uniform(0, 1) * np.sin(2 * np.pi * generator.uniform(0.1, 5) * time)
    tone = swell * np.sin(2 * np.pi * generator.uniform(80, 3000) * time)
    return mel_power(torch.from_numpy(tone.astype(np.float32)))
