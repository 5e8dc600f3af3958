"""A prompt's media in vLLM's format."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from antiphon_services.thinker.audio import AudioWindow
from antiphon_services.thinker.vision import FRAMES_PER_S, VIDEO

if TYPE_CHECKING:
    from antiphon_services.thinker.vision import Visual

NAMED_AT_ONCE = 1 << 20
"""The size, in bytes, of features whose names can be computed within one or two milliseconds."""


@dataclass(frozen=True, slots=True)
class PromptMedia:
    """Implements `vllm.order.Media` for the mel features of recordings, and for images and videos.

    Each window of a recording is an item with its own name, so that vLLM's prefix cache finds
    earlier windows no matter which windows follow them.
    """

    windows: Sequence[AudioWindow]
    visuals: Sequence[Visual]

    @property
    def takes_long(self) -> bool:
        """Whether there are files to decode, or so many features that computing their names takes a
        while.
        """
        unnamed = sum(each.features.nbytes for each in self.windows if not each.is_named)
        return bool(self.visuals) or unnamed > NAMED_AT_ONCE

    @property
    def decoded_pixels(self) -> int:
        """The total number of pixels in all decoded images and frames."""
        return sum(each.decoded for each in self.visuals)

    def fields(self) -> dict[str, Any]:
        """Return the features and pixels. Raises `InvalidArgument` if a file can't be decoded."""
        media: dict[str, Any] = {}
        if self.windows:
            media["audio"] = _features(self.windows)
        for visual in self.visuals:
            media.setdefault(visual.kind, []).append(visual.pixels())
        fields: dict[str, Any] = {"multi_modal_data": media} if media else {}
        if self.windows:
            fields["multi_modal_uuids"] = {"audio": [each.name for each in self.windows]}
        if VIDEO in media:
            # The time between two frames of a video, which determines their positions.
            fields["mm_processor_kwargs"] = {"fps": FRAMES_PER_S}
        return fields


def _features(windows: Sequence[AudioWindow]) -> dict[str, torch.Tensor]:
    """Return all windows, joined along the time axis [mel bins, frames], with their lengths [n] and
    masks [n, width].

    The masks are as wide as the padded chunks of the tower.
    """
    lengths = [each.features.shape[1] for each in windows]
    width = max(1, *(each.padded for each in windows))
    return {
        "input_audio_features": torch.from_numpy(
            np.concatenate([each.features for each in windows], axis=1)
        ),
        "audio_feature_lengths": torch.tensor(lengths),
        "feature_attention_mask": torch.ones(len(windows), width, dtype=torch.int32),
    }
