"""What is heard and seen in a prompt, in vLLM's terms."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from services.thinker.audio import AudioFeatures
from services.thinker.vision import FRAMES_PER_S, VIDEO

if TYPE_CHECKING:
    from services.thinker.vision import Visual


@dataclass(frozen=True, slots=True)
class PromptMedia:
    """Implements `services.vllm.order.Media`: mel features of recordings, images and videos."""

    audio: AudioFeatures | None
    visuals: Sequence[Visual]

    @property
    def takes_long(self) -> bool:
        """Whether there are files to decode."""
        return bool(self.visuals)

    def fields(self) -> dict[str, Any]:
        """Features and pixels. Raises `InvalidArgument` for a file that cannot be decoded."""
        media: dict[str, Any] = {}
        if self.audio is not None:
            media["audio"] = _features(self.audio)
        for visual in self.visuals:
            media.setdefault(visual.kind, []).append(visual.pixels())
        fields: dict[str, Any] = {"multi_modal_data": media} if media else {}
        if VIDEO in media:
            # How much time two frames of a video are apart: from it come their positions.
            fields["mm_processor_kwargs"] = {"fps": FRAMES_PER_S}
        return fields


def _features(audio: AudioFeatures) -> dict[str, torch.Tensor]:
    """All recordings along time, [mel bins, frames], with lengths [n] and masks [n, widest].

    The masks keep the width that they were padded to together: see `model`.
    """
    mask = torch.from_numpy(np.ascontiguousarray(audio.mask))
    return {
        "input_audio_features": torch.from_numpy(np.ascontiguousarray(audio.features)),
        "audio_feature_lengths": mask.sum(-1),
        "feature_attention_mask": mask,
    }
