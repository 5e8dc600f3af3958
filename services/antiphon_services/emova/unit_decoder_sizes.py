"""Determines the sizes of EMOVA's unit decoder from its tensors.

The configuration in the released directory contains the names of the styles but no sizes. EMOVA's
package stores the sizes in a separate file. All sizes that this file can change are derived from
tensor shapes. Other sizes are the same for every VITS model: the dilations, the window of relative
positions, and the kernel sizes of the first and last convolutions.
"""

from __future__ import annotations

from dataclasses import dataclass

from antiphon.errors import FailedPrecondition
from antiphon.runtime.checkpoint.weights import Weights

PREFIX = "decoder."
UNIT_ENTRIES = 4096

ATTENTION_WINDOW = 4
"""The maximum relative position, in either direction, for which there is a learned embedding."""
DILATIONS = 1, 3, 5
"""The dilations of the convolution pairs in a block of the waveform generator."""
END_KERNEL = 7


@dataclass(frozen=True, slots=True)
class UnitDecoderSizes:
    """The number of channels, the number of layers, and the kernel sizes.

    `symbols` is the number of rows in the embedding table, whose last `UNIT_ENTRIES` rows belong to
    speech units. Each level of the waveform generator increases the sample rate by a factor of half
    its kernel size.
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
        """Derive the sizes from the tensors below `PREFIX`.

        Raises `FailedPrecondition` if they cannot be read.
        """
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
                f"{weights.folder}: {PREFIX}enc_p.emb.weight has {sizes.symbols} rows, but "
                f"there are {UNIT_ENTRIES} units"
            )
        return sizes

    @property
    def hop(self) -> int:
        """The number of samples per frame."""
        product = 1
        for rate in self.upsampling:
            product *= rate
        return product

    @property
    def reach(self) -> int:
        """The number of frames before and after a frame that its samples depend on."""
        rows, rate = float(END_KERNEL // 2), 1
        for each in self.upsampling:
            rows += 1 / rate
            rate *= each
            widest = max(self.kernels) // 2
            rows += widest * (sum(DILATIONS) + len(DILATIONS)) / rate
        rows += END_KERNEL // 2 / rate
        return int(rows) + 1
