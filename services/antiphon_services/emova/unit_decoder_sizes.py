"""Sizes of EMOVA's unit decoder, read from its tensors.

The released directory states the names of the styles and no sizes. EMOVA's package has them in a
file of its own. Everything that this file may vary follows from the shapes of tensors; the rest is
the same in every VITS: dilations, the window of relative positions, the kernels of the ends.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.errors import FailedPrecondition
from antiphon.runtime.checkpoint.weights import Weights

PREFIX = "decoder."
UNIT_ENTRIES = 4096

ATTENTION_WINDOW = 4
"""Distances with a learned embedding, on each side."""
DILATIONS = 1, 3, 5
"""Of the pairs of convolutions in a block of the waveform generator."""
END_KERNEL = 7


@dataclass(frozen=True, slots=True)
class UnitDecoderSizes:
    """Channels, layers and kernels.

    `symbols` are the rows of the embedding, whose last `UNIT_ENTRIES` are the units'. A level of
    the waveform generator raises the rate by the half of its kernel.
    """

    symbols: int
    hidden: int
    heads: int
    layers: int
    inner: int
    kernel: int
    latent: int
    style: int
    duration_kernel: int
    duration_flows: int
    couplings: int
    coupling_layers: int
    coupling_kernel: int
    widest: int
    upsampling: tuple[int, ...]
    kernels: tuple[int, ...]

    @classmethod
    def read(cls, weights: Weights) -> UnitDecoderSizes:
        """Read them from the tensors below `PREFIX`. Raises `FailedPrecondition`."""
        with weights.open() as reader:

            def shape(name: str) -> tuple[int, ...]:
                return tuple(reader.read(PREFIX + name).shape)

            def count(stem: str) -> int:
                stem = PREFIX + stem
                numbers = (
                    int(name.removeprefix(stem).partition(".")[0])
                    for name in weights.files
                    if name.startswith(stem)
                )
                return 1 + max(numbers, default=-1)

            symbols, hidden = shape("enc_p.emb.weight")
            head = shape("enc_p.encoder.attn_layers.0.emb_rel_k")[-1]
            inner, _, kernel = shape("enc_p.encoder.ffn_layers.0.conv_1.weight")
            levels = count("dec.ups.")
            blocks = count("dec.resblocks.") // max(levels, 1)
            sizes = cls(
                symbols=symbols,
                hidden=hidden,
                heads=hidden // head,
                layers=count("enc_p.encoder.attn_layers."),
                inner=inner,
                kernel=kernel,
                latent=shape("enc_p.proj.weight")[0] // 2,
                style=shape("dec.cond.weight")[1],
                duration_kernel=shape("dp.convs.convs_sep.0.weight")[-1],
                duration_flows=count("dp.flows.") // 2,
                couplings=count("flow.flows.") // 2 + 1,
                coupling_layers=count("flow.flows.0.enc.in_layers."),
                coupling_kernel=shape("flow.flows.0.enc.in_layers.0.weight_v")[-1],
                widest=shape("dec.conv_pre.weight")[0],
                upsampling=tuple(
                    shape(f"dec.ups.{level}.weight_v")[-1] // 2 for level in range(levels)
                ),
                kernels=tuple(
                    shape(f"dec.resblocks.{block}.convs1.0.weight_v")[-1] for block in range(blocks)
                ),
            )
        if sizes.symbols < UNIT_ENTRIES:
            raise FailedPrecondition(
                f"{weights.folder}: {PREFIX}enc_p.emb.weight has {sizes.symbols} rows, fewer than "
                f"the {UNIT_ENTRIES} units"
            )
        return sizes

    @property
    def hop(self) -> int:
        """Samples of a frame."""
        product = 1
        for rate in self.upsampling:
            product *= rate
        return product

    @property
    def reach(self) -> int:
        """Frames before and after a frame that its samples depend on."""
        rows, rate = float(END_KERNEL // 2), 1
        for each in self.upsampling:
            rows += 1 / rate
            rate *= each
            widest = max(self.kernels) // 2
            rows += widest * (sum(DILATIONS) + len(DILATIONS)) / rate
        rows += END_KERNEL // 2 / rate
        return int(rows) + 1
