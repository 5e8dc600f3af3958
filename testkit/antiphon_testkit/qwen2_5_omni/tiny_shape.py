"""Sizes of a tiny Qwen2.5-Omni checkpoint."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_testkit.tiny_shape import TinyMultimodalSizes

REPEATS = 2
"""Mel frames of a code."""


@dataclass(frozen=True, slots=True)
class TinyOmni25Shape(TinyMultimodalSizes):
    """Sizes of a tiny checkpoint; the names follow the parts of the model.

    `hidden` is the thinker's width and so that of the rows that its talker takes. The decoder
    has a row for each of `codebook_size` + 2 codes, as the released one has (8192 + 2). With
    `endless_text` and `endless_speech` thinker and talker never draw their end. `stray_codes`
    lets the talker draw ids that the decoder has no row for, and `pad_ends` lets it end with
    the pad id as often as with the end id.
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
        """The first talker id that the decoder has no row for."""
        return self.codebook_size + 2

    @property
    def codec_pad(self) -> int:
        """The talker's first control id; ids between the codes and it are unused."""
        return self.codebook_size + 36

    @property
    def talker_vocabulary(self) -> int:
        """Codes, unused ids and control ids."""
        return self.codec_pad + 28
