"""The weights of CosyVoice3's vocoder. Tensors have the same names as in `hift.pt`.

The computations are in `vocoder.py`. The kernels of the convolutions are stored as directions and
lengths (weight normalization), which are combined when the model is loaded.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import weight_norm
from torch.nn.utils.parametrize import is_parametrized, remove_parametrizations

from antiphon_services.vocoder.convolution_state import ConvolutionState

POST_KERNEL = 7


class VocoderModule(nn.Module):
    """The weights of the vocoder. `config` is the `hift` object of the model's YAML file."""

    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width, rates = config["base_channels"], config["upsample_rates"]
        bins = config["istft_params"]["n_fft"] + 2
        widths = [width // 2 ** (level + 1) for level in range(len(rates))]
        self.m_source = nn.Module()
        self.m_source.l_linear = nn.Linear(config["nb_harmonics"] + 1, 1)
        self.conv_pre = _normed(config["in_channels"], width, config["conv_pre_look_right"] + 1)
        self.ups = nn.ModuleList(
            _normed(inputs, outputs, kernel)
            for inputs, outputs, kernel in zip(
                [width, *widths], widths, config["upsample_kernel_sizes"], strict=False
            )
        )
        # The coarsest level comes first. Each level is downsampled by the product of the later
        # rates.
        strides = list(accumulate([1, *rates[:0:-1]], mul))[::-1]
        self.source_downs = nn.ModuleList(
            nn.Conv1d(bins, outputs, 1 if stride == 1 else 2 * stride, stride)
            for outputs, stride in zip(widths, strides, strict=True)
        )
        self.source_resblocks = nn.ModuleList(
            ResBlock(*each)
            for each in zip(
                widths,
                config["source_resblock_kernel_sizes"],
                config["source_resblock_dilation_sizes"],
                strict=True,
            )
        )
        kinds = list(
            zip(config["resblock_kernel_sizes"], config["resblock_dilation_sizes"], strict=True)
        )
        self.resblocks = nn.ModuleList(
            ResBlock(channels, kernel, dilations)
            for channels in widths
            for kernel, dilations in kinds
        )
        self.conv_post = _normed(widths[-1], bins, POST_KERNEL)
        self.f0_predictor = _PitchPredictor(config["f0_predictor"])


class ResBlock(nn.Module):
    """Pairs of causal convolutions, each preceded by a Snake activation."""

    def __init__(self, channels: int, kernel: int, dilations: Sequence[int]) -> None:
        super().__init__()
        self.convs1 = nn.ModuleList(_normed(channels, channels, kernel, each) for each in dilations)
        self.convs2 = nn.ModuleList(_normed(channels, channels, kernel) for _ in dilations)
        self.activations1 = nn.ModuleList(SnakeLayer(channels) for _ in dilations)
        self.activations2 = nn.ModuleList(SnakeLayer(channels) for _ in dilations)

    def forward(self, x: Tensor, past: ConvolutionState) -> Tensor:
        """Apply the block to a tensor of shape [1, channels, n].

        `past` stores the past rows of the convolutions.
        """
        layers: tuple[Any, ...] = (
            self.activations1,
            self.convs1,
            self.activations2,
            self.convs2,
        )
        for first, conv, second, other in zip(*layers, strict=True):
            x = past.causal(other, second(past.causal(conv, first(x)))) + x
        return x


class SnakeLayer(nn.Module):
    """The activation x + sin(alpha x)² / alpha. Each channel has its own alpha."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))

    def forward(self, x: Tensor) -> Tensor:
        """Apply the activation to a tensor of shape [1, channels, n]."""
        alpha = self.alpha[:, None]
        return x + (1.0 / (alpha + 1e-9)) * torch.sin(x * alpha).pow(2)


class _PitchPredictor(nn.Module):
    def __init__(self, config: Mapping[str, Any]) -> None:
        super().__init__()
        width = config["cond_channels"]
        layers: list[nn.Module] = []
        for index in range(5):
            inputs, kernel = (width, 3) if index else (config["in_channels"], 4)
            layers += [_normed(inputs, width, kernel), nn.ELU()]
        self.condnet = nn.Sequential(*layers)
        self.classifier = nn.Linear(width, config["num_class"])


def fold_weight_norm(module: VocoderModule) -> None:
    """Combine the directions and lengths of every convolution into its weight.

    The pitch predictor is converted to float64 first, because the vendor's code also computes its
    weights in float64. In a long utterance, even a difference in the last digit of the pitch
    changes the phase audibly.
    """
    module.f0_predictor.double()
    for each in module.modules():
        if is_parametrized(each, "weight"):
            remove_parametrizations(each, "weight")


def _normed(inputs: int, outputs: int, kernel: int, dilation: int = 1) -> nn.Module:
    made: nn.Module = weight_norm(nn.Conv1d(inputs, outputs, kernel, dilation=dilation))
    return made
