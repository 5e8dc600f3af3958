"""Reads the voices of a checkpoint from `spk2info.pt`, which the vendor's code writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.cosyvoice3 import FRAMES_PER_CODE, MEL_BINS, SPEAKER_WIDTH, SPEECH_IDS
from antiphon.pipelines.files import REMEDY, reading
from antiphon.runtime.checkpoint.torch_files import read_torch_file
from antiphon_services.cosyvoice3.talker.prompt import Voice
from antiphon_services.cosyvoice3.talker.tokenizer import END_OF_PROMPT

VOICES_FILE = "spk2info.pt"


@dataclass(frozen=True, slots=True)
class StoredVoice:
    """A stored voice.

    `prompt_text` contains the token IDs of the transcript of its recording, if there is one.
    """

    voice: Voice
    prompt_text: tuple[int, ...] = ()


def read_voices(model_dir: Path, entries: int, end_of_prompt: int) -> dict[str, StoredVoice]:
    """Read the voices of a checkpoint, in the order of the file.

    The keys of the result are lowercase names. The result is empty if there is no voice file. The
    token IDs of a prompt text must be below `entries` and include `end_of_prompt`. Raises
    `FailedPrecondition` if the file contains code, or if a voice lacks a required tensor.
    """
    path = model_dir / VOICES_FILE
    if not path.is_file():
        return {}
    told = read_torch_file(path)
    with reading(path):
        voices = {str(name).lower(): _voice(str(name), each) for name, each in told.items()}
        for name, stored in voices.items():
            _check_words(name, stored.prompt_text, entries, end_of_prompt)
    if len(voices) < len(told):
        raise FailedPrecondition(
            f"{path}: two voices have names that differ by case alone: "
            f"{', '.join(map(str, told))}; {REMEDY}"
        )
    return voices


def _check_words(name: str, ids: Sequence[int], entries: int, end_of_prompt: int) -> None:
    if not ids:
        return
    if not 0 <= min(ids) <= max(ids) < entries:
        raise ValueError(f"{name}: its prompt_text has ids that are not below {entries}")
    if end_of_prompt not in ids:
        raise ValueError(f"{name}: its prompt_text lacks {END_OF_PROMPT}")


def _voice(name: str, told: Mapping[str, Any]) -> StoredVoice:
    """Convert a stored voice.

    A trained voice only has a speaker vector. A voice that was added from a recording also has the
    codes and mel frames of the recording.
    """
    speaker = told["embedding"] if "embedding" in told else told["flow_embedding"]
    vector = np.asarray(speaker.to(torch.float32).numpy()).reshape(1, -1)
    if vector.shape != (1, SPEAKER_WIDTH) or not np.isfinite(vector).all():
        raise ValueError(f"{name}: its embedding is not a vector of {SPEAKER_WIDTH} numbers")
    if "flow_prompt_speech_token" not in told:
        return StoredVoice(Voice.of_speaker(vector))
    codes = told["flow_prompt_speech_token"].to(torch.int32).numpy().reshape(-1)
    mel = told["prompt_speech_feat"].to(torch.float32).numpy().reshape(-1, MEL_BINS)
    if len(mel) != FRAMES_PER_CODE * len(codes) or (codes >= SPEECH_IDS).any() or (codes < 0).any():
        raise ValueError(f"{name}: its prompt has {len(codes)} codes and {len(mel)} mel frames")
    text = tuple(told["prompt_text"].reshape(-1).tolist())
    return StoredVoice(Voice(vector, codes, mel), text)
