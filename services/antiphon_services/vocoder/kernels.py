"""The operations of a causal vocoder on rows, which have the shape [batch, rows, channels].

A row is a time step. Since channels are the last axis, the inputs that a layer keeps, the samples
of a frame and each panel of a weight are contiguous. On a CPU in float32, weights are packed into
oneDNN's blocks in advance. With plain weights, each call would pack them again, which costs more
than the arithmetic for a few frames. Matrix products would also use a library that leaves half of
the vector width unused on some processors.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from antiphon_services.lm.in_place import into
from antiphon_services.lm.products import onednn_for

# The packed layout of a convolution is optimized for this number of rows, but works for any number.
PACKED_FOR_ROWS = 256


class Linear:
    """Applies `weight` [outputs, inputs] and `bias` [outputs] to the last axis.

    Only the packed form of the weight is kept.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None = None) -> None:
        self._bias = None if bias is None else bias.detach()
        self._onednn = onednn_for(weight)
        self._weight: Tensor = weight.detach().contiguous()
        if self._onednn is not None:
            self._weight = self._onednn._reorder_linear_weight(self._weight)

    def __call__(self, x: Tensor, plus: Tensor | None = None) -> Tensor:
        """Return the product, plus `plus` [..., outputs] if it is given."""
        if self._onednn is None:
            y = functional.linear(x, self._weight, self._bias)
        else:
            y = self._onednn._linear_pointwise(x, self._weight, self._bias, "none", [], "")
        return y if plus is None else y.add_(plus)


class Convolution:
    """Applies `weight` [outputs, inputs / groups, kernel] along the rows, without padding.

    `reach` is the number of earlier rows that each output depends on.
    """

    def __init__(
        self, weight: Tensor, bias: Tensor | None, *, dilation: int = 1, groups: int = 1
    ) -> None:
        self._bias = None if bias is None else bias.detach()
        self._dilation = dilation
        self._groups = groups
        self.reach = (weight.shape[-1] - 1) * dilation
        self.inputs = weight.shape[1] * groups
        image = weight.detach()[:, :, None].contiguous(memory_format=torch.channels_last)
        # A depthwise convolution does so little arithmetic that the layout makes no difference.
        self._onednn = onednn_for(weight) if groups == 1 else None
        if self._onednn is not None:
            shape = [1, self.inputs, 1, PACKED_FOR_ROWS + self.reach]
            image = self._onednn._reorder_convolution_weight(image, *self._geometry, shape)
        self._weight: Tensor = image

    @property
    def _geometry(self) -> tuple[list[int], list[int], list[int], int]:
        """Return the padding, stride, dilation and groups of an equivalent 2D convolution."""
        return [0, 0], [1, 1], [1, self._dilation], self._groups

    def __call__(self, x: Tensor) -> Tensor:
        """Map rows [batch, rows, inputs] to a contiguous tensor [batch, rows - reach, outputs]."""
        padding, stride, dilation, groups = self._geometry
        image = x.transpose(1, 2).unsqueeze(2)
        if self._onednn is None:
            y = functional.conv2d(image, self._weight, self._bias, dilation=dilation, groups=groups)
        else:
            geometry = (padding, stride, dilation, groups)
            y = self._onednn._convolution_pointwise(
                image, self._weight, self._bias, *geometry, "none", [], ""
            )
        return y.squeeze(2).transpose(1, 2).contiguous()


class UnfoldedConvolution:
    """A `Convolution` without groups, computed as one matrix product over the rows of all sessions.

    This is faster if each session has only a few rows, because they wouldn't fill the registers of
    a convolution kernel. Unfolding makes the rows `kernel` times as wide, so with many rows they
    would no longer fit into the caches.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, *, dilation: int = 1) -> None:
        self._product = Linear(weight.detach().transpose(1, 2).flatten(1), bias)
        self._dilation = dilation
        _, self.inputs, self._kernel = weight.shape
        self.reach = (self._kernel - 1) * dilation

    def __call__(self, x: Tensor) -> Tensor:
        """Like `Convolution.__call__`, but `x` must be contiguous."""
        batch, length, channels = x.shape
        shape = (batch, length - self.reach, self._kernel, channels)
        strides = (length * channels, channels, self._dilation * channels, 1)
        return self._product(x.as_strided(shape, strides).reshape(*shape[:2], -1))


class Snake:
    """A SnakeBeta activation. Its exponentials are computed in advance from `alpha`, `beta` and
    `no_div_by_zero`.
    """

    def __init__(self, module: Any) -> None:
        with torch.no_grad():
            self._frequency: Tensor = module.alpha.exp()
            self._magnitude: Tensor = 1.0 / (module.beta.exp() + module.no_div_by_zero)

    def __call__(self, x: Tensor, out: Tensor) -> Tensor:
        """Write x + magnitude * sin(frequency * x) ** 2 to `out`, which can be the same tensor as
        `x`.
        """
        wave = torch.mul(x, self._frequency).sin_()
        return into(out, torch.addcmul, x, wave.mul_(wave), self._magnitude)


def concatenated(*layers: nn.Linear) -> Linear:
    """Return a single `Linear` that computes the concatenated outputs of these layers."""
    biases = [layer.bias.detach() for layer in layers if layer.bias is not None]
    if len(biases) not in (0, len(layers)):
        raise ValueError("either all layers have a bias or none")
    bias = torch.cat(biases) if biases else None
    return Linear(torch.cat([layer.weight.detach() for layer in layers]), bias)


def scaled(layer: nn.Linear, scale: Tensor) -> Linear:
    """Return a `Linear` that computes the outputs of `layer` multiplied by `scale`."""
    bias = None if layer.bias is None else layer.bias * scale
    return Linear(layer.weight * scale[:, None], bias)
