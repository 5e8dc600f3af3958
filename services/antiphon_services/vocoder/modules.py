"""Modules that contain the weights of a causal vocoder, under the same names as in checkpoints.

`antiphon_services.vocoder.stream` reads their weights and geometry. Names and shapes match
transformers' vocoders, whose modelling files are not imported by any stage, for the reason given in
`antiphon_services.lm.modules`.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from antiphon_services.lm.modules import Attention, GatedMLP, RMSNorm, RotaryEmbedding

CONVOLUTION = 7
"""The kernel size of convolutions that don't change the rate."""
DILATIONS = 1, 3, 9


class CausalConvolutionModule(nn.Module):
    """A convolution in which the output for a row depends on `padding` earlier rows."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, dilation: int = 1, groups: int = 1
    ) -> None:
        super().__init__()
        self.conv = nn.Conv1d(inputs, outputs, kernel, dilation=dilation, groups=groups)
        self.padding = (kernel - 1) * dilation


class CausalUpsampling(nn.Module):
    """A transposed convolution whose output is trimmed at both ends, or only at the end if `left`
    is false.
    """

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int, *, left: bool = True
    ) -> None:
        super().__init__()
        self.conv = nn.ConvTranspose1d(inputs, outputs, kernel, stride=stride)
        self.right_pad = kernel - stride
        self.left_pad = self.right_pad if left else 0


class ConvNeXtBlock(nn.Module):
    """A depthwise convolution, followed by a norm and an MLP that is four times as wide."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dwconv = CausalConvolutionModule(width, width, CONVOLUTION, groups=width)
        self.norm = nn.LayerNorm(width, eps=1e-6)
        self.pwconv1 = nn.Linear(width, 4 * width)
        self.act = nn.GELU()
        self.pwconv2 = nn.Linear(4 * width, width)
        self.gamma = nn.Parameter(torch.empty(width))


class SnakeBeta(nn.Module):
    """Computes x + sin²(x · exp(alpha)) / exp(beta) for each channel."""

    no_div_by_zero = 0.000000001

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.alpha = nn.Parameter(torch.empty(channels))
        self.beta = nn.Parameter(torch.empty(channels))


class ResidualUnitModule(nn.Module):
    """A dilated convolution and a pointwise convolution, each preceded by its activation."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.act1 = SnakeBeta(width)
        self.conv1 = CausalConvolutionModule(width, width, CONVOLUTION, dilation=dilation)
        self.act2 = SnakeBeta(width)
        self.conv2 = CausalConvolutionModule(width, width, 1)


class UpsamplingBlock(nn.Module):
    """Increases the rate by a factor of `rate`, halves the number of channels, and then applies
    residual units.
    """

    def __init__(self, width: int, rate: int, *, left: bool = True) -> None:
        super().__init__()
        half = width // 2
        self.block = nn.ModuleList(
            [
                SnakeBeta(width),
                CausalUpsampling(width, half, 2 * rate, rate, left=left),
                *(ResidualUnitModule(half, dilation) for dilation in DILATIONS),
            ]
        )


class LayerScale(nn.Module):
    """A factor for each channel of a residual connection."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(width))


class SlidingLayer(nn.Module):
    """A single layer of the transformer."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        bias = config.attention_bias
        self.self_attn = Attention(config, bias=bias, out_bias=bias, head_norms=False)
        self.mlp = GatedMLP(config, config.intermediate_size)
        self.input_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.post_attention_layernorm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.self_attn_layer_scale = LayerScale(config.hidden_size)
        self.mlp_layer_scale = LayerScale(config.hidden_size)


class SlidingTransformerModule(nn.Module):
    """Layers with sliding-window attention, followed by a final norm."""

    def __init__(self, config: Any) -> None:
        super().__init__()
        self.config = config
        self.layers = nn.ModuleList(SlidingLayer(config) for _ in range(config.num_hidden_layers))
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.rotary_emb = RotaryEmbedding(config)
