"""The transformer layers of an audio tokenizer, with pre-LayerNorm, rotary positions and GELU.

A row attends to other rows of the same sequence, either within a window or without a limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import gelu, scaled_dot_product_attention


@dataclass(frozen=True, slots=True)
class Window:
    """The number of rows before and after its own position that a row attends to. None means that
    there is no limit.
    """

    before: int | None = None
    after: int | None = None

    def mask(self, count: int, device: torch.device) -> Tensor | None:
        """Return a bool mask [count, count] that is true where a row attends to a column, or None
        if every row attends to all rows.
        """
        if self.before is None and self.after is None:
            return None
        at = torch.arange(count, device=device)
        ahead = at[None] - at[:, None]
        seen = torch.ones_like(ahead, dtype=torch.bool)
        if self.before is not None:
            seen &= ahead >= -self.before
        if self.after is not None:
            seen &= ahead <= self.after
        return seen


class RotaryLayer(nn.Module):
    """Attention and an MLP. The key projection doesn't have a bias."""

    def __init__(self, width: int, heads: int, intermediate: int) -> None:
        super().__init__()
        self.self_attn = _Projections(width)
        self.self_attn_layer_norm = nn.LayerNorm(width)
        self.fc1 = nn.Linear(width, intermediate)
        self.fc2 = nn.Linear(intermediate, width)
        self.final_layer_norm = nn.LayerNorm(width)
        self._heads = heads

    def forward(self, rows: Tensor, turns: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        """Return the layer's output [n, width]. `turns` contains cosines and sines [n,
        head_dim].
        """
        rows = rows + self._attended(self.self_attn_layer_norm(rows), turns, mask)
        inner = gelu(self.fc1(self.final_layer_norm(rows)))
        out: Tensor = rows + self.fc2(inner)
        return out

    def _attended(self, rows: Tensor, turns: tuple[Tensor, Tensor], mask: Tensor | None) -> Tensor:
        attention = self.self_attn
        cosines, sines = turns

        def by_head(projected: Tensor) -> Tensor:
            return projected.view(len(rows), self._heads, -1).transpose(0, 1)

        def turned(heads: Tensor) -> Tensor:
            low, high = heads.chunk(2, dim=-1)
            return heads * cosines + torch.cat((-high, low), dim=-1) * sines

        mixed = scaled_dot_product_attention(
            turned(by_head(attention.q_proj(rows)))[None],
            turned(by_head(attention.k_proj(rows)))[None],
            by_head(attention.v_proj(rows))[None],
            attn_mask=mask,
        )
        out: Tensor = attention.out_proj(mixed[0].transpose(0, 1).flatten(1))
        return out


class _Projections(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.k_proj = nn.Linear(width, width, bias=False)
        self.v_proj = nn.Linear(width, width)
        self.q_proj = nn.Linear(width, width)
        self.out_proj = nn.Linear(width, width)


def rotary_turns(count: int, head_dim: int, theta: float, like: Tensor) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines [count, head_dim] for the positions from 0 onwards, in the dtype
    of `like`.
    """
    index = torch.arange(0, head_dim, 2, device=like.device).float() / head_dim
    angles = torch.arange(count, device=like.device).float()[:, None] / theta**index
    angles = torch.cat((angles, angles), dim=-1)
    return angles.cos().to(like.dtype), angles.sin().to(like.dtype)
