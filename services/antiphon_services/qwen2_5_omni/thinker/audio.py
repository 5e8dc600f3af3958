"""Determines the number of rows that Qwen2.5-Omni's audio tower computes. This module also
describes the tower's batching rules.
"""

from __future__ import annotations

from antiphon_services.thinker.audio import AudioTower


def encoder_positions(frames: int) -> int:
    """Return the number of rows that the audio encoder computes for a given number of mel frames.
    The encoder halves this number twice.

    This mirrors `_get_feat_extract_output_lengths`.
    """
    convolved = (frames - 1) // 2 + 1
    return (convolved - 2) // 2 + 1


def audio_tower(n_window: int) -> AudioTower:
    """Describe an encoder that limits attention to windows of `2 * n_window` mel frames of the same
    recording.

    If the window length isn't a multiple of 4, the halved frames extend into the next window, so
    windows can't be encoded separately.
    """
    window = 2 * n_window
    return AudioTower(encoder_positions, window_frames=0 if window % 4 else window)
