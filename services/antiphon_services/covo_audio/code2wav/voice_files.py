"""Reads the voice, which consists of the codes, the latents and the speaker embedding of a
recording.

The vendor distributes these files with its source code instead of the checkpoint, so the operator
must provide them in a directory.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.covo_audio import CODE_ENTRIES, TOKEN2WAV_FOLDER, VOICE_FOLDER
from antiphon.pipelines.files import REMEDY, reading

CODES_FILE, LATENTS_FILE, SPEAKER_FILE = VOICE_FILES = (
    "prompt_token.npy",
    "prompt_latent.npy",
    "speaker_embed.npy",
)


@dataclass(frozen=True, slots=True)
class VoicePrompt:
    """The voice that is used for all answers.

    `codes` is an int64 array of shape [n], `latents` is a float32 array of shape [m, width], and
    `speaker` is a float32 array of shape [speaker width].
    """

    codes: npt.NDArray[np.int64]
    latents: npt.NDArray[np.float32]
    speaker: npt.NDArray[np.float32]


def voice_folder(model_dir: Path, setting: str) -> Path:
    """Return the voice directory.

    This is the directory in `setting`, if it is set. Otherwise, it is `token2wav/prompt` in the
    checkpoint.
    """
    return Path(setting) if setting else model_dir / TOKEN2WAV_FOLDER / VOICE_FOLDER


def read_voice(folder: Path, *, latent: int, speaker: int) -> VoicePrompt:
    """Read a voice whose latents and speaker embedding have the given widths.

    Raises `FailedPrecondition` if a file is missing or invalid.
    """
    missing = [name for name in VOICE_FILES if not (folder / name).is_file()]
    if missing:
        raise FailedPrecondition(
            f"files.voice_dir: {folder} does not contain {', '.join(missing)}; copy "
            f"{', '.join(VOICE_FILES)} from the folder token2wav/prompt of the vendor's "
            "repository Tencent/Covo-Audio to a directory, and set files.voice_dir of code2wav "
            "to this directory",
            field="files.voice_dir",
        )
    made = VoicePrompt(
        _read(folder / CODES_FILE, "iu", None).astype(np.int64)[:, 0],
        _read(folder / LATENTS_FILE, "f", latent).astype(np.float32),
        _read(folder / SPEAKER_FILE, "f", speaker).astype(np.float32)[0],
    )
    if made.codes.size and not 0 <= made.codes.min() <= made.codes.max() < CODE_ENTRIES:
        raise FailedPrecondition(
            f"{folder / CODES_FILE}: codes must be below {CODE_ENTRIES}; {REMEDY}"
        )
    return made


def _read(path: Path, kinds: str, width: int | None) -> npt.NDArray[Any]:
    """Read an array of shape [n, width], or [n, 1] if `width` is None.

    Its dtype must be one of `kinds`, and all of its values must be finite.
    """
    with reading(path):
        array = np.load(path, allow_pickle=False)
        if array.dtype.kind not in kinds or not np.isfinite(array).all():
            raise ValueError(f"it contains {array.dtype}, or values that are not finite")
        if array.ndim > 3 or (width and array.shape[-1:] != (width,)):
            raise ValueError(
                f"its shape is {list(array.shape)}, but the last axis must have {width} elements"
            )
        wanted: npt.NDArray[Any] = array.reshape(-1, width or 1)
        return wanted
