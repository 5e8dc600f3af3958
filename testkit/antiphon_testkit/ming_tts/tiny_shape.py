"""Sizes of tiny Ming TTS checkpoints. Sizes that are fixed by the family are not included."""

from __future__ import annotations

from dataclasses import dataclass

from antiphon_testkit.tiny_shape import TinySizes


@dataclass(frozen=True, slots=True)
class MingShape(TinySizes):
    """The sizes of a tiny checkpoint.

    If `windowed` is true, the audio decoder's attention is limited to a few rows. Otherwise it
    includes all past rows. If `flash` is true, the checkpoint has the layout of Ming-flash-omni.
    """

    windowed: bool = True
    flash: bool = False

    hidden: int = 48
    intermediate: int = 64
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    flow_width: int = 64
    flow_layers: int = 3
    flow_heads: int = 4
    aggregator_width: int = 40
    aggregator_layers: int = 2
    aggregator_heads: int = 2
    encoder_width: int = 24
    encoder_layers: int = 2
    decoder_width: int = 32
    decoder_layers: int = 3
    vae_heads: int = 4
    vae_kv_heads: int = 2

    def check(self) -> None:
        """Raise `InvalidArgument` if the sizes are not compatible."""
        TinySizes.check(self)
        self.check_divides("heads", "hidden", even=True)
        self.check_divides("flow_heads", "flow_width", even=True)
        self.check_divides("aggregator_heads", "aggregator_width", even=True)
        self.check_divides("vae_heads", "encoder_width", even=True)
        self.check_divides("vae_heads", "decoder_width", even=True)
        self.check_divides("vae_kv_heads", "vae_heads")


WINDOWED = MingShape()
FLASH = MingShape(flash=True)
UNBOUNDED = MingShape(
    windowed=False,
    hidden=32,
    intermediate=48,
    layers=3,
    heads=2,
    kv_heads=1,
    flow_width=48,
    flow_layers=2,
    flow_heads=2,
    aggregator_width=32,
    aggregator_layers=3,
    aggregator_heads=4,
    encoder_width=16,
    encoder_layers=1,
    decoder_width=24,
    decoder_layers=2,
    vae_heads=2,
    vae_kv_heads=1,
)
