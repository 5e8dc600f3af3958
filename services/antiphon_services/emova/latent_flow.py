"""The normalizing flow of VITS, which maps latents of the text prior to latents of speech."""

from __future__ import annotations

from torch import Tensor, cat, nn

from antiphon_services.emova.normed_convolution import NormedConvolution
from antiphon_services.emova.unit_decoder_sizes import UnitDecoderSizes


class LatentFlow(nn.Module):
    """Applies the couplings in reverse order and reverses the channels before each of them."""

    def __init__(self, sizes: UnitDecoderSizes) -> None:
        super().__init__()
        # In the checkpoint, the reversals have odd numbers. They have no weights.
        self.flows = nn.ModuleDict(
            {str(2 * index): _MeanCoupling(sizes) for index in range(sizes.couplings)}
        )

    def forward(self, latents: Tensor, style: Tensor) -> Tensor:
        """Transform latents of shape [latent, n], given a style of shape [width, 1]."""
        for coupling in reversed(list(self.flows.values())):
            latents = coupling(latents.flip(0), style)
        return latents


class _MeanCoupling(nn.Module):
    """Subtracts a mean from one half of the channels. The mean is computed from the other half."""

    def __init__(self, sizes: UnitDecoderSizes) -> None:
        super().__init__()
        half = sizes.latent // 2
        self.pre = nn.Conv1d(half, sizes.hidden, 1)
        self.enc = _GatedLayers(sizes)
        self.post = nn.Conv1d(sizes.hidden, half, 1)

    def forward(self, latents: Tensor, style: Tensor) -> Tensor:
        kept, moved = latents.chunk(2)
        return cat((kept, moved - self.post(self.enc(self.pre(kept), style))))


class _GatedLayers(nn.Module):
    """The layers of WaveNet, which are gated convolutions with residual and skip connections."""

    def __init__(self, sizes: UnitDecoderSizes) -> None:
        super().__init__()
        width, layers = sizes.hidden, range(sizes.coupling_layers)
        self.cond_layer = NormedConvolution(sizes.style, 2 * width * len(layers))
        self.in_layers = nn.ModuleList(
            NormedConvolution(width, 2 * width, sizes.coupling_kernel) for _ in layers
        )
        self.res_skip_layers = nn.ModuleList(
            NormedConvolution(width, (1 if layer == layers[-1] else 2) * width) for layer in layers
        )

    def forward(self, x: Tensor, style: Tensor) -> Tensor:
        width, layers = len(x), len(self.in_layers)
        skipped = x.new_zeros(x.shape)
        shifts = self.cond_layer(style).chunk(layers)
        for shift, gate, out in zip(shifts, self.in_layers, self.res_skip_layers, strict=True):
            values, gates = (gate(x) + shift).chunk(2)
            made = out(values.tanh() * gates.sigmoid())
            if len(made) > width:
                x = x + made[:width]
            skipped = skipped + made[-width:]
        return skipped
