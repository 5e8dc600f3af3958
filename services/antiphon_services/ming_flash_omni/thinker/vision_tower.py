"""The vision tower, which is that of Qwen3-VL without deepstack features.

Patches arrive in the order of Qwen's processors: blocks of patches that are merged later are
adjacent. All patches of an image attend to each other. Tensors have the same names as in Hugging
Face's `Qwen3VLMoeVisionModel`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention

from antiphon_services.lm.modules import activation

ROTARY_BASE = 10_000.0
EPSILON = 1e-6


@dataclass(frozen=True, slots=True)
class VisionSizes:
    """The sizes of the tower. There are learned positions on a grid of `side` by `side`."""

    width: int
    inner: int
    heads: int
    layers: int
    outputs: int
    side: int
    channels: int
    patch: int
    merged: int
    frames: int
    activation: str

    @classmethod
    def of(cls, config: dict[str, Any]) -> VisionSizes:
        """Read the object `vision_config`. Raises `KeyError` if a field is missing, and
        `ValueError` if the learned positions don't form a square.
        """
        positions = int(config["num_position_embeddings"])
        side = round(positions**0.5)
        if side**2 != positions:
            raise ValueError(f"num_position_embeddings is {positions}, which is no square")
        return cls(
            width=int(config["hidden_size"]),
            inner=int(config["intermediate_size"]),
            heads=int(config["num_heads"]),
            layers=int(config["depth"]),
            outputs=int(config["out_hidden_size"]),
            side=side,
            channels=int(config["in_channels"]),
            patch=int(config["patch_size"]),
            merged=int(config["spatial_merge_size"]),
            frames=int(config["temporal_patch_size"]),
            activation=str(config["hidden_act"]),
        )


class VisionTowerModule(nn.Module):
    """The vision tower."""

    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self._sizes = sizes
        self.patch_embed = _PatchEmbedding(sizes)
        self.pos_embed = nn.Embedding(sizes.side**2, sizes.width)
        self.blocks = nn.ModuleList(_PatchBlock(sizes) for _ in range(sizes.layers))
        self.merger = _Merger(sizes)

    def forward(self, patches: Tensor, rows: int, columns: int) -> Tensor:
        """Return the merged rows [rows * columns / merged ** 2, outputs] of an image, given its
        patches [rows * columns, values].
        """
        sizes = self._sizes
        row, column = _places(rows, columns, sizes.merged, patches.device)
        states = self.patch_embed(patches) + self._learned(row, column, rows, columns)
        turns = _rotation(row, column, sizes.width // sizes.heads)
        for block in self.blocks:
            states = block(states, turns)
        merged: Tensor = self.merger(states)
        return merged

    def _learned(self, row: Tensor, column: Tensor, rows: int, columns: int) -> Tensor:
        """Return the learned position of each patch, interpolated on the grid."""
        side, weight = self._sizes.side, self.pos_embed.weight
        made: Tensor | None = None
        downs = _neighbours(rows, side, weight.device)
        rights = _neighbours(columns, side, weight.device)
        for low, low_share in downs:
            for right, right_share in rights:
                share = (low_share[row] * right_share[column]).to(weight.dtype)
                part = weight[low[row] * side + right[column]] * share[:, None]
                made = part if made is None else made + part
        assert made is not None
        return made


def _places(rows: int, columns: int, merged: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return the row and the column of each patch, in the order of the patches."""
    place = torch.arange(rows * columns, device=device).view(
        rows // merged, merged, columns // merged, merged
    )
    flat = place.transpose(1, 2).flatten()
    return flat // columns, flat % columns


def _neighbours(count: int, side: int, device: torch.device) -> tuple[tuple[Tensor, Tensor], ...]:
    """Return the two grid positions next to each of `count` equidistant places, and their shares in
    float32.
    """
    places = torch.linspace(0, side - 1, count).to(device)
    low = places.int()
    high = (low + 1).clip(max=side - 1)
    share = places - low
    return (low, 1 - share), (high, share)


def _rotation(row: Tensor, column: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Return the cosines and sines [patches, 1, head_dim]. The first half of the angles belongs to
    the row, and the second half to the column.
    """
    quarter = torch.arange(0, head_dim // 2, 2, device=row.device, dtype=torch.float)
    frequencies = 1.0 / ROTARY_BASE ** (quarter / (head_dim // 2))
    angles = torch.cat((row[:, None] * frequencies, column[:, None] * frequencies), dim=-1)
    whole = torch.cat((angles, angles), dim=-1)[:, None]
    return whole.cos(), whole.sin()


class _PatchEmbedding(nn.Module):
    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        kernel = (sizes.frames, sizes.patch, sizes.patch)
        self.proj = nn.Conv3d(sizes.channels, sizes.width, kernel, stride=kernel)

    def forward(self, patches: Tensor) -> Tensor:
        """Map patches [n, values] to rows [n, width]. The kernel covers exactly one patch."""
        weight = self.proj.weight.flatten(1)
        return nn.functional.linear(patches, weight, self.proj.bias)


class _PatchBlock(nn.Module):
    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.norm1 = nn.LayerNorm(sizes.width, eps=EPSILON)
        self.norm2 = nn.LayerNorm(sizes.width, eps=EPSILON)
        self.attn = _PatchAttention(sizes)
        self.mlp = _Mlp(sizes)

    def forward(self, rows: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """Map rows [n, width] to the block's output."""
        rows = rows + self.attn(self.norm1(rows), turns)
        made: Tensor = rows + self.mlp(self.norm2(rows))
        return made


class _PatchAttention(nn.Module):
    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self._heads = sizes.heads
        self.qkv = nn.Linear(sizes.width, 3 * sizes.width)
        self.proj = nn.Linear(sizes.width, sizes.width)

    def forward(self, rows: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """Attend from each row [n, width] to all rows."""
        query, key, value = self.qkv(rows).view(len(rows), 3, self._heads, -1).unbind(1)
        turned = (_turned(query, turns), _turned(key, turns), value)
        query, key, value = (each.transpose(0, 1)[None] for each in turned)
        mixed = scaled_dot_product_attention(query, key, value)
        made: Tensor = self.proj(mixed[0].transpose(0, 1).flatten(1))
        return made


def _turned(heads: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate heads [n, heads, head_dim] in float32."""
    wide = heads.float()
    first, second = wide.chunk(2, dim=-1)
    cosines, sines = turns
    return (wide * cosines + torch.cat((-second, first), dim=-1) * sines).to(heads.dtype)


class _Mlp(nn.Module):
    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self.linear_fc1 = nn.Linear(sizes.width, sizes.inner)
        self.linear_fc2 = nn.Linear(sizes.inner, sizes.width)
        self.act_fn = activation(sizes.activation)

    def forward(self, rows: Tensor) -> Tensor:
        """Map rows [n, width] to outputs [n, width]."""
        made: Tensor = self.linear_fc2(self.act_fn(self.linear_fc1(rows)))
        return made


class _Merger(nn.Module):
    def __init__(self, sizes: VisionSizes) -> None:
        super().__init__()
        self._width = sizes.width * sizes.merged**2
        self.norm = nn.LayerNorm(sizes.width, eps=EPSILON)
        self.linear_fc1 = nn.Linear(self._width, self._width)
        self.linear_fc2 = nn.Linear(self._width, sizes.outputs)

    def forward(self, rows: Tensor) -> Tensor:
        """Merge the rows [n, width] of each block of patches."""
        merged = self.norm(rows).view(-1, self._width)
        made: Tensor = self.linear_fc2(nn.functional.gelu(self.linear_fc1(merged)))
        return made
