"""Sizes of a tiny Qwen2.5-Omni checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_testkit.tiny_shape import TinyMultimodalSizes

REPEATS = 2
"""The number of mel frames per code."""


@dataclass(frozen=True, slots=True)
class TinyOmni25Shape(TinyMultimodalSizes):
    """The sizes of a tiny checkpoint. Their names are based on the parts of the model.

    `hidden` is the width of the thinker, and therefore of the rows that the talker receives. The
    decoder has a row for each of `codebook_size` + 2 codes, like the released one (8192 + 2). With
    `endless_text`, the thinker never draws its end ID, and with `endless_speech`, the talker never
    does. With `stray_codes`, the talker can draw IDs for which the decoder has no row. With
    `pad_ends`, speech ends with the pad ID as often as with the end ID.
    """

    talker_hidden: int = 48
    talker_layers: int = 2
    talker_heads: int = 4
    talker_kv_heads: int = 2
    talker_head_dim: int = 16
    codebook_size: int = 64
    flow_hidden: int = 64
    flow_layers: int = 3
    flow_heads: int = 2
    flow_head_dim: int = 32
    flow_code_width: int = 32
    block_frames: int = 24
    vocoder_channels: int = 64
    speaker_width: int = 24
    reference_frames: int = 30
    endless_text: bool = False
    endless_speech: bool = False
    stray_codes: bool = False
    pad_ends: bool = False

    @property
    def first_stray(self) -> int:
        """The first talker ID for which the decoder has no row."""
        return self.codebook_size + 2

    @property
    def codec_pad(self) -> int:
        """The talker's first control ID. The IDs between the codes and this one are not used."""
        return self.codebook_size + 36

    @property
    def talker_vocabulary(self) -> int:
        """The total number of codes, unused IDs and control IDs."""
        return self.codec_pad + 28
