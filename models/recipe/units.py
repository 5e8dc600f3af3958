"""Units, which are the sounds of words and pauses, and the conversion of text to codes.

A unit starts at the beginning of a frame and always has the same sound codes. A sentence is
therefore the concatenation of the units of its tokens, and words can be combined in any order.
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
# The number of frames at the end of a word that are not raised, and the number of frames that fall
# or rise.
UNRAISED, ENDING = 2, 3


@dataclass(frozen=True, slots=True)
class Unit:
    """A unit of n frames, with log-mel features [8 * n, 48] and voicing [8 * n]."""

    log_mel: Floats
    voiced: npt.NDArray[np.bool_]

    @property
    def frames(self) -> int:
        """The number of frames."""
        return len(self.voiced) // HOPS

    def vectors(self) -> Floats:
        """Return one vector of 8 * 48 + 8 features for each frame."""
        sound = self.log_mel.reshape(self.frames, HOPS * BANDS)
        voiced = self.voiced.reshape(self.frames, HOPS) * coding.VOICED_WEIGHT
        return np.concatenate([sound, voiced], axis=1).astype(np.float32)


def names_of(text: str) -> list[str]:
    """Return the units of a text, which are lowercase words, digits and punctuation marks."""
    return [name.lower() for name in re.findall(r"[A-Za-z]+|[0-9]|[.,!?:;]", text)]


def make_units(words: Sequence[str]) -> dict[str, Unit]:
    """Return the units of all words, as spoken by espeak-ng, and of all pauses."""
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
    """Return the pitch level of each frame of each unit.

    Content words are raised except for their last frames. The end of a word falls before a full
    stop and rises before a question mark. Before a comma, its last frame is raised. The level
    depends on the word, the next unit and the number of remaining frames. It does not depend on the
    length of the word, because the talker would have to remember it. The first frame only depends
    on the unit itself, because the next token may not have been read yet.
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
    """The units, their sound codes, and the codebooks that are used to encode them."""

    units: dict[str, Unit]
    sounds: dict[str, Codes]
    codebooks: Codebooks

    def encode(self, names: Sequence[str], voice: int) -> Codes:
        """Return the codes of a token sequence, with shape [frames, 8]."""
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
        """Return the log-mel features and voicing of a token sequence, before quantization."""
        units = [self.units[name] for name in names]
        return (
            np.concatenate([unit.log_mel for unit in units]),
            np.concatenate([unit.voiced for unit in units]),
        )


def make_lexicon(units: dict[str, Unit], seed: int) -> Lexicon:
    """Fit codebooks to the units and encode them."""
    codebooks = coding.fit(np.concatenate([unit.vectors() for unit in units.values()]), seed)
    sounds = {name: codebooks.encode(unit.vectors()) for name, unit in units.items()}
    return Lexicon(units, sounds, codebooks)


def quantisation_error(lexicon: Lexicon) -> float:
    """Return the mean absolute error of the decoded log-mel features in nats."""
    bands = HOPS * BANDS
    errors = [
        np.abs(lexicon.codebooks.decode(lexicon.sounds[name]) - unit.vectors())[:, :bands].mean(1)
        for name, unit in lexicon.units.items()
    ]
    return float(np.concatenate(errors).mean())


def save_lexicon(lexicon: Lexicon, path: Path) -> None:
    """Write a lexicon as a `.npz` file."""
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
    """Read a lexicon that `save_lexicon` has written."""
    with np.load(path) as stored:
        ends = np.cumsum(stored["lengths"])[:-1]
        log_mels = np.split(stored["log_mel"], ends * HOPS)
        voiced = np.split(stored["voiced"], ends * HOPS)
        names = [str(name) for name in stored["names"]]
        units = {n: Unit(m, v) for n, m, v in zip(names, log_mels, voiced, strict=True)}
        sounds = dict(zip(names, np.split(stored["sounds"], ends), strict=True))
        return Lexicon(units, sounds, Codebooks(stored["centroids"]))
