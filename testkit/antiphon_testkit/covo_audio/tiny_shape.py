"""Sizes of tiny Covo-Audio checkpoints."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_testkit.tiny_shape import TinySizes

POSITION_GROUPS = 16
"""The number of groups in the flow's positional convolution, which is fixed by the vendor's
code.
"""


@dataclass(frozen=True, slots=True)
class CovoShape(TinySizes):
    """The sizes of the language model, its encoder, and token2wav's flow and vocoder.

    If `wrapped` is true, the token2wav file looks like the output of a training run, in which all
    names begin with `module.`. `fast` selects the vocoder with fewer levels.
    """

    wrapped: bool = False
    fast: bool = False
    intermediate: int = 64
    encoder_hidden: int = 32
    encoder_layers: int = 2
    encoder_heads: int = 2
    flow_hidden: int = 64
    flow_inner: int = 128
    flow_layers: int = 2
    flow_heads: int = 4
    token_width: int = 32
    latent: int = 64
    speaker: int = 16
    vocoder_hidden: int = 64
    prompt_codes: int = 20
    surplus_latents: int = 3

    def check(self) -> None:
        """Raise `InvalidArgument` if the sizes are not compatible."""
        TinySizes.check(self)
        self.check_divides("encoder_heads", "encoder_hidden", even=True)
        self.check_divides("flow_heads", "flow_hidden", even=True)

    @property
    def upsampling(self) -> tuple[int, ...]:
        """The upsampling rates of the vocoder's levels."""
        return (6, 5, 2, 2, 2) if self.fast else (5, 3, 2, 2, 2, 2)

    @property
    def kernels(self) -> tuple[int, ...]:
        """The kernel sizes of each level's residual blocks."""
        return (3, 5) if self.fast else (3, 7, 11)


RELEASED = CovoShape()
"""As in the released model, the voice has three more latents than its codes account for."""

WRAPPED = CovoShape(
    wrapped=True,
    fast=True,
    hidden=48,
    intermediate=80,
    layers=3,
    heads=3,
    kv_heads=1,
    encoder_hidden=24,
    encoder_layers=3,
    encoder_heads=3,
    flow_hidden=48,
    flow_inner=80,
    flow_layers=3,
    flow_heads=2,
    token_width=24,
    latent=32,
    speaker=20,
    vocoder_hidden=96,
    prompt_codes=13,
    surplus_latents=1,
)
