"""The convolutions of a single stream, computed piece by piece.

Concatenating the outputs of all pieces gives the same result as one call with all inputs. For each
convolution, a stream keeps the inputs that later outputs depend on. Tensors have the shape [1,
channels, n].
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.functional import pad


class ConvolutionState:
    """The inputs that a stream keeps for each convolution. A stream must not use the same module
    twice.
    """

    def __init__(self) -> None:
        self._kept: dict[nn.Conv1d, Tensor] = {}

    def causal(self, conv: nn.Conv1d, x: Tensor) -> Tensor:
        """Return one output for each input. It depends on this input and on earlier ones. The first
        input is preceded by zeros.
        """
        reach = (conv.kernel_size[0] - 1) * conv.dilation[0]
        joined = self._joined(conv, x, zeros=reach)
        self._keep(conv, joined, joined.shape[2] - reach)
        return self._run(conv, joined)

    def strided(self, conv: nn.Conv1d, x: Tensor) -> Tensor:
        """Return the outputs whose inputs are complete. The first input is preceded by `stride` - 1
        zeros.
        """
        kernel, stride = conv.kernel_size[0], conv.stride[0]
        joined = self._joined(conv, x, zeros=stride - 1)
        count = max(0, (joined.shape[2] - kernel) // stride + 1)
        self._keep(conv, joined, count * stride)
        return self._run(conv, joined) if count else self._nothing(conv, x)

    def ahead(self, conv: nn.Conv1d, x: Tensor, *, finished: bool) -> Tensor:
        """Return the outputs whose inputs are complete.

        An output depends on its own input and on the following `kernel_size` - 1 inputs. If the
        stream is `finished`, zeros are added after its last input.
        """
        reach = conv.kernel_size[0] - 1
        joined = self._joined(conv, x, zeros=0)
        if finished:
            joined = pad(joined, (0, reach))
        count = max(0, joined.shape[2] - reach)
        self._keep(conv, joined, count)
        return self._run(conv, joined) if count else self._nothing(conv, x)

    def _joined(self, conv: nn.Conv1d, x: Tensor, *, zeros: int) -> Tensor:
        kept = self._kept.get(conv)
        return pad(x, (zeros, 0)) if kept is None else torch.cat((kept, x), dim=2)

    def _keep(self, conv: nn.Conv1d, joined: Tensor, start: int) -> None:
        # Copy the inputs, because a view would keep the whole piece alive.
        self._kept[conv] = joined[:, :, start:].clone()

    @staticmethod
    def _run(conv: nn.Conv1d, joined: Tensor) -> Tensor:
        made: Tensor = conv(joined)
        return made

    @staticmethod
    def _nothing(conv: nn.Conv1d, x: Tensor) -> Tensor:
        return x.new_empty(x.shape[0], conv.out_channels, 0)
