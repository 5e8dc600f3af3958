"""The voice: a recording's codes and latents, and its speaker, from the operator's directory.

The vendor distributes these files with its code, not with the checkpoint.
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
    """Codes int64 [n], latents float32 [m, width] and the speaker float32 [speaker width]."""

    codes: npt.NDArray[np.int64]
    latents: npt.NDArray[np.float32]
    speaker: npt.NDArray[np.float32]


def voice_folder(model_dir: Path, setting: str) -> Path:
    """Return the directory of the voice: the setting, or `token2wav/prompt` of the checkpoint."""
    return Path(setting) if setting else model_dir / TOKEN2WAV_FOLDER / VOICE_FOLDER


def read_voice(folder: Path, *, latent: int, speaker: int) -> VoicePrompt:
    """Read a voice whose latents and speaker have these widths. Raises `FailedPrecondition`."""
    missing = [name for name in VOICE_FILES if not (folder / name).is_file()]
    if missing:
        raise FailedPrecondition(
            f"voice_dir: {folder} lacks {', '.join(missing)}; copy {', '.join(VOICE_FILES)} from "
            "the folder token2wav/prompt of the vendor's repository Tencent/Covo-Audio into a "
            "directory, and set voice_dir of code2wav to it",
            field="voice_dir",
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
    """Return an array [n, width] of finite numbers of these kinds; without a width, [n, 1]."""
    with reading(path):
        array = np.load(path, allow_pickle=False)
        if array.dtype.kind not in kinds or not np.isfinite(array).all():
            raise ValueError(f"it holds {array.dtype}, or values that are not finite")
        if array.ndim > 3 or (width and array.shape[-1:] != (width,)):
            raise ValueError(f"its shape is {list(array.shape)}, the last axis must have {width}")
        wanted: npt.NDArray[Any] = array.reshape(-1, width or 1)
        return wanted
