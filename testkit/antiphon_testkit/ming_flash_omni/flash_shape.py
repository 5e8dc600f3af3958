"""Sizes of tiny Ming-flash-omni checkpoints. Sizes that are fixed by the family are not included.

The released width of a head is kept, because the vendor's code divides the rotary dimensions among
the three axes by constants.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.errors import InvalidArgument
from antiphon_testkit.tiny_shape import TinyMultimodalSizes

HEAD_DIM = 128


@dataclass(frozen=True, slots=True)
class FlashShape(TinyMultimodalSizes):
    """The sizes of a tiny checkpoint. The first `dense_layers` layers don't have experts."""

    hidden: int = 256
    layers: int = 3
    heads: int = 2
    kv_heads: int = 1
    intermediate: int = 96
    dense_layers: int = 1
    experts: int = 16
    expert_groups: int = 4
    chosen_groups: int = 2
    chosen_experts: int = 4
    expert_inner: int = 32
    shared_experts: int = 1
    audio_hidden: int = 32
    audio_layers: int = 2
    audio_heads: int = 2
    vision_hidden: int = 48
    vision_layers: int = 3
    vision_heads: int = 2

    def check(self) -> None:
        """Raise `InvalidArgument` if the sizes are not compatible."""
        TinyMultimodalSizes.check(self)
        self.check_divides("expert_groups", "experts")
        if self.hidden != self.heads * HEAD_DIM:
            raise InvalidArgument(f"hidden: must be {HEAD_DIM} times heads", field="hidden")
        if self.experts < 2 * self.expert_groups:
            raise InvalidArgument("experts: each group needs two or more", field="experts")


RELEASED = FlashShape()
WIDE = FlashShape(
    hidden=512,
    layers=4,
    heads=4,
    kv_heads=2,
    intermediate=64,
    dense_layers=2,
    experts=12,
    expert_groups=3,
    chosen_groups=1,
    chosen_experts=2,
    expert_inner=24,
    shared_experts=2,
    audio_hidden=48,
    audio_layers=1,
    audio_heads=4,
    vision_hidden=32,
    vision_layers=2,
    vision_heads=4,
)
