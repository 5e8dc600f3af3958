"""Rotary position embedding, from a table of all positions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class Rotation:
    """Cosines and signed sines [n, 1, head_dim] of the positions of n rows.

    `axes` int64 [head_dim] says, in a table of plain positions, which of a row's three
    positions (time, height, width) turns each dimension; None where there is but one.
    """

    cosines: Tensor
    sines: Tensor
    axes: Tensor | None = None

    @classmethod
    def of(cls, rotary: Any, positions: int, like: Tensor) -> Rotation:
        """Of plain positions 0, 1, ... on all axes; `rotary` is the model's module."""
        index = torch.arange(positions, device=like.device)[None]
        axes = None
        if hasattr(rotary, "mrope_section"):
            index = index.expand(3, 1, -1)
            axes = _axes(rotary, like.device)
        cosines, sines = (each[0] for each in rotary(like, index))
        return replace(cls.of_rows(cosines, sines), axes=axes)

    @classmethod
    def of_rows(cls, cosines: Tensor, sines: Tensor) -> Rotation:
        """Of rows [..., head_dim] as the model's module gives them."""
        low, high = sines.unsqueeze(-2).chunk(2, dim=-1)
        return cls(cosines.unsqueeze(-2), torch.cat((-low, high), dim=-1))

    def at(self, positions: Tensor) -> Rotation:
        """Of the rows' positions, int64 [n], or [n, 3] where their axes differ."""
        if positions.ndim == 1:
            return Rotation(self.cosines[positions], self.sines[positions])
        index = positions[:, None, self.axes]
        return Rotation(self.cosines.gather(0, index), self.sines.gather(0, index))

    def apply(self, heads: Tensor, out: Tensor | None = None, *, fused: bool = False) -> Tensor:
        """Hugging Face's `apply_rotary_pos_emb` of [n, heads, head_dim]; one that is `fused` has
        other digits, in fewer operations."""
        turned = heads.roll(heads.shape[-1] // 2, -1)
        if fused:
            return torch.addcmul(heads * self.cosines, turned, self.sines, out=out)
        return torch.add(heads * self.cosines, turned * self.sines, out=out)


def _axes(rotary: Any, device: torch.device) -> Tensor:
    """Which axis turns each dimension: the one along which a step of 1 does something."""
    like = torch.empty(0, device=device)
    steps = torch.eye(3, device=device)[:, None]
    _, sines = rotary(like, steps)
    axes: Tensor = sines[0].abs().argmax(0)
    return axes
