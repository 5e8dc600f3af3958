"""Reads a checkpoint's voices for the decoder."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from antiphon.pipelines.files import reading
from antiphon.pipelines.qwen2_5_omni import VOICES_FILE
from antiphon.runtime.checkpoint.torch_files import read_torch_file


@dataclass(frozen=True, slots=True)
class VoiceTensors:
    """The `condition` [1, width] and the `mel` frames [1, frames, mel bins] of a recording, in
    float32.
    """

    condition: Tensor
    mel: Tensor


def read_voices(
    model_dir: Path, *, condition_width: int, mel_width: int
) -> dict[str, VoiceTensors]:
    """Return at least one voice, by name, in the order of the file.

    Raises `FailedPrecondition` if the file is missing, if it contains code, or if one of its voices
    doesn't have these tensors.
    """
    path = model_dir / VOICES_FILE
    told = read_torch_file(path)
    with reading(path):
        if not isinstance(told, dict) or not told:
            raise TypeError("it contains no voices")
        return {
            str(name): _check(name, each, condition_width, mel_width) for name, each in told.items()
        }


def _check(name: str, told: Any, condition_width: int, mel_width: int) -> VoiceTensors:
    condition, mel = told["cond"], told["ref_mel"]
    if tuple(condition.shape) != (1, condition_width):
        raise ValueError(
            f"{name}: cond must have the shape [1, {condition_width}], got {list(condition.shape)}"
        )
    if mel.ndim != 3 or mel.shape[::2] != (1, mel_width) or not mel.shape[1]:
        raise ValueError(
            f"{name}: ref_mel must have the shape [1, frames, {mel_width}], got {list(mel.shape)}"
        )
    tensors = VoiceTensors(condition.to(torch.float32), mel.to(torch.float32))
    if not all(bool(each.isfinite().all()) for each in (tensors.condition, tensors.mel)):
        raise ValueError(f"{name}: contains values that are not finite")
    return tensors
