"""Keys and values of many sequences: one slot each, of one common capacity.

Laid out [slots, capacity, 2 * key heads, head_dim] per layer, so that the new rows of a
whole batch are written at once, and a sequence's positions are contiguous and are read
where they are. There are no pages.

A fixed cache takes all of its memory when it is made and never moves, so that whoever has
a slot has room. One that grows doubles all slots together: it pays for its longest
sequence times its slots, and for the limit only when a sequence gets there.

On a CPU the memory is a mapping that the system fills as it is written to: only positions
that sequences have reached are paid for. A fixed cache may not be larger than the
machine's memory, or the promise would be hollow.
"""

from __future__ import annotations

import math
import mmap
from dataclasses import dataclass

import torch
from torch import Tensor

from antiphon.errors import FailedPrecondition
from antiphon_services.lm.memory import SlotMemory

FIRST_CAPACITY = 256


@dataclass(frozen=True, slots=True)
class CacheShape:
    """What a cache must know of a stack of layers."""

    layers: int
    key_heads: int
    head_dim: int
    scale: float
    dtype: torch.dtype
    device: torch.device

    @property
    def position_bytes(self) -> int:
        """What one position of one slot takes in one layer."""
        return 2 * self.key_heads * self.head_dim * self.dtype.itemsize


class KVCache:
    """`positions` keys and values at most for each of `slots` sequences.

    One that `grows` allocates nothing before the first `reserve`; else all is there, or
    `InvalidArgument` is raised. Must run in inference mode.
    """

    def __init__(
        self, shape: CacheShape, slots: int, positions: int, *, grows: bool = False
    ) -> None:
        self.shape, self.slots, self.positions = shape, slots, positions
        self.capacity = 0
        self.memory = SlotMemory(
            slots, positions, shape.layers * shape.position_bytes, shape.device
        )
        """Of a cache that has all positions."""
        self._layers: list[Tensor] = []
        if not grows:
            self.memory.require_room()
            self._allocate(positions)

    def reserve(self, positions: int) -> None:
        """Make room for so many positions in every slot."""
        if positions > self.capacity:
            wanted = max(positions, 2 * self.capacity, FIRST_CAPACITY)
            self._allocate(max(positions, min(wanted, self.positions)))

    @property
    def bytes(self) -> int:
        """Of what is there by now."""
        return self.capacity * self.slots * self.memory.position_bytes

    def layer(self, index: int) -> Tensor:
        """One layer's [slots, capacity, 2 * key heads, head_dim]: keys, then values."""
        return self._layers[index]

    def copy(self, source: int, target: int, positions: int) -> None:
        """Copy the first positions of a slot to another."""
        for memory in self._layers:
            memory[target, :positions] = memory[source, :positions]

    def clear(self, slot: int, start: int = 0, stop: int | None = None) -> None:
        """Zero a slot's positions that may not be finite, for the next owner reads past its
        own end: what is masked there has no weight, but zero times a NaN is NaN."""
        for memory in self._layers:
            memory[slot, start:stop].zero_()

    def _allocate(self, capacity: int) -> None:
        # Layer by layer: old and new of one layer only are there at a time. If memory
        # runs out midway, some layers have more room than `capacity` says, which is fine.
        for index in range(self.shape.layers):
            memory = self._zeros(capacity)
            if index < len(self._layers):
                memory[:, : self.capacity] = self._layers[index][:, : self.capacity]
                self._layers[index] = memory
            else:
                self._layers.append(memory)
        self.capacity = capacity

    def _zeros(self, capacity: int) -> Tensor:
        """A layer's memory of so many positions. Raises `FailedPrecondition`."""
        shape = self.shape
        size = (self.slots, capacity, 2 * shape.key_heads, shape.head_dim)
        if shape.device.type != "cpu":
            return torch.zeros(size, dtype=shape.dtype, device=shape.device)
        length = math.prod(size) * shape.dtype.itemsize
        try:
            memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise _no_room(f"{length / 1e9:.1f} GB a layer: {error}") from error
        # Small pages, or a short sequence would pay for a huge one in each layer.
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        return torch.frombuffer(memory, dtype=shape.dtype).view(size)


def _no_room(what: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"slots, context_limit: keys and values take {what}; lower one of the two"
    )
