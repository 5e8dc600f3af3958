"""Sizes of tiny CosyVoice3 checkpoints. Sizes that are fixed by the vendor's code are not
included.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_testkit.tiny_shape import TinySizes


@dataclass(frozen=True, slots=True)
class CosyVoiceShape(TinySizes):
    """The sizes of a tiny checkpoint. If `voices` is true, the checkpoint has voices of its own."""

    voices: bool = True
    hidden: int = 48
    intermediate: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    look_ahead_channels: int = 24
    flow_width: int = 64
    flow_layers: int = 3
    flow_heads: int = 4
    flow_head_dim: int = 16
    vocoder_channels: int = 64
    pitch_channels: int = 24


VOICES = CosyVoiceShape()
CLONES = CosyVoiceShape(
    voices=False,
    hidden=32,
    intermediate=48,
    layers=3,
    heads=2,
    kv_heads=1,
    look_ahead_channels=16,
    flow_width=48,
    flow_layers=2,
    flow_heads=2,
    flow_head_dim=24,
    vocoder_channels=32,
    pitch_channels=16,
)
