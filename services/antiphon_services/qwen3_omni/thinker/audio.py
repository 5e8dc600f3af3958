"""Determines the number of rows that Qwen3-Omni's audio tower computes. This module also describes
the tower's batching rules.
"""

from __future__ import annotations

from functools import partial

from antiphon.pipelines.qwen3_omni import AUDIO_CHUNK_POSITIONS, window_positions
from antiphon_services.thinker.audio import AudioTower


def audio_tower(n_window: int, n_window_infer: int = 0) -> AudioTower:
    """Describe an encoder with chunks of `2 * n_window` mel frames that limits attention to windows
    of `n_window_infer` frames.

    The encoder pads its chunks to the longest chunk in the call. Windows can only be encoded
    separately if each of them consists of a whole number of chunks.
    """
    window = n_window_infer if window_positions(n_window, n_window_infer) else 0
    return AudioTower(partial(encoder_positions, n_window=n_window), 2 * n_window, window)


def encoder_positions(frames: int, n_window: int) -> int:
    """Return the number of rows that the audio encoder computes for a given number of mel frames.

    This mirrors `_get_feat_extract_output_lengths`. Each full chunk of `2 * n_window` frames gives
    13 rows. The number of remaining frames is halved three times, rounding up each time.
    """
    chunks, rest = divmod(frames, 2 * n_window)
    for _ in range(3):
        rest = (rest + 1) // 2
    return AUDIO_CHUNK_POSITIONS * chunks + rest
