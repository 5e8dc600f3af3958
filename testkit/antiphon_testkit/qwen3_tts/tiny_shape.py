"""Sizes of tiny Qwen3-TTS checkpoints. There are two sets, one for each kind of released model."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_testkit.tiny_shape import TinySizes

# Of the last 1024 IDs in the talker's vocabulary, the vendor's `generate` only ever draws eos.
CODEC_SPECIALS = 1024

CUSTOM_VOICE_KIND, BASE_KIND = "custom_voice", "base"


@dataclass(frozen=True, slots=True)
class TtsShape(TinySizes):
    """The sizes of a tiny checkpoint. `kind` is its `tts_model_type`, which selects preset voices
    or voice cloning.

    If `predictor_hidden` is different from `hidden`, there is a linear layer between the two.
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
    # The codec's decoder.
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
    # The codec's encoder. Only its first `code_groups` codebooks are used.
    encoder_hidden: int = 16
    encoder_filters: int = 2
    encoder_layers: int = 1
    encoder_codebooks: int = 6
    # The speaker encoder, whose last layer has the talker's width.
    speaker_channels: int = 8

    @property
    def talker_vocabulary(self) -> int:
        """The size of the talker's vocabulary, in which the codes precede the control IDs."""
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
