"""Prepares calls to Qwen2.5-Omni's towers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import Tensor
from transformers.models.qwen2_5_omni.modeling_qwen2_5_omni import (
    chunk_and_pad_features,
    get_audio_cu_seqlens,
    get_pool_indices,
    get_valid_indices,
)
from transformers.vision_utils import (
    get_vision_cu_seqlens,
    get_vision_position_ids,
    get_vision_window_index,
)

from antiphon_services.thinker.towers import TowerInputs


class Omni25Towers:
    """Implements `antiphon_services.thinker.towers.TowerPlan`."""

    def audio(self, tower: Any, features: Tensor, frames: Tensor) -> Iterator[TowerInputs]:
        """Yield a single call for all recordings. Each recording is at most 300 s long."""
        padded, lengths = chunk_and_pad_features(features, frames, tower.n_window)
        yield {
            "padded_feature": padded,
            "chunk_lengths": lengths,
            "valid_indices": get_valid_indices(lengths),
            "pool_indices": get_pool_indices(frames),
            "cu_seqlens": get_audio_cu_seqlens(lengths),
        }

    def vision(self, tower: Any, grid: Tensor) -> TowerInputs:
        """Return the positions of the patches, and the attention windows for both kinds of
        layers.
        """
        index, windows = get_vision_window_index(
            grid,
            spatial_merge_size=tower.spatial_merge_size,
            window_size=tower.window_size,
            patch_size=tower.patch_size,
        )
        return {
            "position_ids": get_vision_position_ids(grid, tower.spatial_merge_size),
            "cu_seqlens": get_vision_cu_seqlens(grid),
            "window_index": index,
            "cu_window_seqlens": windows,
        }
