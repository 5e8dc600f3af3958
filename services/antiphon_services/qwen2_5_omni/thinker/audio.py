"""How Qwen2.5-Omni's audio tower counts."""

from __future__ import annotations

from antiphon_services.thinker.audio import AudioTower


def encoder_positions(frames: int) -> int:
    """Positions that the audio encoder makes of mel frames, halving them twice.

    Mirrors `_get_feat_extract_output_lengths`.
    """
    convolved = (frames - 1) // 2 + 1
    return (convolved - 2) // 2 + 1


def audio_tower(n_window: int) -> AudioTower:
    """Of an encoder that attends within windows of `2 * n_window` mel frames, of one recording
    each, which end where that does.

    Of a window that is not halved twice without a rest, the halves reach into the next one.
    """
    window = 2 * n_window
    return AudioTower(encoder_positions, window_frames=0 if window % 4 else window)
