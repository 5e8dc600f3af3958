"""The keys and values of many sequences. Each sequence has a slot, and all slots have the same
capacity.

The layout of each layer is [slots, capacity, 2 * key heads, head_dim]. The new rows of a whole
batch are written at once. A sequence's positions are contiguous and are read in place, so there is
no paging.

A fixed cache allocates all of its memory during construction and never moves it, so a slot always
has enough space. A growing cache doubles the capacity of all slots together. Its size is the number
of slots multiplied by the capacity needed for the longest sequence, so it only reaches the limit if
a sequence does.

On a CPU, the memory is a mapping whose pages the operating system allocates when they are first
written. This means that only positions that have been used take up memory. A fixed cache is
rejected if it is larger than the machine's memory.
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
    """The properties of a stack of layers that determine the size of its cache."""

    layers: int
    key_heads: int
    head_dim: int
    scale: float
    dtype: torch.dtype
    device: torch.device

    @property
    def position_bytes(self) -> int:
        """The number of bytes that a single layer needs for one position of a slot."""
        return 2 * self.key_heads * self.head_dim * self.dtype.itemsize


class KVCache:
    """The keys and values of `slots` sequences with up to `positions` positions each.

    If `grows` is true, nothing is allocated before the first call to `reserve`. Otherwise
    everything is allocated during construction, and `InvalidArgument` is raised if there isn't
    enough memory. The cache must be used in inference mode.
    """

    def __init__(
        self, shape: CacheShape, slots: int, positions: int, *, grows: bool = False
    ) -> None:
        self.shape, self.slots, self.positions = shape, slots, positions
        self.capacity = 0
        self.memory = SlotMemory(
            slots, positions, shape.layers * shape.position_bytes, shape.device
        )
        """The memory that the cache needs when all slots are full."""
        self._layers: list[Tensor] = []
        if not grows:
            self.memory.require_room()
            self._allocate(positions)

    def reserve(self, positions: int) -> None:
        """Enlarge every slot so that it has space for at least `positions` positions."""
        if positions > self.capacity:
            wanted = max(positions, 2 * self.capacity, FIRST_CAPACITY)
            self._allocate(max(positions, min(wanted, self.positions)))

    @property
    def bytes(self) -> int:
        """The number of bytes that have been allocated so far."""
        return self.capacity * self.slots * self.memory.position_bytes

    def layer(self, index: int) -> Tensor:
        """Return a layer's memory [slots, capacity, 2 * key heads, head_dim], with keys followed by
        values.
        """
        return self._layers[index]

    def copy(self, source: int, target: int, positions: int) -> None:
        """Copy the first `positions` positions of one slot to another slot."""
        for memory in self._layers:
            memory[target, :positions] = memory[source, :positions]

    def clear(self, slot: int, start: int = 0, stop: int | None = None) -> None:
        """Set positions of a slot to zero because they may contain values that are not finite.

        This is necessary because the slot's next owner also reads positions after its own end.
        Masked positions have a weight of zero, but zero multiplied by NaN is NaN.
        """
        for memory in self._layers:
            memory[slot, start:stop].zero_()

    def _allocate(self, capacity: int) -> None:
        # The layers are enlarged one at a time, so that only one layer exists twice. If memory runs
        # out in between, some layers are larger than `capacity`, which is harmless.
        for index in range(self.shape.layers):
            memory = self._zeros(capacity)
            if index < len(self._layers):
                memory[:, : self.capacity] = self._layers[index][:, : self.capacity]
                self._layers[index] = memory
            else:
                self._layers.append(memory)
        self.capacity = capacity

    def _zeros(self, capacity: int) -> Tensor:
        """Return the memory for a layer. Raises `FailedPrecondition` if it can't be allocated."""
        shape = self.shape
        size = (self.slots, capacity, 2 * shape.key_heads, shape.head_dim)
        if shape.device.type != "cpu":
            return torch.zeros(size, dtype=shape.dtype, device=shape.device)
        length = math.prod(size) * shape.dtype.itemsize
        try:
            memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise _no_room(f"{length / 1e9:.1f} GB a layer: {error}") from error
        # Use small pages. Otherwise even a short sequence would take up a huge page in each layer.
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        return torch.frombuffer(memory, dtype=shape.dtype).view(size)


def _no_room(what: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"slots, context_limit: keys and values take {what}; reduce one of these settings"
    )
