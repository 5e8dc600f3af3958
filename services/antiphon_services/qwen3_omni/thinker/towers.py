"""The calls of Qwen3-Omni's audio tower; its vision tower is not run here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    chunk_and_pad_features,
    get_audio_cu_seqlens,
    get_valid_indices,
)

from antiphon.errors import Internal
from antiphon_services.qwen3_omni.thinker.audio import encoder_positions
from antiphon_services.thinker.towers import TowerInputs

MOST_CHUNKS = 64
"""Of a call. The widest layer makes 6 MB of a chunk in bfloat16, so a call takes 0.5 GB at most."""


class Omni3Towers:
    """Implements `antiphon_services.thinker.towers.TowerPlan`."""

    def audio(self, tower: Any, features: Tensor, frames: Tensor) -> Iterator[TowerInputs]:
        """Whole windows of attention, up to `MOST_CHUNKS` chunks a call, or one window that is
        larger. All chunks are padded to the longest of all recordings."""
        padded, lengths = chunk_and_pad_features(features, frames, tower.n_window)
        windows = get_audio_cu_seqlens(lengths, frames, tower.n_window_infer, tower.n_window)
        valid = get_valid_indices(lengths, tower.n_window)
        counts = torch.tensor(
            [encoder_positions(each, tower.n_window) for each in lengths.tolist()]
        )
        ends, most = counts.cumsum(0), int(counts.max())
        first = 0
        while first < len(lengths):
            begin = int(ends[first - 1]) if first else 0
            last = int(ends[min(first + MOST_CHUNKS, len(lengths)) - 1])
            closed = [each for each in windows.tolist() if each > begin]
            end = max([each for each in closed if each <= last], default=closed[0])
            stop = int(torch.searchsorted(ends, end)) + 1
            yield {
                "padded_feature": padded[first:stop],
                "chunk_lengths": lengths[first:stop],
                "valid_indices": valid[begin:end] - first * most,
                "cu_seqlens": windows[(windows >= begin) & (windows <= end)] - begin,
            }
            first = stop

    def vision(self, tower: Any, grid: Tensor) -> TowerInputs:
        """The torch engine of this family sees nothing."""
        raise Internal("Qwen3-Omni's torch engine has no vision tower")
