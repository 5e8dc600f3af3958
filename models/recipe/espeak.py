"""Generates speech with espeak-ng, which must be installed as a Debian package."""

from __future__ import annotations

import io
import re
import shutil
import subprocess
from dataclasses import dataclass

import numpy as np
import soundfile
import soxr

from antiphon.errors import FailedPrecondition
from models.recipe.acoustics import RATE, Floats

VOICE = "en-us"
WORD_SPEED = 180
# If these words are spoken by themselves, espeak-ng stresses and lengthens them unnaturally.
LIGHT_SPEED = 270
LIGHT_WORDS = frozenset(
    re.findall(
        "[a-z]+",
        """a an the to of and or in on at it is as by for from that this with are was were be been
    has have had do does did i he she we you they my your his her our their its me him us them
    not but if so can will would could should may must than then there who what when where
    which how why up out no""",
    )
)
SENTENCE_SPEED = 150
QUIET = 0.012

# Replacements for words that espeak-ng would otherwise spell out or stress differently.
SPELLING = {
    "a": "[[@]]",
    "the": "[[D@2]]",
    "to": "[[t@5]]",
    "antiphon": "antifon",
    "grpc": "gee are pee see",
    "openai": "open A I",
    "qwen": "kwen",
    "wav": "wave",
    "i": "eye",
    "cpu": "see pee you",
    "gpu": "gee pee you",
    "thinker": "thinker",
}


# Replacements within sentences, in which espeak-ng stresses words correctly.
SPELLED_OUT = {word: SPELLING[word] for word in ("antiphon", "grpc", "openai", "qwen", "wav")} | {
    "code2wav": "code two wave",
    "gpu": SPELLING["gpu"],
}


@dataclass(frozen=True, slots=True)
class Manner:
    """A voice, with its speed in words per minute, its pitch and its volume from 0 to 100."""

    voice: str = VOICE
    speed: int = SENTENCE_SPEED
    pitch: int = 50
    amplitude: int = 100


def speak(text: str, speed: int, amplitude: int = 100) -> Floats:
    """Return the speech of the voice that the checkpoint learns.

    The samples are float32 values in [-1, 1] at 24 kHz. Raises `FailedPrecondition` if espeak-ng is
    not installed.
    """
    return _run(text, Manner(speed=speed, amplitude=amplitude), RATE)


def speak_as(text: str, manner: Manner, rate: int) -> Floats:
    """Speak a sentence in any voice. Returns float32 samples in [-1, 1] at the given rate.

    Raises `FailedPrecondition` if espeak-ng is not installed.
    """
    said = " ".join(SPELLED_OUT.get(word.lower(), word) for word in text.split())
    return _run(said, manner, rate)


def _run(text: str, manner: Manner, rate: int) -> Floats:
    program = shutil.which("espeak-ng")
    if program is None:
        raise FailedPrecondition("espeak-ng: is not installed (Debian: apt-get install espeak-ng)")
    command = [program, "-v", manner.voice, "-s", str(manner.speed), "-p", str(manner.pitch)]
    command += ["-a", str(manner.amplitude), "--stdout", text]
    wav = subprocess.run(command, check=True, capture_output=True).stdout
    samples, original = soundfile.read(io.BytesIO(_with_length(wav)), dtype="float32")
    return np.asarray(soxr.resample(samples, original, rate), dtype=np.float32)


def speak_word(word: str) -> Floats:
    """Speak a single word, and remove the silence around it."""
    speed = LIGHT_SPEED if word in LIGHT_WORDS else WORD_SPEED
    samples = speak(SPELLING.get(word, word), speed)
    loud = np.flatnonzero(np.abs(samples) > QUIET)
    if not len(loud):
        raise FailedPrecondition(f"{word}: espeak-ng says nothing for it")
    return samples[max(0, loud[0] - 120) : loud[-1] + 240]


def _with_length(wav: bytes) -> bytes:
    """Set the length in the header of a WAV file, which is not known when it is written to a
    pipe.
    """
    data = wav.index(b"data") + 8
    size = (len(wav) - data).to_bytes(4, "little")
    return wav[:4] + (len(wav) - 8).to_bytes(4, "little") + wav[8 : data - 4] + size + wav[data:]
