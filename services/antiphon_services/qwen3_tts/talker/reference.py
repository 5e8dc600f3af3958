"""Encodes a reference recording to a speaker vector and codec frames, which are used to clone a
voice.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from transformers import MimiConfig, MimiModel

from antiphon.errors import FailedPrecondition
from antiphon.pipelines.files import CONFIG_FILE, REMEDY, read_config, reading
from antiphon.pipelines.qwen3_tts import CODEC_FOLDER
from antiphon.runtime.checkpoint.submodule import load_submodule
from antiphon.runtime.checkpoint.weights import Weights
from antiphon_services.clips.cache import ClipCache, Samples
from antiphon_services.qwen3_tts.talker.fields import CODEC_PARTS
from antiphon_services.qwen3_tts.talker.speaker import SpeakerEncoder
from antiphon_services.stage.config_fields import check_fields
from antiphon_services.stage.memory_plan import StoredPart

CODEC_PREFIX, SPEAKER_PREFIX = "encoder.", "speaker_encoder."

# Modules that this codec doesn't have. Its decoder is different.
NOT_THERE = ("upsample", "decoder_transformer", "decoder")


def encoder_parts(model_dir: Path) -> list[StoredPart]:
    """Return the tensors that a `ReferenceEncoder` loads. Raises `FailedPrecondition` if the
    checkpoint can't be read.
    """
    skip = tuple(f"{CODEC_PREFIX}{name}." for name in NOT_THERE)
    return [
        StoredPart(Weights(model_dir / CODEC_FOLDER), CODEC_PREFIX, skip),
        StoredPart(Weights(model_dir), SPEAKER_PREFIX),
    ]


class ReferenceEncoder:
    """The encoders of a base checkpoint. Recordings must have a sample rate of 24 kHz."""

    def __init__(self, model_dir: Path, dtype: torch.dtype, device: torch.device | str) -> None:
        """Load the encoders. Raises `FailedPrecondition` if the checkpoint doesn't have any."""
        folder = model_dir / CODEC_FOLDER
        codec = read_config(folder)
        check_fields(folder / CONFIG_FILE, codec, CODEC_PARTS)
        speaker = _part(read_config(model_dir), "speaker_encoder_config", model_dir)
        placed: dict[str, Any] = {"dtype": dtype, "device": device}
        with reading(folder / CONFIG_FILE):
            config = MimiConfig(**_part(codec, "encoder_config", folder))
            self.groups = int(codec["encoder_valid_num_quantizers"])
            self._samples_per_frame = int(codec["encode_downsample_rate"])
        self._codec: Any = load_submodule(
            MimiModel, config, CODEC_PREFIX, Weights(folder), skip=NOT_THERE, **placed
        )
        self._speaker = load_submodule(
            SpeakerEncoder, speaker, SPEAKER_PREFIX, Weights(model_dir), **placed
        )
        self._device = torch.device(device)
        self._dtype = dtype
        self._vectors = ClipCache(self._encode_speaker)
        self._frames = ClipCache(self._encode_frames)

    def count(self, samples: Samples) -> int:
        """Return the number of frames for `samples` [n]."""
        return -(-len(samples) // self._samples_per_frame)

    def vector(self, samples: Samples) -> npt.NDArray[np.float32]:
        """Return the speaker vector (float32 [width]) for `samples` [n]. The array is read-only."""
        return self._vectors.of(samples)

    def frames(self, samples: Samples) -> npt.NDArray[np.uint16]:
        """Return the frames (uint16 [n, groups]) for `samples` [n]. The array is read-only."""
        return self._frames.of(samples)

    @torch.inference_mode()
    def _encode_speaker(self, samples: Samples) -> npt.NDArray[np.float32]:
        # Make a copy, because arrays from messages are read-only, which makes torch print a
        # warning.
        vector = self._speaker(torch.tensor(samples, device=self._device))
        return _frozen(np.asarray(vector.float().cpu().numpy(), np.float32))

    @torch.inference_mode()
    def _encode_frames(self, samples: Samples) -> npt.NDArray[np.uint16]:
        placed = torch.tensor(samples, device=self._device, dtype=self._dtype)[None, None]
        codes = self._codec.encode(placed).audio_codes[0, : self.groups]
        return _frozen(np.asarray(codes[:, : self.count(samples)].T.cpu().numpy(), np.uint16))


def _frozen(array: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Make an array read-only, because it will be shared, and return it."""
    array.flags.writeable = False
    return array


def _part(config: dict[str, Any], name: str, folder: Path) -> dict[str, Any]:
    """Return a section of a configuration. Raises `FailedPrecondition` if it is missing."""
    part = config.get(name)
    if not isinstance(part, dict):
        raise FailedPrecondition(
            f"{folder / CONFIG_FILE}: {name} is missing or not an object, but it is required "
            f"for voice cloning; {REMEDY}"
        )
    return part
