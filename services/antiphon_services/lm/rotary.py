"""Rotary position embedding, from a table of all positions."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from antiphon_services.lm.in_place import into

# For narrower heads a CPU reads cosines and sines that are copied for every head: shared by all
# heads, they split an operation into loops over one head each, which took four times as long
# (measured at a width of 16). For fewer rows the copy costs more than it saves.
SHARED_FROM_WIDTH = 64
SPREAD_FROM_ROWS = 8


@dataclass(frozen=True, slots=True)
class Rotation:
    """`turns` of the positions of n rows, [n, 1, 2, head_dim]: cosines, then signed sines; after
    `spread` there is one for each head.

    `axes` int64 [head_dim] says, in a table of plain positions, which of a row's three
    positions (time, height, width) turns each dimension; None where there is but one.
    """

    turns: Tensor
    axes: Tensor | None = None

    @property
    def cosines(self) -> Tensor:
        """[n, 1, head_dim]."""
        return self.turns[..., 0, :]

    @property
    def sines(self) -> Tensor:
        """[n, 1, head_dim], those of the first half negative."""
        return self.turns[..., 1, :]

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
        low, high = sines.chunk(2, dim=-1)
        turns = torch.stack((cosines, torch.cat((-low, high), dim=-1)), dim=-2)
        return cls(turns.unsqueeze(-3))

    def at(self, positions: Tensor) -> Rotation:
        """Of the rows' positions, int64 [n], or [n, 3] where their axes differ."""
        if positions.ndim == 1:
            return Rotation(self.turns[positions])
        index = positions[:, None, None, self.axes].expand(-1, -1, 2, -1)
        return Rotation(self.turns.gather(0, index))

    def spread(self, heads: int) -> Rotation:
        """A copy for every one of so many heads where a CPU rotates them faster with it."""
        count, _, two, width = self.turns.shape
        pays = width < SHARED_FROM_WIDTH and count >= SPREAD_FROM_ROWS
        if self.turns.device.type != "cpu" or not pays:
            return self
        turns = self.turns.permute(2, 0, 1, 3).expand(two, count, heads, width).contiguous()
        return Rotation(turns.permute(1, 2, 0, 3))

    def apply(self, heads: Tensor, out: Tensor | None = None, *, fused: bool = False) -> Tensor:
        """Hugging Face's `apply_rotary_pos_emb` of [n, heads, head_dim]; one that is `fused` has
        other digits, in fewer operations."""
        if fused:
            turned = heads.roll(heads.shape[-1] // 2, -1)
            return into(out, torch.addcmul, heads * self.cosines, turned, self.sines)
        if heads.device.type == "cpu":
            turned = heads.roll(heads.shape[-1] // 2, -1).mul_(self.sines)
            return into(out, torch.add, heads * self.cosines, turned)
        both = torch.stack((heads, heads), dim=-2)
        return self.apply_to_both(both, out)

    def apply_to_both(self, both: Tensor, out: Tensor | None = None) -> Tensor:
        """`apply` of heads that stand there twice, [n, heads, 2, head_dim], contiguous.

        Read from the middle of the first on, the two are the first's second half and the second's
        first half: no copy turns the halves about.
        """
        strides = (*both.stride()[:-2], both.shape[-1] // 2, 1)
        parts = both.as_strided(both.shape, strides) * self.turns
        return into(out, torch.add, *parts.unbind(-2))


def _axes(rotary: Any, device: torch.device) -> Tensor:
    """Which axis turns each dimension: the one along which a step of 1 does something."""
    like = torch.empty(0, device=device)
    steps = torch.eye(3, device=device)[:, None]
    _, sines = rotary(like, steps)
    axes: Tensor = sines[0].abs().argmax(0)
    return axes
