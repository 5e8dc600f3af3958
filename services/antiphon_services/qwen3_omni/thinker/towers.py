"""Prepares calls to Qwen3-Omni's audio tower. The torch engine doesn't have a vision tower."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from antiphon.errors import Internal
from antiphon_services.qwen3_omni.thinker.audio import encoder_positions
from antiphon_services.thinker.towers import TowerInputs

MOST_CHUNKS = 64
"""The maximum number of chunks per call. In bfloat16, the widest layer takes 6 MB per chunk, so a
call takes at most 0.5 GB.
"""


class Omni3Towers:
    """Implements `antiphon_services.thinker.towers.TowerPlan`."""

    def audio(self, tower: Any, features: Tensor, frames: Tensor) -> Iterator[TowerInputs]:
        """Yield calls that contain complete attention windows, with a total of up to `MOST_CHUNKS`
        chunks. A window that is larger than this gets its own call.

        All chunks are padded to the longest chunk among all recordings.
        """
        padded, lengths = _chunks(features, frames.tolist(), 2 * tower.n_window)
        counts = torch.tensor([encoder_positions(each, tower.n_window) for each in lengths])
        # The longest chunk determines the number of rows in an attention window.
        window = int(counts.max()) * (tower.n_window_infer // (2 * tower.n_window))
        totals = [encoder_positions(each, tower.n_window) for each in frames.tolist()]
        windows = torch.tensor(_bounds(totals, window), dtype=torch.int32)
        valid = (torch.arange(int(counts.max())) < counts[:, None]).flatten().nonzero().squeeze(-1)
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
                "chunk_lengths": torch.tensor(lengths[first:stop]),
                "valid_indices": valid[begin:end] - first * most,
                "cu_seqlens": windows[(windows >= begin) & (windows <= end)] - begin,
            }
            first = stop

    def vision(self, tower: Any, grid: Tensor) -> TowerInputs:
        """Raise `Internal`, because the torch engine of this family does not support images."""
        raise Internal("Qwen3-Omni's torch engine has no vision tower")


def _chunks(features: Tensor, frames: list[int], size: int) -> tuple[Tensor, list[int]]:
    """Split every recording into chunks of `size` frames and pad them to the length of the longest
    chunk.

    `features` [mel bins, frames] contains all recordings in sequence. Returns the chunks [chunks,
    mel bins, frames] and the number of frames in each of them.
    """
    lengths = [min(size, count - start) for count in frames for start in range(0, count, size)]
    parts = torch.split(features.T, lengths)
    return pad_sequence(list(parts), batch_first=True).transpose(1, 2), lengths


def _bounds(totals: list[int], window: int) -> list[int]:
    """Return the boundaries of the attention windows among the rows of all recordings.

    A window never contains rows of more than one recording.
    """
    bounds = [0]
    for total in totals:
        first = bounds[-1]
        bounds += [*range(first + window, first + total, window), first + total]
    return bounds
