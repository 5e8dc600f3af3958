"""How Qwen2.5-Omni's audio tower counts."""

from __future__ import annotations

from services.thinker.audio import AudioTower


def encoder_positions(frames: int) -> int:
    """Positions that the audio encoder makes of mel frames, halving them twice.

    Mirrors `_get_feat_extract_output_lengths`.
    """
    convolved = (frames - 1) // 2 + 1
    return (convolved - 2) // 2 + 1


# Its windows are of one recording each, and end where that does.
AUDIO_TOWER = AudioTower(encoder_positions)
