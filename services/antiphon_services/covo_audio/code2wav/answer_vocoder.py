"""The vocoder, which computes samples from latents.

Most of its convolutions are causal. The first convolution and the filters around each activation
also look ahead. The latents are processed in pieces, so that memory usage doesn't depend on the
length of the answer. Each piece is extended by up to `LEFT` latents before it and `RIGHT` latents
after it, and the samples of these extra latents are discarded.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import conv1d, conv_transpose1d, pad

from antiphon_services.covo_audio.code2wav.module import (
    DILATIONS,
    FILTER_WIDTH,
    AnswerVocoderModule,
    NormedKernel,
)
from antiphon_services.flow.work import Work

LEFT, RIGHT = 64, 16
"""The number of extra latents before and after each piece. Latents further away contribute less
than 1e-7 to a sample.
"""
PIECE = 256
"""The number of latents in a piece, which corresponds to 2.6 seconds."""
ROWS_OF_A_LATENT = 64
"""The approximate cost of a latent, expressed as a number of rows in one layer of the flow."""

UP_PAD = FILTER_WIDTH // 2 - 1
UP_CUT = 2 * UP_PAD + FILTER_WIDTH // 2 - 1
DOWN_PADS = (FILTER_WIDTH // 2 - 1, FILTER_WIDTH // 2)


@dataclass(frozen=True, slots=True)
class FilteredSnakeLayer:
    """Compute x + sin(alpha * x)² / beta at twice the sample rate, between two low-pass filters.

    `alpha` and `inverse`, which is 1 / beta, have shape [channels, 1]. The filters have shape [1,
    1, FILTER_WIDTH].
    """

    alpha: Tensor
    inverse: Tensor
    up: Tensor
    down: Tensor

    @classmethod
    def of(cls, module: Any) -> FilteredSnakeLayer:
        """Create the activation from the weights of a `FilteredSnake`."""
        inverse = 1.0 / (module.act.beta.exp() + 1e-9)
        up, down = 2 * module.upsample.filter, module.downsample.lowpass.filter
        return cls(module.act.alpha.exp()[:, None], inverse[:, None], up, down)

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the activation to a tensor of shape [channels, n]."""
        rows = pad(x[:, None], (UP_PAD, UP_PAD), mode="replicate")
        rows = conv_transpose1d(rows, self.up, stride=2)[:, 0, UP_CUT:-UP_CUT]
        rows = rows + self.inverse * torch.sin(rows * self.alpha).pow(2)
        rows = pad(rows[:, None], DOWN_PADS, mode="replicate")
        return conv1d(rows, self.down, stride=2)[:, 0]


@dataclass(frozen=True, slots=True)
class CausalKernel:
    """A causal convolution."""

    weight: Tensor
    bias: Tensor
    dilation: int = 1

    @classmethod
    def of(cls, module: Any, dilation: int = 1) -> CausalKernel:
        """Create the convolution from the weights of a `NormedKernel`."""
        assert isinstance(module, NormedKernel)
        return cls(*module.folded(), dilation)

    def __call__(self, x: Tensor) -> Tensor:
        """Apply the convolution to a tensor of shape [channels, n]."""
        past = self.dilation * (self.weight.shape[2] - 1)
        return conv1d(pad(x, (past, 0))[None], self.weight, self.bias, dilation=self.dilation)[0]


Layer = tuple[FilteredSnakeLayer, CausalKernel, FilteredSnakeLayer, CausalKernel]


class AnswerVocoder:
    """Computes samples with the float32 weights of `module`."""

    def __init__(self, module: AnswerVocoderModule) -> None:
        sizes = module.sizes
        self._rates = sizes.rates
        self.samples_per_latent = prod(sizes.rates)
        self._pre_weight, self._pre_bias = module.conv_pre.folded()
        levels: Any = module.ups
        self._ups = [CausalKernel.of(up) for (up,) in levels]
        kinds = len(sizes.kernels)
        blocks = [_layers(each) for each in module.resblocks]
        self._levels = [blocks[at : at + kinds] for at in range(0, len(blocks), kinds)]
        self._last, self._post = (
            FilteredSnakeLayer.of(module.activation_post),
            CausalKernel.of(module.conv_post),
        )

    def samples(self, latents: Tensor) -> Work[Tensor]:
        """Compute samples from latents of shape [n, width] and yield the amount of work done.

        The result is a float32 tensor of shape [samples_per_latent * n].
        """
        count, each = len(latents), self.samples_per_latent
        made = []
        for start in range(0, count, PIECE):
            first, stop = max(0, start - LEFT), min(count, start + PIECE)
            piece = self._decode(latents[first : min(count, stop + RIGHT)].T)
            made.append(piece[(start - first) * each : (stop - first) * each])
            yield (min(count, stop + RIGHT) - first) * ROWS_OF_A_LATENT
        return torch.cat(made) if made else latents.new_empty(0)

    def _decode(self, latents: Tensor) -> Tensor:
        ahead = self._pre_weight.shape[2] // 2
        rows = conv1d(latents[None], self._pre_weight, self._pre_bias, padding=ahead)[0]
        for rate, up, blocks in zip(self._rates, self._ups, self._levels, strict=True):
            rows = conv_transpose1d(rows[None], up.weight, up.bias, stride=rate)[0, :, :-rate]
            rows = torch.stack([_block(block, rows) for block in blocks]).sum(0) / len(blocks)
        return torch.tanh(self._post(self._last(rows)))[0]


def _layers(module: Any) -> list[Layer]:
    snakes = [FilteredSnakeLayer.of(each) for each in module.activations]
    return [
        (
            snakes[2 * at],
            CausalKernel.of(first, dilation),
            snakes[2 * at + 1],
            CausalKernel.of(second),
        )
        for at, (first, second, dilation) in enumerate(
            zip(module.convs1, module.convs2, DILATIONS, strict=True)
        )
    ]


def _block(layers: list[Layer], rows: Tensor) -> Tensor:
    for first, conv, second, other in layers:
        rows = other(second(conv(first(rows)))) + rows
    return rows
