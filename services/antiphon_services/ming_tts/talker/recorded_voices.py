"""The voices of Ming-flash-omni, which are recordings listed in `data/voice_name.json`."""

from __future__ import annotations

import wave
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import REMEDY, read_json, reading, require_file

WIDTHS = (2, 3, 4)
"""The supported sample widths in bytes."""


@dataclass(frozen=True, slots=True)
class ListedVoice:
    """A recording and its transcript.

    `samples` is a float32 array of shape [n] at `rate_hz`, the sample rate of the file.
    """

    samples: npt.NDArray[np.float32]
    rate_hz: int
    text: str


def read_listed_voices(file: Path, folder: Path) -> dict[str, ListedVoice]:
    """Read the voices in the order of the file, by lowercase name.

    Returns no voices if the file does not exist. Recording paths are relative to `folder`. Raises
    `FailedPrecondition` if an entry has no recording, if a recording cannot be read or is outside
    of `folder`, or if two names only differ in case.
    """
    if not file.is_file():
        return {}
    listed = read_json(file)
    with reading(file):
        voices = {str(name).lower(): _voice(name, each, folder) for name, each in listed.items()}
    if len(voices) < len(listed):
        raise FailedPrecondition(
            f"{file}: the names of two voices differ only in case: {', '.join(listed)}; {REMEDY}"
        )
    return voices


def _voice(name: str, listed: Mapping[str, str], folder: Path) -> ListedVoice:
    path = folder / listed["prompt_wav_path"]
    if not path.resolve().is_relative_to(folder.resolve()):
        raise ValueError(f"{name}: {listed['prompt_wav_path']} is outside of {folder}")
    require_file(path)
    with reading(path):
        samples, rate_hz = _samples(path)
        return ListedVoice(samples, rate_hz, str(listed.get("prompt_text", "")))


def _samples(path: Path) -> tuple[npt.NDArray[np.float32], int]:
    """Read a WAV file and average its channels. Returns the samples and their rate in Hz."""
    with wave.open(str(path), "rb") as file:
        width, channels, rate = file.getsampwidth(), file.getnchannels(), file.getframerate()
        content = np.frombuffer(file.readframes(file.getnframes()), np.uint8)
    if width not in WIDTHS:
        raise ValueError(f"its samples have {8 * width} bits; use 16, 24 or 32 bits")
    # The little-endian samples are copied to the upper bytes of 32-bit integers.
    whole = np.zeros((len(content) // width, 4), np.uint8)
    whole[:, 4 - width :] = content.reshape(-1, width)
    mono = (whole.view("<i4").reshape(-1, channels) / 2.0**31).mean(1, dtype=np.float64)
    return mono.astype(np.float32), rate
