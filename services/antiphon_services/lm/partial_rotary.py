"""Rotary embeddings that only rotate the first part of each head, with three alternating axes.

Checkpoints rotate the dimensions j and j + r / 2 together, where r is the number of rotated
dimensions. `lm.rotary` rotates j and j + width / 2 together. `in_halves` returns an order of the
dimensions in which both are the same. Queries and keys are stored in this order, which doesn't
change their products. The dimensions that aren't rotated have the frequency 0.
"""

from __future__ import annotations

import torch
from torch import Tensor

from antiphon_services.lm.modules import RotaryEmbedding

TIME, HEIGHT, WIDTH = range(3)


def in_halves(width: int, rotated: int) -> Tensor:
    """Return the order (int64 [width]) of a head's dimensions, of which the first `rotated` are
    rotated.
    """
    half = rotated // 2
    index = torch.arange(width)
    unrotated = index[rotated:]
    middle = len(unrotated) // 2
    return torch.cat((index[:half], unrotated[:middle], index[half:rotated], unrotated[middle:]))


class AlternatingRotaryEmbedding(RotaryEmbedding):
    """A rotary embedding for heads in the order of `in_halves`, and for positions with three axes.

    The first `rotated` of a head's `width` dimensions are rotated. The first `spatial` frequencies
    alternate between height and width, and all others belong to the time.
    """

    def __init__(self, width: int, rotated: int, *, theta: float, spatial: int) -> None:
        torch.nn.Module.__init__(self)
        self.rope_type = "default"
        self.attention_scaling = 1.0
        exponents = torch.arange(0, rotated, 2, dtype=torch.float) / rotated
        still = torch.zeros((width - rotated) // 2)
        frequencies = torch.cat((1.0 / theta**exponents, still))
        self.inv_freq = torch.nn.Buffer(frequencies, persistent=False)
        self.mrope_section = [rotated // 2 - spatial, spatial - spatial // 2, spatial // 2]

    def angles(self, like: Tensor, positions: Tensor) -> Tensor:
        """Return the angles [batch, n, head_dim / 2] for positions [3, batch, n]."""
        of_axes = super().angles(like, positions.expand(3, -1, -1))
        spatial = sum(self.mrope_section[1:])
        mixed = of_axes[TIME].clone()
        mixed[..., 0:spatial:2] = of_axes[HEIGHT][..., 0:spatial:2]
        mixed[..., 1:spatial:2] = of_axes[WIDTH][..., 1:spatial:2]
        return mixed
