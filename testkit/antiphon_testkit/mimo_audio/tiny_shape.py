"""Sizes of tiny MiMo-Audio checkpoints. Sizes that are fixed by the vendor's code are not
included.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_testkit.tiny_shape import TinySizes


@dataclass(frozen=True, slots=True)
class MimoShape(TinySizes):
    """The sizes of both directories. If `marks` is true, the tokenizer's files contain the speech
    marks.

    `local` is the transformer that samples the codes of a group, and `group` is the encoder of a
    group. `codec` contains the sizes of the audio tokenizer's layers, and `vocoder` those of the
    layers after its mel spectrogram.
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
        """Raise `InvalidArgument` if the sizes are not compatible."""
        TinySizes.check(self)
        for name, whole in (
            ("local_heads", "local_hidden"),
            ("local_heads", "group_hidden"),
            ("codec_heads", "codec_hidden"),
            ("vocoder_heads", "vocoder_hidden"),
        ):
            self.check_divides(name, whole, even=True)


MARKS = MimoShape()
"""As in the released model, groups are encoded at the width at which codes are drawn, and the
number of heads divides the hidden width. The heads are wide enough for vLLM's attention on CPUs.
"""

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
