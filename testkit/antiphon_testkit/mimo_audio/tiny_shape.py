"""Sizes of tiny MiMo-Audio checkpoints. Those that the vendor's code fixes are not among them."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_testkit.tiny_shape import TinySizes


@dataclass(frozen=True, slots=True)
class MimoShape(TinySizes):
    """Sizes of both directories. With `marks`, the files of the tokenizer contain the marks of
    speech.

    `local` is the transformer that samples the codes of a group, and `group` the encoder of a
    group. `codec` holds the layers of the audio tokenizer, and `vocoder` those after its mel
    spectrogram.
    """

    marks: bool = True
    hidden: int = 64
    intermediate: int = 64
    layers: int = 2
    heads: int = 2
    kv_heads: int = 1
    head_dim: int = 32
    local_heads: int = 4
    local_hidden: int = 32
    local_intermediate: int = 64
    local_layers: int = 2
    group_hidden: int = 32
    group_layers: int = 2
    codec_hidden: int = 64
    codec_heads: int = 4
    codec_intermediate: int = 96
    encoder_layers: int = 4
    decoder_layers: int = 3
    quantizers: int = 20
    vocoder_hidden: int = 32
    vocoder_heads: int = 4
    vocoder_intermediate: int = 64
    vocoder_layers: int = 4

    def check(self) -> None:
        """Raise `InvalidArgument` for sizes that do not fit together."""
        TinySizes.check(self)
        for name, whole in (
            ("local_heads", "local_hidden"),
            ("local_heads", "group_hidden"),
            ("codec_heads", "codec_hidden"),
            ("vocoder_heads", "vocoder_hidden"),
        ):
            self.check_divides(name, whole, even=True)


MARKS = MimoShape()
"""As released: groups are encoded at the width at which codes are drawn, and heads divide the
hidden width. They are as wide as vLLM's attention on CPUs takes."""

WIDTHS = MimoShape(
    marks=False,
    hidden=32,
    intermediate=48,
    layers=3,
    heads=2,
    kv_heads=1,
    head_dim=20,
    local_heads=2,
    local_hidden=24,
    local_intermediate=40,
    local_layers=3,
    group_hidden=16,
    group_layers=3,
    codec_hidden=48,
    codec_heads=2,
    codec_intermediate=64,
    encoder_layers=5,
    decoder_layers=2,
    quantizers=12,
    vocoder_hidden=24,
    vocoder_heads=2,
    vocoder_intermediate=40,
    vocoder_layers=3,
)
