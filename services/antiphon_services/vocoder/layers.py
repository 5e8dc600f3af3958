"""The causal layers of a vocoder, which only process new inputs.

They are built from transformers' modules, which are recognized by their attributes (`stream.py`).

For a session's new rows, a layer returns exactly what the Hugging Face module would return for
these rows when processing all of the session's rows at once. A layer's state is stored in slots of
a fixed shape (`batch.StreamStates`). Tensors have the shape [batch, rows, channels].
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from antiphon.errors import FailedPrecondition
from antiphon_services.vocoder.batch import Batch, Level, Shape
from antiphon_services.vocoder.kernels import (
    Convolution,
    Linear,
    Snake,
    UnfoldedConvolution,
    scaled,
)

# Up to this number of rows per frame, an unfolded convolution is faster.
UNFOLDED_ROWS = 32


class StreamLayer(Protocol):
    """A causal layer. It is immutable and shared by all sessions."""

    @property
    def state_shapes(self) -> tuple[Shape, ...]:
        """The shapes of a session's state, which is zero before the first input."""

    def advance(self, batch: Batch, past: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return the outputs for the new rows `x`, which may be overwritten."""


@dataclass(frozen=True, slots=True)
class CausalConvolution:
    """A causal convolution, optionally preceded by a SnakeBeta."""

    convolution: Convolution | UnfoldedConvolution
    level: Level
    snake: Snake | None = None

    @property
    def state_shapes(self) -> tuple[Shape, ...]:
        """The shape of the most recent inputs. Before the first input, they are zero, like padding
        on the left.
        """
        return ((self.convolution.reach, self.convolution.inputs),)

    def advance(self, batch: Batch, past: Sequence[Tensor], x: Tensor) -> Tensor:
        """Append the activated rows to the state and convolve without padding. `x` isn't
        modified.
        """
        (tail,) = past
        joined = batch.extended(tail, x.shape[1])
        rows = joined[:, tail.shape[1] :]
        if self.snake is None:
            rows.copy_(x)
        else:
            self.snake(x, out=rows)
        batch.zero_start(rows, self.level)
        batch.keep_last(tail, joined, self.level)
        return self.convolution(joined)


@dataclass(frozen=True, slots=True)
class Upsampling:
    """A transposed convolution, implemented as a convolution that computes the `stride` outputs of
    each row side by side.
    """

    taps: CausalConvolution | Linear
    stride: int

    @property
    def state_shapes(self) -> tuple[Shape, ...]:
        """The shape of the last input. Empty if inputs don't overlap."""
        return () if isinstance(self.taps, Linear) else self.taps.state_shapes

    def advance(self, batch: Batch, past: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return `stride` rows for each input row. See `Level.upsampled`."""
        taps = self.taps
        y = taps(x) if isinstance(taps, Linear) else taps.advance(batch, past, x)
        return y.view(len(y), y.shape[1] * self.stride, -1)


@dataclass(frozen=True, slots=True)
class Pointwise:
    """A linear layer, which has no state."""

    linear: Linear

    @property
    def state_shapes(self) -> tuple[Shape, ...]:
        """Empty, because the layer has no state."""
        return ()

    def advance(self, batch: Batch, past: Sequence[Tensor], x: Tensor) -> Tensor:
        """Return the outputs for the new rows."""
        return self.linear(x)


class ConvNeXt:
    """A ConvNeXt block. Only its depthwise convolution has any state."""

    def __init__(self, module: Any, level: Level) -> None:
        self._depthwise = causal_convolution(module.dwconv, level)
        self._norm = module.norm
        self._expand = Linear(module.pwconv1.weight, module.pwconv1.bias)
        self._act = module.act
        with torch.no_grad():
            self._shrink = scaled(module.pwconv2, module.gamma)

    @property
    def state_shapes(self) -> tuple[Shape, ...]:
        """The state shapes of the depthwise convolution."""
        return self._depthwise.state_shapes

    def advance(self, batch: Batch, past: Sequence[Tensor], x: Tensor) -> Tensor:
        """Compute the module's `forward` for the new rows."""
        y = self._norm(self._depthwise.advance(batch, past, x))
        return self._shrink(self._act(self._expand(y)), plus=x)


class ResidualUnit:
    """Two convolutions, each preceded by a SnakeBeta. The second one has a kernel size of 1."""

    def __init__(self, module: Any, level: Level) -> None:
        second = module.conv2.conv
        if second.kernel_size != (1,):
            raise FailedPrecondition(f"vocoder: can't stream the convolution {second}")
        self._first = causal_convolution(module.conv1, level, module.act1)
        self._snake = Snake(module.act2)
        self._second = Linear(second.weight[..., 0], second.bias)

    @property
    def state_shapes(self) -> tuple[Shape, ...]:
        """The state shapes of the first convolution."""
        return self._first.state_shapes

    def advance(self, batch: Batch, past: Sequence[Tensor], x: Tensor) -> Tensor:
        """Compute the module's `forward` for the new rows."""
        y = self._first.advance(batch, past, x)
        return self._second(self._snake(y, out=y), plus=x)


def causal_convolution(module: Any, level: Level, act: Any = None) -> CausalConvolution:
    """Return the streaming form of a convolution with stride 1, including the SnakeBeta that
    precedes it, if any.
    """
    conv = module.conv
    kernel = _kernel(level, conv.weight, conv.bias, conv.dilation[0], conv.groups)
    if conv.stride != (1,) or conv.padding != (0,) or module.padding != kernel.reach:
        raise FailedPrecondition(f"vocoder: can't stream the convolution {conv}")
    return CausalConvolution(kernel, level, None if act is None else Snake(act))


def upsampling(module: Any, level: Level, act: Any = None) -> tuple[Upsampling, Level]:
    """Return the streaming form of a transposed convolution, and the level after it.

    The kernel must be one or two strides wide. With two strides, neighbouring inputs overlap by one
    stride, so the outputs for a row also depend on the previous row. If the module trims one stride
    at both ends, it doesn't produce any output for the first row. If it only trims the end, it
    produces all of the first row's outputs, as if zeros preceded that row.
    """
    conv, (stride,) = module.conv, module.conv.stride
    plain = (conv.padding, conv.output_padding, conv.dilation) == ((0,), (0,), (1,))
    trim = conv.kernel_size[0] - stride
    trims = module.right_pad == trim and module.left_pad in (0, trim)
    if not plain or not trims or trim not in (0, stride) or conv.groups != 1:
        raise FailedPrecondition(f"vocoder: can't stream the transposed convolution {conv}")
    behind = level.upsampled(stride, overlaps=bool(module.left_pad))
    # [inputs, outputs, kernel] -> [strides in the kernel, stride, outputs, inputs]
    by_row = conv.weight.view(*conv.weight.shape[:2], -1, stride).permute(2, 3, 1, 0)
    bias = None if conv.bias is None else conv.bias.repeat(stride)
    if not trim and act is None:
        return Upsampling(Linear(by_row[0].flatten(0, 1), bias), stride), behind
    # The previous row comes first, and contributes the last stride of the kernel.
    weight = by_row.flip(0).flatten(1, 2).permute(1, 2, 0)
    snake = None if act is None else Snake(act)
    taps = CausalConvolution(_kernel(level, weight, bias), level, snake)
    return Upsampling(taps, stride), behind


def _kernel(
    level: Level, weight: Tensor, bias: Tensor | None, dilation: int = 1, groups: int = 1
) -> Convolution | UnfoldedConvolution:
    """Return the implementation that is faster at this level."""
    if level.rate <= UNFOLDED_ROWS and groups == 1:
        return UnfoldedConvolution(weight, bias, dilation=dilation)
    return Convolution(weight, bias, dilation=dilation, groups=groups)
