"""Keys and values of many sequences: one slot each, of one common capacity.

Laid out [slots, capacity, key heads, head_dim] per layer, so that the new rows of a
whole batch are written at once, and the keys of one slot, or of several cut to one
length, are a view or one gather. All slots grow together by doubling: a
stage pays for its longest sequence times its slots, never for the context limit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

FIRST_CAPACITY = 256


@dataclass(frozen=True, slots=True)
class KeyValueShape:
    """What a cache must know of a stack of layers."""

    layers: int
    key_heads: int
    head_dim: int
    dtype: torch.dtype
    device: torch.device

    @property
    def position_bytes(self) -> int:
        """What one position of one slot takes in one layer."""
        return 2 * self.key_heads * self.head_dim * self.dtype.itemsize


class KeyValues:
    """Allocates nothing before the first `reserve`; must run in inference mode."""

    def __init__(self, shape: KeyValueShape, slots: int, max_capacity: int) -> None:
        self.shape = shape
        self.capacity = 0
        self.slots = slots
        self._max_capacity = max_capacity
        self._layers: list[tuple[Tensor, Tensor]] = []

    def reserve(self, positions: int) -> None:
        """Make room for so many positions in every slot, at most `max_capacity`."""
        if positions <= self.capacity:
            return
        wanted = max(positions, 2 * self.capacity, FIRST_CAPACITY)
        capacity = max(positions, min(wanted, self._max_capacity))
        # Layer by layer: old and new of one layer only are there at a time. If memory
        # runs out midway, some layers have more room than `capacity` says, which is fine.
        for index in range(self.shape.layers):
            keys, values = self._allocate(capacity), self._allocate(capacity)
            if index < len(self._layers):
                for new, old in zip((keys, values), self._layers[index], strict=True):
                    new[:, : self.capacity] = old[:, : self.capacity]
                self._layers[index] = keys, values
            else:
                self._layers.append((keys, values))
        self.capacity = capacity

    def layer(self, index: int) -> tuple[Tensor, Tensor]:
        """Keys and values of one layer, [slots, capacity, key heads, head_dim]."""
        return self._layers[index]

    def copy(self, source: int, target: int, positions: int) -> None:
        """Copy the first positions of a slot to another."""
        for tensor in self._tensors():
            tensor[target, :positions] = tensor[source, :positions]

    def clear(self, slot: int) -> None:
        """Zero a slot, for the next owner reads past its own end: what is masked there
        has no weight, but zero times a NaN is NaN."""
        for tensor in self._tensors():
            tensor[slot].zero_()

    def _tensors(self) -> list[Tensor]:
        return [tensor for pair in self._layers for tensor in pair]

    def _allocate(self, capacity: int) -> Tensor:
        shape = self.shape
        size = (self.slots, capacity, shape.key_heads, shape.head_dim)
        return torch.zeros(size, dtype=shape.dtype, device=shape.device)
