"""The calls of Qwen3-Omni's audio tower; its vision tower is not run here."""

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
"""Of a call. The widest layer makes 6 MB of a chunk in bfloat16, so a call takes 0.5 GB at most."""


class Omni3Towers:
    """Implements `antiphon_services.thinker.towers.TowerPlan`."""

    def audio(self, tower: Any, features: Tensor, frames: Tensor) -> Iterator[TowerInputs]:
        """Whole windows of attention, up to `MOST_CHUNKS` chunks a call, or one window that is
        larger. All chunks are padded to the longest of all recordings."""
        padded, lengths = _chunks(features, frames.tolist(), 2 * tower.n_window)
        counts = torch.tensor([encoder_positions(each, tower.n_window) for each in lengths])
        # Rows of an attention window follow from the longest chunk.
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
        """The torch engine of this family sees nothing."""
        raise Internal("Qwen3-Omni's torch engine has no vision tower")


def _chunks(features: Tensor, frames: list[int], size: int) -> tuple[Tensor, list[int]]:
    """Every recording's frames in chunks of this size, padded to the longest chunk
    [chunks, mel bins, frames], and how many frames each chunk has.

    `features` [mel bins, frames] are those of all recordings, one behind the other.
    """
    lengths = [min(size, count - start) for count in frames for start in range(0, count, size)]
    parts = torch.split(features.T, lengths)
    return pad_sequence(list(parts), batch_first=True).transpose(1, 2), lengths


def _bounds(totals: list[int], window: int) -> list[int]:
    """Where attention windows begin and end among the rows of all recordings; no window holds rows
    of two."""
    bounds = [0]
    for total in totals:
        first = bounds[-1]
        bounds += [*range(first + window, first + total, window), first + total]
    return bounds
