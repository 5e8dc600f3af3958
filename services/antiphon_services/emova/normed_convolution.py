"""Convolutions stored as directions and lengths (weight norm)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import conv1d, conv_transpose1d


class NormedConvolution(nn.Module):
    """A convolution that keeps the number of rows; `fold` must be called after loading.

    The weights `weight_v` have the lengths `weight_g` along the first axis.
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
        """Compute the weights from directions and lengths, which are dropped."""
        lengths = self.weight_v.norm(2, (1, 2), keepdim=True)
        self.weight = self.weight_v * (self.weight_g / lengths)
        del self.weight_v, self.weight_g

    def forward(self, x: Tensor) -> Tensor:
        """Rows of [inputs, n]."""
        return conv1d(x, self._folded(), self.bias, padding=self.padding, dilation=self.dilation)

    def _folded(self) -> Tensor:
        assert self.weight is not None, "fold was not called"
        return self.weight


class NormedUpsampling(NormedConvolution):
    """A transposed convolution that makes `rate` rows of each; its kernel has twice as many."""

    def __init__(self, inputs: int, outputs: int, rate: int) -> None:
        super().__init__(inputs, outputs)
        self._make(outputs, (inputs, outputs, 2 * rate))
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """[outputs, rate * n] of [inputs, n]."""
        padding = self.rate // 2
        weight = self._folded()
        return conv_transpose1d(x, weight, self.bias, stride=self.rate, padding=padding)


def fold_all(module: nn.Module) -> None:
    """Fold every convolution of a module."""
    for each in module.modules():
        if isinstance(each, NormedConvolution):
            each.fold()
