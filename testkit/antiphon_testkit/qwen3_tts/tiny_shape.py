"""Sizes of tiny Qwen3-TTS checkpoints: two sets, one for each kind of released model."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_testkit.tiny_shape import TinySizes

# The vendor's `generate` never draws the last 1024 ids of the talker's vocabulary but eos.
CODEC_SPECIALS = 1024

CUSTOM_VOICE_KIND, BASE_KIND = "custom_voice", "base"


@dataclass(frozen=True, slots=True)
class TtsShape(TinySizes):
    """Sizes of a tiny checkpoint; `kind` is `tts_model_type`: preset voices, or clones.

    Where `predictor_hidden` is not `hidden`, a linear layer leads from one to the other.
    """

    kind: str = CUSTOM_VOICE_KIND
    hidden: int = 48
    head_dim: int = 16
    intermediate: int = 64
    text_hidden: int = 40
    code_groups: int = 4
    codebook_size: int = 64
    predictor_hidden: int = 32
    predictor_layers: int = 2
    predictor_heads: int = 2
    predictor_kv_heads: int = 1
    predictor_head_dim: int = 16
    predictor_intermediate: int = 48
    # Of the codec: the decoder.
    latent: int = 24
    codebook_dim: int = 16
    decoder_hidden: int = 32
    decoder_layers: int = 2
    decoder_heads: int = 2
    decoder_kv_heads: int = 2
    decoder_head_dim: int = 24
    decoder_intermediate: int = 48
    decoder_window: int = 5
    decoder_dim: int = 32
    # The encoder, of which the first `code_groups` codebooks count.
    encoder_hidden: int = 16
    encoder_filters: int = 2
    encoder_layers: int = 1
    encoder_codebooks: int = 6
    # The speaker encoder, which ends with the talker's width.
    speaker_channels: int = 8

    @property
    def talker_vocabulary(self) -> int:
        """Codes first, then the control ids."""
        return self.codebook_size + CODEC_SPECIALS


CUSTOM_VOICE = TtsShape()
BASE = TtsShape(
    kind=BASE_KIND,
    hidden=32,
    layers=3,
    heads=2,
    kv_heads=1,
    head_dim=16,
    intermediate=48,
    text_hidden=56,
    codebook_size=128,
    predictor_layers=1,
    predictor_heads=4,
    predictor_kv_heads=2,
    decoder_layers=3,
    decoder_heads=4,
    decoder_kv_heads=2,
    decoder_head_dim=8,
    decoder_window=9,
    latent=40,
)
