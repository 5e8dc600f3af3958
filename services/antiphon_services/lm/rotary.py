"""Rotary position embeddings, based on a precomputed table of all positions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from antiphon_services.lm.in_place import into

# For narrower heads, a CPU uses a copy of the cosines and sines for each head. If they were
# broadcast over the heads instead, an operation would become a loop over single heads, which took
# four times as long (measured at width 16). With fewer rows than this, the copy costs more than it
# saves.
SHARED_FROM_WIDTH = 64
SPREAD_FROM_ROWS = 8


@dataclass(frozen=True, slots=True)
class Rotation:
    """The cosines and signed sines for the positions of n rows, as `turns` [n, 1, 2, head_dim].

    `spread` adds a copy for each head. If a table of plain positions is used for positions with
    three axes, `axes` (int64 [head_dim]) specifies which axis (time, height or width) rotates each
    dimension. It is None if there is only one axis.
    """

    turns: Tensor
    axes: Tensor | None = None

    @property
    def cosines(self) -> Tensor:
        """The cosines [n, 1, head_dim]."""
        return self.turns[..., 0, :]

    @property
    def sines(self) -> Tensor:
        """The sines [n, 1, head_dim]. The first half of them is negated."""
        return self.turns[..., 1, :]

    @classmethod
    def of(cls, rotary: Any, positions: int, like: Tensor) -> Rotation:
        """Return a table for the positions from 0 onwards. `rotary` is the model's module."""
        index = torch.arange(positions, device=like.device)[None]
        axes = None
        if hasattr(rotary, "mrope_section"):
            index = index.expand(3, 1, -1)
            axes = _axes(rotary, like.device)
        cosines, sines = (each[0] for each in rotary(like, index))
        return replace(cls.of_rows(cosines, sines), axes=axes)

    @classmethod
    def of_rows(cls, cosines: Tensor, sines: Tensor) -> Rotation:
        """Return the rotation for rows [..., head_dim] of cosines and sines that the model's module
        has computed.
        """
        low, high = sines.chunk(2, dim=-1)
        turns = torch.stack((cosines, torch.cat((-low, high), dim=-1)), dim=-2)
        return cls(turns.unsqueeze(-3))

    def at(self, positions: Tensor) -> Rotation:
        """Return the rotation for `positions`, which is int64 [n], or [n, 3] if a row has different
        positions on the three axes. In the second case, positions may be negative.
        """
        if positions.ndim == 1:
            return Rotation(self.turns[positions])
        of_axes = positions[:, None, None, self.axes]
        turns = self.turns.gather(0, of_axes.abs().expand(-1, -1, 2, -1))
        # The sine is an odd function.
        turns[:, :, 1:].mul_(torch.where(of_axes < 0, -1, 1))
        return Rotation(turns)

    def spread(self, heads: int) -> Rotation:
        """Return a copy of the values for each head if this is faster on a CPU."""
        count, _, two, width = self.turns.shape
        pays = width < SHARED_FROM_WIDTH and count >= SPREAD_FROM_ROWS
        if self.turns.device.type != "cpu" or not pays:
            return self
        turns = self.turns.permute(2, 0, 1, 3).expand(two, count, heads, width).contiguous()
        return Rotation(turns.permute(1, 2, 0, 3))

    def apply(self, heads: Tensor, out: Tensor | None = None, *, fused: bool = False) -> Tensor:
        """Rotate heads [n, heads, head_dim], like Hugging Face's `apply_rotary_pos_emb`.

        If `fused` is true, fewer operations are needed, but the rounding is different.
        """
        if fused:
            turned = heads.roll(heads.shape[-1] // 2, -1)
            return into(out, torch.addcmul, heads * self.cosines, turned, self.sines)
        if heads.device.type == "cpu":
            turned = heads.roll(heads.shape[-1] // 2, -1).mul_(self.sines)
            return into(out, torch.add, heads * self.cosines, turned)
        both = torch.stack((heads, heads), dim=-2)
        return self.apply_to_both(both, out)

    def apply_to_both(self, both: Tensor, out: Tensor | None = None) -> Tensor:
        """Like `apply`, but for heads that are stored twice in a contiguous tensor [n, heads, 2,
        head_dim].

        Reading from the middle of a head's first copy gives its second half followed by its first
        half, so no further copy is needed to swap the halves.
        """
        strides = (*both.stride()[:-2], both.shape[-1] // 2, 1)
        parts = both.as_strided(both.shape, strides) * self.turns
        return into(out, torch.add, *parts.unbind(-2))


def _axes(rotary: Any, device: torch.device) -> Tensor:
    """Return the axis that rotates each dimension. It is determined by changing one axis at a time
    and comparing the angles.
    """
    like = torch.empty(0, device=device)
    steps = torch.eye(3, device=device)[:, None]
    _, sines = rotary(like, steps)
    axes: Tensor = sines[0].abs().argmax(0)
    return axes
