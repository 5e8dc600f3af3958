"""The waveform generator of VITS (HiFi-GAN, arXiv 2010.05646), which converts latents to
samples.
"""

from __future__ import annotations

from itertools import pairwise

from torch import Tensor, nn
from torch.nn.functional import leaky_relu

from antiphon_services.emova.normed_convolution import (
    NormedConvolution,
    NormedUpsampling,
)
from antiphon_services.emova.unit_decoder_sizes import (
    DILATIONS,
    END_KERNEL,
    UnitDecoderSizes,
)

SLOPE = 0.1
"""The negative slope of all activations except the last one."""


class WaveformGenerator(nn.Module):
    """Generates `UnitDecoderSizes.hop` samples for each latent."""

    def __init__(self, sizes: UnitDecoderSizes) -> None:
        super().__init__()
        widths = [sizes.widest >> level for level in range(len(sizes.upsampling) + 1)]
        self.conv_pre = nn.Conv1d(sizes.latent, widths[0], END_KERNEL, padding=END_KERNEL // 2)
        self.cond = nn.Conv1d(sizes.style, widths[0], 1)
        self.ups = nn.ModuleList(
            NormedUpsampling(inputs, outputs, rate)
            for (inputs, outputs), rate in zip(pairwise(widths), sizes.upsampling, strict=True)
        )
        self.blocks = len(sizes.kernels)
        self.resblocks = nn.ModuleList(
            _DilatedBlock(width, kernel) for width in widths[1:] for kernel in sizes.kernels
        )
        self.conv_post = nn.Conv1d(widths[-1], 1, END_KERNEL, padding=END_KERNEL // 2, bias=False)

    def forward(self, latents: Tensor, style: Tensor) -> Tensor:
        """Generate samples of shape [hop * n].

        `latents` has shape [latent, n], and `style` has shape [width, 1].
        """
        x = self.conv_pre(latents) + self.cond(style)
        for level, upsampling in enumerate(self.ups):
            x = upsampling(leaky_relu(x, SLOPE))
            first = level * self.blocks
            made = [block(x) for block in self.resblocks[first : first + self.blocks]]
            x = sum(made[1:], made[0]) / self.blocks
        out: Tensor = self.conv_post(leaky_relu(x))[0].tanh()
        return out


class _DilatedBlock(nn.Module):
    def __init__(self, width: int, kernel: int) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(
            NormedConvolution(width, width, kernel, each) for each in DILATIONS
        )
        self.convs2 = nn.ModuleList(NormedConvolution(width, width, kernel) for _ in DILATIONS)

    def forward(self, x: Tensor) -> Tensor:
        for dilated, plain in zip(self.convs1, self.convs2, strict=True):
            x = x + plain(leaky_relu(dilated(leaky_relu(x, SLOPE)), SLOPE))
        return x
