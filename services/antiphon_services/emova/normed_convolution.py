"""Convolutions whose weights are stored as directions and lengths (weight normalization)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, conv_transpose1d


class NormedConvolution(nn.Module):
    """A convolution that preserves the number of rows.

    `weight_v` contains the directions, and `weight_g` contains their lengths along the first axis.
    Call `fold` after loading the weights.
    """

    def __init__(self, inputs: int, outputs: int, kernel: int = 1, dilation: int = 1) -> None:
        super().__init__()
        self._make(outputs, (outputs, inputs, kernel))
        self.dilation, self.padding = dilation, dilation * (kernel - 1) // 2

    def _make(self, outputs: int, shape: Sequence[int]) -> None:
        self.weight_g = nn.Parameter(torch.empty(shape[0], 1, 1))
        self.weight_v = nn.Parameter(torch.empty(*shape))
        self.bias = nn.Parameter(torch.empty(outputs))
        self.weight: Tensor | None = None

    def fold(self) -> None:
        """Compute the weights from the directions and lengths and then delete both."""
        lengths = self.weight_v.norm(2, (1, 2), keepdim=True)
        self.weight = self.weight_v * (self.weight_g / lengths)
        del self.weight_v, self.weight_g

    def forward(self, x: Tensor) -> Tensor:
        """Apply the convolution to a tensor of shape [inputs, n]."""
        return conv1d(x, self._folded(), self.bias, padding=self.padding, dilation=self.dilation)

    def _folded(self) -> Tensor:
        assert self.weight is not None, "fold was not called"
        return self.weight


class NormedUpsampling(NormedConvolution):
    """A transposed convolution that multiplies the number of rows by `rate`.

    The size of its kernel is twice the rate.
    """

    def __init__(self, inputs: int, outputs: int, rate: int) -> None:
        super().__init__(inputs, outputs)
        self._make(outputs, (inputs, outputs, 2 * rate))
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """Upsample a tensor of shape [inputs, n] to [outputs, rate * n]."""
        padding = self.rate // 2
        weight = self._folded()
        return conv_transpose1d(x, weight, self.bias, stride=self.rate, padding=padding)


def fold_all(module: nn.Module) -> None:
    """Call `fold` on every convolution in the module."""
    for each in module.modules():
        if isinstance(each, NormedConvolution):
            each.fold()
