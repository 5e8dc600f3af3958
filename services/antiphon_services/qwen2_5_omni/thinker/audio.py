"""The number of rows and the batching rules of Qwen2.5-Omni's audio tower."""

from __future__ import annotations

from antiphon_services.thinker.audio import AudioTower


def encoder_positions(frames: int) -> int:
    """Return the number of rows that the audio encoder computes for a number of mel frames, which
    it halves twice.

    This mirrors `_get_feat_extract_output_lengths`.
    """
    convolved = (frames - 1) // 2 + 1
    return (convolved - 2) // 2 + 1


def audio_tower(n_window: int) -> AudioTower:
    """Describe an encoder with attention within windows of `2 * n_window` mel frames of one
    recording.

    If the length of a window is not a multiple of 4, the halved frames extend into the next window.
    In this case, windows cannot be encoded separately.
    """
    window = 2 * n_window
    return AudioTower(encoder_positions, window_frames=0 if window % 4 else window)
