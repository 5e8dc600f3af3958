"""How Qwen3-Omni's audio tower counts, and what it makes recordings share."""

from __future__ import annotations

from functools import partial

from antiphon.pipelines.qwen3_omni import AUDIO_CHUNK_POSITIONS, window_positions
from antiphon_services.thinker.audio import AudioTower


def audio_tower(n_window: int, n_window_infer: int = 0) -> AudioTower:
    """Of an encoder whose chunks have `2 * n_window` mel frames, and which attends within windows
    of `n_window_infer`.

    It pads its chunks to the longest one of the call. A window that is no whole number of chunks
    is none that can be encoded alone.
    """
    window = n_window_infer if window_positions(n_window, n_window_infer) else 0
    return AudioTower(partial(encoder_positions, n_window=n_window), 2 * n_window, window)


def encoder_positions(frames: int, n_window: int) -> int:
    """Positions that the audio encoder makes of mel frames.

    Mirrors `_get_feat_extract_output_lengths`: 13 for each whole chunk of
    `2 * n_window` frames, and the rest halved three times, rounding up.
    """
    chunks, rest = divmod(frames, 2 * n_window)
    for _ in range(3):
        rest = (rest + 1) // 2
    return AUDIO_CHUNK_POSITIONS * chunks + rest
