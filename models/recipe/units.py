"""Units: the sound of every word and pause, and how a text becomes codes.

A unit starts at a frame's start and always has the same sound codes, so a sentence is
the concatenation of its tokens' units and any words can stand side by side.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from tqdm import tqdm  # type: ignore[import-untyped, unused-ignore]

from models.recipe import codes as coding
from models.recipe.acoustics import (
    BANDS,
    FRAME,
    HOPS,
    LOG_FLOOR,
    Floats,
    log_mel,
    stretch,
    voicing,
)
from models.recipe.codes import Codebooks, Codes
from models.recipe.espeak import LIGHT_WORDS, speak_word
from models.recipe.repertoire import UNITS

PAUSES = {" ": 1, ",": 2, ":": 2, ";": 2, ".": 3, "!": 3, "?": 3}
FALLING, RISING, HOLDING = {".", "!"}, {"?"}, {",", ":", ";"}
SHORTEST_UNIT = 2
# Frames at a word's end that are no longer raised, and those that fall or rise.
UNRAISED, ENDING = 2, 3


@dataclass(frozen=True, slots=True)
class Unit:
    """Log-mel [8 * n, 48] and voicing [8 * n] of a unit of n frames."""

    log_mel: Floats
    voiced: npt.NDArray[np.bool_]

    @property
    def frames(self) -> int:
        """How many frames it lasts."""
        return len(self.voiced) // HOPS

    def vectors(self) -> Floats:
        """One vector of 8 * 48 + 8 features for each frame."""
        sound = self.log_mel.reshape(self.frames, HOPS * BANDS)
        voiced = self.voiced.reshape(self.frames, HOPS) * coding.VOICED_WEIGHT
        return np.concatenate([sound, voiced], axis=1).astype(np.float32)


def names_of(text: str) -> list[str]:
    """The units of a text: lower-case words, digits and marks."""
    return [name.lower() for name in re.findall(r"[A-Za-z]+|[0-9]|[.,!?:;]", text)]


def make_units(words: Sequence[str]) -> dict[str, Unit]:
    """The unit of every word, spoken by espeak-ng, and of every pause."""
    units = {mark: _silence(frames) for mark, frames in PAUSES.items()}
    for word in tqdm(words, desc="words", unit="word"):
        units[word] = _unit(speak_word(word))
    units |= {str(digit): units[UNITS[digit]] for digit in range(10)}
    return units


def _unit(samples: Floats) -> Unit:
    frames = max(SHORTEST_UNIT, round(len(samples) / FRAME))
    features = np.concatenate([log_mel(samples), voicing(samples)[:, None]], axis=1)
    fitted = stretch(features.astype(np.float32), frames * HOPS)
    return Unit(fitted[:, :BANDS], fitted[:, BANDS] > 0.5)


def _silence(frames: int) -> Unit:
    hops = frames * HOPS
    return Unit(np.full((hops, BANDS), LOG_FLOOR, np.float32), np.zeros(hops, dtype=bool))


def pitches(names: Sequence[str], lengths: Sequence[int]) -> list[Codes]:
    """The pitch level of each frame of each unit.

    Content words are raised until their last frames; before a full stop a word's end
    falls, before a question mark it rises, before a comma its last frame is raised. A
    level follows from the word, what comes next and the frames left, but not from the
    word's length, which a talker in the midst of it would have to remember. The first
    frame depends on the unit alone, as the next token may not have been read by then.
    """
    found = []
    for at, (name, length) in enumerate(zip(names, lengths, strict=True)):
        left = np.arange(length)[::-1]
        levels = np.full(length, coding.MIDDLE, dtype=np.int64)
        if name not in PAUSES:
            if name not in LIGHT_WORDS:
                levels[left >= UNRAISED] = levels[0] = coding.RAISED
            following = names[at + 1] if at + 1 < len(names) else "."
            later = np.arange(length) > 0
            if following in FALLING:
                levels[later & (left < ENDING)] = coding.LOW
            elif following in RISING:
                levels[later & (left < ENDING)] = coding.HIGH
            elif following in HOLDING:
                levels[later & (left == 0)] = coding.RAISED
        found.append(levels)
    return found


@dataclass(frozen=True, slots=True)
class Lexicon:
    """Units, their sound codes, and the codebooks behind them."""

    units: dict[str, Unit]
    sounds: dict[str, Codes]
    codebooks: Codebooks

    def encode(self, names: Sequence[str], voice: int) -> Codes:
        """The codes of a token sequence: [frames, 8]."""
        lengths = [self.units[name].frames for name in names]
        sound = np.concatenate([self.sounds[name] for name in names])
        level = np.concatenate(pitches(names, lengths))
        countdown = np.concatenate([np.arange(length)[::-1] for length in lengths])
        token = np.repeat(np.arange(len(names)), lengths)
        at = np.arange(len(sound))
        clock = np.where(at <= len(names), at, coding.TEXT_OVER)
        pitch = coding.pitch_code(voice, level, countdown)
        return np.column_stack([sound, pitch, token, clock])

    def describe(self, names: Sequence[str]) -> tuple[Floats, npt.NDArray[np.bool_]]:
        """Log-mel and voicing of a token sequence, before quantisation."""
        units = [self.units[name] for name in names]
        return (
            np.concatenate([unit.log_mel for unit in units]),
            np.concatenate([unit.voiced for unit in units]),
        )


def make_lexicon(units: dict[str, Unit], seed: int) -> Lexicon:
    """Fit the codebooks to the units and encode them."""
    codebooks = coding.fit(np.concatenate([unit.vectors() for unit in units.values()]), seed)
    sounds = {name: codebooks.encode(unit.vectors()) for name, unit in units.items()}
    return Lexicon(units, sounds, codebooks)


def quantisation_error(lexicon: Lexicon) -> float:
    """Mean absolute difference of the decoded log-mel, in nat."""
    bands = HOPS * BANDS
    errors = [
        np.abs(lexicon.codebooks.decode(lexicon.sounds[name]) - unit.vectors())[:, :bands].mean(1)
        for name, unit in lexicon.units.items()
    ]
    return float(np.concatenate(errors).mean())


def save_lexicon(lexicon: Lexicon, path: Path) -> None:
    """Write a lexicon as `.npz`."""
    names = list(lexicon.units)
    np.savez_compressed(
        path,
        names=np.array(names),
        lengths=np.array([lexicon.units[name].frames for name in names]),
        log_mel=np.concatenate([lexicon.units[name].log_mel for name in names]),
        voiced=np.concatenate([lexicon.units[name].voiced for name in names]),
        sounds=np.concatenate([lexicon.sounds[name] for name in names]),
        centroids=lexicon.codebooks.centroids,
    )


def load_lexicon(path: Path) -> Lexicon:
    """Read what `save_lexicon` wrote."""
    with np.load(path) as stored:
        ends = np.cumsum(stored["lengths"])[:-1]
        log_mels = np.split(stored["log_mel"], ends * HOPS)
        voiced = np.split(stored["voiced"], ends * HOPS)
        names = [str(name) for name in stored["names"]]
        units = {n: Unit(m, v) for n, m, v in zip(names, log_mels, voiced, strict=True)}
        sounds = dict(zip(names, np.split(stored["sounds"], ends), strict=True))
        return Lexicon(units, sounds, Codebooks(stored["centroids"]))
