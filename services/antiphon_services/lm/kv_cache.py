"""The keys and values of many sequences. Each sequence has a slot, and all slots have the same
capacity.

The layout of each layer is [slots, capacity, 2 * key heads, head_dim]. The new rows of a whole
batch are written at once. The positions of a sequence are contiguous and are read in place. There
are no pages.

A fixed cache allocates all of its memory during construction and never moves it, so a slot always
has enough space. A growing cache doubles the capacity of all slots together. Its size is the length
of its longest sequence multiplied by the number of slots, and it only reaches the limit if a
sequence does.

On a CPU, the memory is a mapping whose pages the system allocates when they are written. Therefore
only positions that sequences have reached take memory. A fixed cache that is larger than the memory
of the machine is rejected.
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
    """The shape of a stack of layers, as needed for its cache."""

    layers: int
    key_heads: int
    head_dim: int
    scale: float
    dtype: torch.dtype
    device: torch.device

    @property
    def position_bytes(self) -> int:
        """The number of bytes for one position of one slot in one layer."""
        return 2 * self.key_heads * self.head_dim * self.dtype.itemsize


class KVCache:
    """The keys and values of up to `positions` positions for each of `slots` sequences.

    If `grows` is true, nothing is allocated before the first `reserve`. Otherwise everything is
    allocated immediately, and `InvalidArgument` is raised if this is not possible. Use the cache in
    inference mode.
    """

    def __init__(
        self, shape: CacheShape, slots: int, positions: int, *, grows: bool = False
    ) -> None:
        self.shape, self.slots, self.positions = shape, slots, positions
        self.capacity = 0
        self.memory = SlotMemory(
            slots, positions, shape.layers * shape.position_bytes, shape.device
        )
        """The memory of a cache that contains all positions."""
        self._layers: list[Tensor] = []
        if not grows:
            self.memory.require_room()
            self._allocate(positions)

    def reserve(self, positions: int) -> None:
        """Enlarge every slot to at least `positions` positions."""
        if positions > self.capacity:
            wanted = max(positions, 2 * self.capacity, FIRST_CAPACITY)
            self._allocate(max(positions, min(wanted, self.positions)))

    @property
    def bytes(self) -> int:
        """The number of bytes that have been allocated so far."""
        return self.capacity * self.slots * self.memory.position_bytes

    def layer(self, index: int) -> Tensor:
        """Return the memory of one layer [slots, capacity, 2 * key heads, head_dim], with keys
        followed by values.
        """
        return self._layers[index]

    def copy(self, source: int, target: int, positions: int) -> None:
        """Copy the first `positions` positions of one slot to another slot."""
        for memory in self._layers:
            memory[target, :positions] = memory[source, :positions]

    def clear(self, slot: int, start: int = 0, stop: int | None = None) -> None:
        """Set positions of a slot to zero because they may contain values that are not finite.

        The next owner of the slot also reads positions after its own end. Masked positions have a
        weight of zero, but zero multiplied by NaN is NaN.
        """
        for memory in self._layers:
            memory[slot, start:stop].zero_()

    def _allocate(self, capacity: int) -> None:
        # The layers are enlarged one at a time, so that only a single layer exists twice. If memory
        # runs out in between, some layers are larger than `capacity`, which does no harm.
        for index in range(self.shape.layers):
            memory = self._zeros(capacity)
            if index < len(self._layers):
                memory[:, : self.capacity] = self._layers[index][:, : self.capacity]
                self._layers[index] = memory
            else:
                self._layers.append(memory)
        self.capacity = capacity

    def _zeros(self, capacity: int) -> Tensor:
        """Return the memory for a layer. Raises `FailedPrecondition` if it cannot be allocated."""
        shape = self.shape
        size = (self.slots, capacity, 2 * shape.key_heads, shape.head_dim)
        if shape.device.type != "cpu":
            return torch.zeros(size, dtype=shape.dtype, device=shape.device)
        length = math.prod(size) * shape.dtype.itemsize
        try:
            memory = mmap.mmap(-1, length, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        except OSError as error:
            raise _no_room(f"{length / 1e9:.1f} GB a layer: {error}") from error
        # Small pages are used. Otherwise a short sequence would take a huge page in each layer.
        if hasattr(mmap, "MADV_NOHUGEPAGE"):
            memory.madvise(mmap.MADV_NOHUGEPAGE)
        return torch.frombuffer(memory, dtype=shape.dtype).view(size)


def _no_room(what: str) -> FailedPrecondition:
    return FailedPrecondition(
        f"slots, context_limit: keys and values take {what}; lower one of the two"
    )
