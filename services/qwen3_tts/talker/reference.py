"""What a reference recording gives a clone: the speaker's vector, and the codec's frames."""

from __future__ import annotations

import hashlib
import threading
from collections import OrderedDict
from collections.abc import Callable
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
from services.config_fields import check_fields
from services.qwen3_tts.talker.fields import CODEC_PARTS
from services.qwen3_tts.talker.speaker import SpeakerEncoder

# What the codec has none of: its decoder is another one.
_NOT_THERE = ("upsample", "decoder_transformer", "decoder")

# Of recordings, whose frames are some tens of KB.
KEPT_REFERENCES = 64

Samples = npt.NDArray[np.float32]


class ReferenceEncoder:
    """The encoders of a base checkpoint, for recordings of 24 kHz."""

    def __init__(self, model_dir: Path, dtype: torch.dtype, device: torch.device | str) -> None:
        """Raises `FailedPrecondition` for a checkpoint that has none."""
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
            MimiModel, config, "encoder.", Weights(folder), skip=_NOT_THERE, **placed
        )
        self._speaker = load_submodule(
            SpeakerEncoder, speaker, "speaker_encoder.", Weights(model_dir), **placed
        )
        self._device = torch.device(device)
        self._dtype = dtype
        self._vectors = _Known(self._encode_speaker)
        self._frames = _Known(self._encode_frames)

    def count(self, samples: Samples) -> int:
        """How many frames samples [n] make."""
        return -(-len(samples) // self._samples_per_frame)

    def vector(self, samples: Samples) -> npt.NDArray[np.float32]:
        """The speaker's vector, float32 [width], of samples [n]; not to be written to."""
        return self._vectors.of(samples)

    def frames(self, samples: Samples) -> npt.NDArray[np.uint16]:
        """The frames, uint16 [n, groups], of samples; not to be written to."""
        return self._frames.of(samples)

    @torch.inference_mode()
    def _encode_speaker(self, samples: Samples) -> npt.NDArray[np.float32]:
        # A copy: what came in a message cannot be written to, which torch minds.
        vector = self._speaker(torch.tensor(samples, device=self._device))
        return np.asarray(vector.float().cpu().numpy(), np.float32)

    @torch.inference_mode()
    def _encode_frames(self, samples: Samples) -> npt.NDArray[np.uint16]:
        heard = torch.tensor(samples, device=self._device, dtype=self._dtype)[None, None]
        codes = self._codec.encode(heard).audio_codes[0, : self.groups]
        return np.asarray(codes[:, : self.count(samples)].T.cpu().numpy(), np.uint16)


class _Known:
    """What was made of the recordings that came last: most voices are cloned again and again."""

    def __init__(self, encode: Callable[[Samples], npt.NDArray[Any]]) -> None:
        self._encode = encode
        self._known: OrderedDict[bytes, npt.NDArray[Any]] = OrderedDict()
        self._state = threading.Lock()

    def of(self, samples: Samples) -> npt.NDArray[Any]:
        """What is made of a recording. Any number of threads may ask."""
        key = hashlib.blake2b(np.ascontiguousarray(samples).data, digest_size=16).digest()
        with self._state:
            if (known := self._known.get(key)) is not None:
                self._known.move_to_end(key)
                return known
        made = self._encode(samples)
        made.flags.writeable = False
        with self._state:
            self._known[key] = made
            if len(self._known) > KEPT_REFERENCES:
                self._known.popitem(last=False)
        return made


def _part(config: dict[str, Any], name: str, folder: Path) -> dict[str, Any]:
    """A part of a configuration. Raises `FailedPrecondition`."""
    part = config.get(name)
    if not isinstance(part, dict):
        raise FailedPrecondition(
            f"{folder / CONFIG_FILE}: {name} is missing or no object, so that voices cannot be "
            f"cloned; {REMEDY}"
        )
    return part
