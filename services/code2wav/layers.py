"""The causal layers of `Qwen3OmniMoeCode2Wav`, advanced by new inputs only.

The law: a layer that has seen `s` inputs and gets `n` more returns exactly the
outputs `outputs(s) ... outputs(s + n) - 1` that the Hugging Face module gives
for all `s + n` inputs at once. What it needs of the past lies in tensors whose
shapes never change, so that states can be stacked along axis 0, and that are
updated in place, so that no state keeps a larger tensor alive. Whether a tensor
holds real inputs yet follows from `s` alone.

Tensors are [1, channels, time]; a state shape leaves out the leading 1.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import (
    Qwen3OmniMoeCausalConvNet,
    Qwen3OmniMoeCausalTransConvNet,
    Qwen3OmniMoeCode2WavDecoderResidualUnit,
    Qwen3OmniMoeConvNeXtBlock,
    Qwen3OmniMoeSnakeBeta,
)

from antiphon.errors import FailedPrecondition

Shape = tuple[int, ...]


class Layer(Protocol):
    """One causal layer; immutable, shared by all sessions."""

    @property
    def state_shapes(self) -> tuple[Shape, ...]:
        """Shapes of what one session keeps; zeros before the first input."""

    def outputs(self, inputs: int) -> int:
        """How many outputs exist once that many inputs were seen."""

    def advance(self, state: Sequence[Tensor], x: Tensor, seen: int) -> Tensor:
        """The outputs that the inputs `x` (at least one) add after `seen` earlier ones.

        Writes the past that the next call needs into `state`.
        """


@dataclass(frozen=True, slots=True)
class Pointwise:
    """A module that looks at one position at a time, for example SnakeBeta."""

    module: nn.Module
    state_shapes: tuple[Shape, ...] = ()

    def outputs(self, inputs: int) -> int:
        """As many as inputs."""
        return inputs

    def advance(self, state: Sequence[Tensor], x: Tensor, seen: int) -> Tensor:
        """The module itself."""
        y: Tensor = self.module(x)
        return y


@dataclass(frozen=True, slots=True)
class CausalConv:
    """`Qwen3OmniMoeCausalConvNet` of stride 1: keeps its last (kernel - 1) * dilation inputs."""

    module: Qwen3OmniMoeCausalConvNet

    def __post_init__(self) -> None:
        conv = self.module.conv
        if conv.stride != (1,) or conv.padding != (0,) or self.module.padding != self._tail:
            raise FailedPrecondition(f"code2wav: cannot stream the convolution {conv}")

    @property
    def _tail(self) -> int:
        conv = self.module.conv
        return (conv.kernel_size[0] - 1) * conv.dilation[0]

    @property
    def state_shapes(self) -> tuple[Shape, ...]:
        """The tail; zeros stand for the padding on the left."""
        return ((self.module.conv.in_channels, self._tail),)

    def outputs(self, inputs: int) -> int:
        """As many as inputs."""
        return inputs

    def advance(self, state: Sequence[Tensor], x: Tensor, seen: int) -> Tensor:
        """Prepend the tail and convolve without padding."""
        (tail,) = state
        joined = torch.cat((tail, x), dim=-1)
        keep_last(tail, joined)
        y: Tensor = self.module.conv(joined)
        return y


@dataclass(frozen=True, slots=True)
class TransposedConv:
    """`Qwen3OmniMoeCausalTransConvNet` whose kernel is one or two strides wide.

    Of two strides, neighbouring inputs overlap by one stride and the module trims
    one stride at both ends: the last input is kept, and the first gives nothing.
    """

    module: Qwen3OmniMoeCausalTransConvNet

    def __post_init__(self) -> None:
        conv, (stride,) = self.module.conv, self.module.conv.stride
        plain = (conv.padding, conv.output_padding, conv.dilation) == ((0,), (0,), (1,))
        trim = conv.kernel_size[0] - stride
        symmetric = self.module.left_pad == self.module.right_pad == trim
        if not plain or not symmetric or trim not in (0, stride):
            raise FailedPrecondition(f"code2wav: cannot stream the transposed convolution {conv}")

    @property
    def _stride(self) -> int:
        (stride,) = self.module.conv.stride
        return int(stride)

    @property
    def _overlaps(self) -> bool:
        return bool(self.module.left_pad)

    @property
    def state_shapes(self) -> tuple[Shape, ...]:
        """The last input, where inputs overlap."""
        return ((self.module.conv.in_channels, 1),) if self._overlaps else ()

    def outputs(self, inputs: int) -> int:
        """A stride for each input, but the first where inputs overlap."""
        return max(inputs - self._overlaps, 0) * self._stride

    def advance(self, state: Sequence[Tensor], x: Tensor, seen: int) -> Tensor:
        """Prepend the last input if there was one, convolve, trim as the module does."""
        joined = x
        if self._overlaps:
            (last,) = state
            joined = torch.cat((last, x), dim=-1) if seen else x
            keep_last(last, x)
        y: Tensor = self.module(joined)
        return y


@dataclass(frozen=True, slots=True)
class ConvNeXt:
    """`Qwen3OmniMoeConvNeXtBlock`: its depthwise convolution is all that looks back."""

    module: Qwen3OmniMoeConvNeXtBlock

    @property
    def _depthwise(self) -> CausalConv:
        return CausalConv(self.module.dwconv)

    @property
    def state_shapes(self) -> tuple[Shape, ...]:
        """Those of the depthwise convolution."""
        return self._depthwise.state_shapes

    def outputs(self, inputs: int) -> int:
        """As many as inputs."""
        return inputs

    def advance(self, state: Sequence[Tensor], x: Tensor, seen: int) -> Tensor:
        """As `Qwen3OmniMoeConvNeXtBlock.forward`, over the new inputs."""
        block = self.module
        y = self._depthwise.advance(state, x, seen).transpose(1, 2)
        y = block.pwconv2(block.act(block.pwconv1(block.norm(y))))
        scaled: Tensor = block.gamma * y
        return x + scaled.transpose(1, 2)


@dataclass(frozen=True, slots=True)
class ResidualUnit:
    """`Qwen3OmniMoeCode2WavDecoderResidualUnit`: two convolutions, new inputs added."""

    module: Qwen3OmniMoeCode2WavDecoderResidualUnit

    @property
    def _convs(self) -> tuple[CausalConv, CausalConv]:
        return CausalConv(self.module.conv1), CausalConv(self.module.conv2)

    @property
    def state_shapes(self) -> tuple[Shape, ...]:
        """Those of the two convolutions."""
        first, second = self._convs
        return first.state_shapes + second.state_shapes

    def outputs(self, inputs: int) -> int:
        """As many as inputs."""
        return inputs

    def advance(self, state: Sequence[Tensor], x: Tensor, seen: int) -> Tensor:
        """As `Qwen3OmniMoeCode2WavDecoderResidualUnit.forward`, over the new inputs."""
        first, second = self._convs
        y = first.advance(state[:1], self.module.act1(x), seen)
        y = second.advance(state[1:], self.module.act2(y), seen)
        return y + x


def layer_of(module: nn.Module) -> Layer:
    """The streaming form of a module. Raises `FailedPrecondition` when there is none."""
    match module:
        case Qwen3OmniMoeSnakeBeta():
            return Pointwise(module)
        case Qwen3OmniMoeCausalConvNet():
            return CausalConv(module)
        case Qwen3OmniMoeCausalTransConvNet():
            return TransposedConv(module)
        case Qwen3OmniMoeConvNeXtBlock():
            return ConvNeXt(module)
        case Qwen3OmniMoeCode2WavDecoderResidualUnit():
            return ResidualUnit(module)
        case _:
            raise FailedPrecondition(f"code2wav: cannot stream a {type(module).__name__}")


def keep_last(tail: Tensor, x: Tensor, dim: int = -1) -> None:
    """Overwrite `tail` with the last entries of `x` along `dim`, where `x` is not shorter."""
    length = tail.shape[dim]
    tail.copy_(x.narrow(dim, x.shape[dim] - length, length))
